"""What watches a server, and the image of it, fit the server."""

import json
import re
import subprocess
import sys
from pathlib import Path

import promql_parser
import pytest
import yaml

from fedlm.command_line.options import read_options
from fedlm.commands.deployment.serve import ServeCommand
from fedlm.commands.deployment.status import StatusCommand

DEPLOY = Path(__file__).parents[2] / "deploy"
ROOT = DEPLOY.parent


def rules():
    (group,) = yaml.safe_load((DEPLOY / "monitoring/fedlm.rules.yaml").read_text())["groups"]
    return group["rules"]


def panels():
    return json.loads((DEPLOY / "monitoring/grafana.json").read_text())["panels"]


def expressions():
    targets = [target["expr"] for panel in panels() for target in panel["targets"]]
    # Grafana puts what was chosen there before Prometheus reads it.
    return [rule["expr"] for rule in rules()] + [one.replace("$instance", ".*") for one in targets]


def test_prometheus_takes_every_expression():
    for expression in expressions():
        promql_parser.parse(expression)
    with pytest.raises(ValueError, match="end of input"):
        promql_parser.parse("fedlm_epsilon{")


def test_a_linter_takes_the_image():
    linter = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([linter, DEPLOY / "Containerfile"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_compose_takes_its_file():
    words = ["-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", DEPLOY / "compose.yaml"]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_compose_starts_the_server_with_options_that_it_has_and_as_little_else_as_may_be(tmp_path):
    composed = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    services, settings = composed["services"], tmp_path / "serve.toml"
    settings.write_text(composed["configs"]["settings"]["content"])
    name, *words = services["server"]["command"]
    read = read_options(ServeCommand, [word.replace("/etc/fedlm", str(tmp_path)) for word in words], f"fedlm {name}")
    _, program, name, *words = services["server"]["healthcheck"]["test"]
    asked = read_options(StatusCommand, words, f"{program} {name}").of
    assert (asked.keys, asked.server[-5:]) == (read.listening.keys, read.listening.operator_address[-5:])
    mounts = {mount["target"]: mount["source"] for mount in services["server"]["volumes"]}
    assert mounts["/var/lib/fedlm"] == "run", "the folder that the image gives to its user"
    assert mounts[read.database.partition("host=")[2]] == "socket"
    assert (
        int(services["server"]["stop_grace_period"].removesuffix("m")) * 60 >= read.run.deployment.drain_seconds + 120
    )
    for service in services.values():
        assert service["user"].split(":")[0] in ("10001", "postgres")
        assert service["read_only"]
        assert (service["cap_drop"], service["security_opt"]) == (["ALL"], ["no-new-privileges:true"])
        assert service["healthcheck"]


def test_an_image_is_made_of_all_that_is_installed_and_of_no_more():
    """Docker and Podman read both files, which are at the root."""
    setup = (ROOT / "setup.cfg").read_text()
    folders = set(re.findall(r"^    fedlm\.\w+ = (\w+)", setup, re.M)) | {"fedlm"}
    wanted = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    files = {"LICENSE", "README.md", "constraints.txt", "pyproject.toml", "setup.cfg"}
    assert wanted == folders | files
    image = (DEPLOY / "Containerfile").read_text()
    (pod,) = {line for line in (DEPLOY / "kubernetes/aggregators.yaml").read_text().splitlines() if "runAsUser" in line}
    assert f"USER {pod.split()[-1]}:" in image, "pods run as the user of the image"
