"""The service manager's units fit the server that they start."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from fedlm.commands.deployment.listening import Listening
from fedlm.commands.deployment.serve import ServeCommand
from fedlm.fl_core.composed_settings import compose, value_types
from fedlm.fl_core.deployment.server.settings import Deployment

UNITS = Path(__file__).parents[2] / "deploy" / "systemd"
NAMES = sorted(path.name for path in UNITS.iterdir())


def values(name, key):
    return re.findall(rf"^{key}=(.*)$", (UNITS / name).read_text(), re.M)


@pytest.mark.parametrize("name", NAMES)
def test_systemd_takes_a_unit(name, tmp_path):
    verifier = shutil.which("systemd-analyze")
    if verifier is None:
        pytest.skip("no systemd here")
    # What it starts is where it would be installed.
    for program in ("fedlm", "curl"):
        (tmp_path / program).write_text("#!/bin/sh\n")
        (tmp_path / program).chmod(0o755)
    text = (UNITS / name).read_text().replace("/opt/fedlm/bin", str(tmp_path)).replace("/usr/bin/curl", "/bin/true")
    (tmp_path / name).write_text(text)
    instance = tmp_path / name.replace("@.", "@01.")
    if instance.name != name:
        instance.symlink_to(tmp_path / name)
    done = subprocess.run([verifier, "verify", "--man=no", str(instance)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", NAMES)
def test_a_unit_starts_the_server_with_options_that_it_has_and_stops_it_after_it_has_drained(name):
    [command] = values(name, "ExecStart")
    program, serve, *words = shlex.split(command)
    assert (program, serve) == ("/opt/fedlm/bin/fedlm", "serve")
    known = value_types(ServeCommand).keys()
    options = dict(zip(words[::2], words[1::2], strict=True))
    assert {option.removeprefix("--").replace("-", "_") for option in options} <= known | {"config"}
    assert options.get("--role", "all") == {"server": "all", "coordinator": "coordinator"}.get(
        name.removeprefix("fedlm-").removesuffix(".service"), "aggregator"
    )
    drained = compose(Deployment, model="cifg_tiny").drain_seconds
    [stop], [files] = values(name, "TimeoutStopSec"), values(name, "LimitNOFILE")
    assert 60 * int(stop.removesuffix("min")) >= drained + 120
    if "coordinator" not in name:
        assert int(files) >= Listening.max_connections + 256


@pytest.mark.parametrize("name", NAMES)
def test_a_unit_asks_a_probe_without_a_token_names_no_secret_and_is_not_given_up(name):
    [probe] = values(name, "ExecStartPost")
    [start] = values(name, "ExecStart")
    address = re.search(r"--operator-address (\S+)", start)[1]
    assert probe.endswith(f" https://{address}/healthz"), "one that waits for its database has started"
    assert "postgresql://" not in (UNITS / name).read_text()
    assert values(name, "StartLimitIntervalSec") == ["0"]
    assert values(name, "Restart") == ["on-failure"]
    assert int(*values(name, "RestartSec")) >= 10, "what cannot be mended does not keep a core busy"
