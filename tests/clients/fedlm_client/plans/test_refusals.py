"""What a client of plans refuses, each once: by a clear error, before or while it runs."""

import json
import re
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from fedlm.fedlm_client.errors import ClientError, PlanError
from fedlm.fedlm_client.limits import PlanLimits
from fedlm.fedlm_client.plans import confined
from fedlm.fedlm_client.plans.confined import Confined, LoadedPlan
from fedlm.fedlm_client.plans.frames import FrameError, receive_frame
from fedlm.fedlm_client.plans.manifest import check_limits, check_model, read_manifest
from fedlm.fedlm_client.plans.signature import check_signature, read_public_keys
from fedlm.fl_core.deployment.plans.litert import lowering
from fedlm.fl_core.deployment.security.plan_keys import PLAN_KEY_FILE, PlanSigner, create_plan_key
from fedlm.fl_core.errors import ConfigurationError
from tests.support import hostile_models, plans


@pytest.fixture(scope="module")
def made():
    return plans.plan_of()


def changed(plan, change):
    found = json.loads(plan.manifest)
    change(found)
    return json.dumps(found).encode()


def test_a_plan_must_be_signed_by_a_key_that_its_owner_was_given(made, tmp_path):
    plan, _ = made
    keys = read_public_keys(create_plan_key(tmp_path / "keys"))
    signer = PlanSigner(tmp_path / "keys" / PLAN_KEY_FILE)
    signature = signer.sign(plan.manifest)
    check_signature(plan.manifest, signature, keys)
    with pytest.raises(PlanError, match="not signed"):
        check_signature(plan.manifest, b"", keys)
    with pytest.raises(PlanError, match="not by a key"):
        check_signature(plan.manifest + b" ", signature, keys)
    with pytest.raises(PlanError, match="not by a key"):
        check_signature(plan.manifest, signer.sign(plan.manifest, purpose=b""), keys)
    others = read_public_keys(create_plan_key(tmp_path / "others"))
    with pytest.raises(PlanError, match="not by a key"):
        check_signature(plan.manifest, signature, others)
    check_signature(plan.manifest, signature, others + keys)
    with pytest.raises(ClientError, match=r"plan\.key: holds no Ed25519"):
        read_public_keys(tmp_path / "keys" / PLAN_KEY_FILE)


def test_another_model_than_the_manifest_names_is_refused(made):
    plan, manifest = made
    check_model(manifest, plan.model)
    for content in (plan.model[:-1] + b"x", plan.model + b"x", b""):
        with pytest.raises(PlanError, match="model is not the one"):
            check_model(manifest, content)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        *hostile_models.MANIFESTS,
        (lambda found: found["signatures"]["train"]["inputs"][0].update(name="tokens"), "two of one name"),
        (lambda found: found["limits"].update(call_seconds=10**400), "cannot be read"),
        (lambda found: found["limits"].update(call_seconds=float("nan")), "is not a number in JSON"),
        (lambda found: found["limits"].update(call_seconds="1"), "where a number"),
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(made, change, why):
    with pytest.raises(PlanError, match=why):
        read_manifest(changed(made[0], change))


def test_bytes_that_are_no_manifest_are_refused(made):
    for content in (
        made[0].manifest.decode().encode("utf-16"),
        b"",
        b"[]",
        b"\xff",
        b"[" * 100_000,
        b'{"format": "fedlm-plan"}',
    ):
        with pytest.raises(PlanError):
            read_manifest(content)


@pytest.mark.parametrize("name", ["memory_bytes", "load_seconds", "call_seconds", "plan_bytes"])
def test_a_plan_that_asks_for_more_than_the_owner_allows_is_refused(made, name):
    check_limits(made[1], PlanLimits())
    with pytest.raises(PlanError, match=f"--{name.replace('_', '-')}"):
        check_limits(made[1], PlanLimits(**{name: 1}))


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"upload_bits": 2}, "uploads by uniform2 cannot be part of a plan"),
        ({"upload_rotation": True}, "uploads by uniform8 with upload_rotation cannot"),
        ({"compression": "powersgd1", "model": "cifg_tiny"}, "powersgd.* choose another compression"),
        (
            {"model": "cifg_tiny", "personal_layers": ("output_bias",)},
            "PersonalLayers keeps something on the device from round to round, which clients of plans cannot",
        ),
        ({"precision": "bfloat16"}, "a local step of .* cannot be part of a plan: .* bf16"),
    ],
    ids=str,
)
def test_a_server_makes_no_plan_of_what_litert_cannot_do(settings, why):
    with pytest.raises(ConfigurationError, match=why):
        plans.plan_of(**settings)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (b"TFL3" * 1000, "does not run"),
        (hostile_models.without_a_tensor, "train gives other tensors than its manifest says"),
        (hostile_models.calling, "the operation CUSTOM, which this client does not run"),
        (hostile_models.reading_files, "asks for other files"),
        *(
            pytest.param(*one, marks=pytest.mark.long)
            for one in (
                (hostile_models.without_a_signature, "lacks the signature train"),
                (hostile_models.of_another_shape, "train takes other tensors than its manifest says"),
                (hostile_models.keeping, "the operation VAR_HANDLE"),
                (hostile_models.without_end, "the operation WHILE"),
            )
        ),
    ],
    ids=lambda one: getattr(one, "__name__", None),
)
def test_a_model_that_is_not_what_its_manifest_says_is_not_loaded(made, change, why):
    found = hostile_models.hostile(made[0], change)
    with pytest.raises(PlanError, match=why):
        LoadedPlan(read_manifest(found.manifest), found.manifest, found.model)


@pytest.mark.long
def test_a_model_that_was_cut_off_is_not_loaded(made):
    for share in (0.1, 0.5, 0.9):
        found = hostile_models.hostile(made[0], made[0].model[: int(share * len(made[0].model))])
        with pytest.raises(PlanError, match=r"plan's model|the process that ran the plan ended"):
            LoadedPlan(read_manifest(found.manifest), found.manifest, found.model)


def trained(plan):
    """Load a plan, and take a step."""
    manifest = read_manifest(plan.manifest)
    batches = manifest.batches
    tokens, weight = np.zeros((batches.batch_size, batches.length + 1), np.int32), np.ones(batches.batch_size)
    with LoadedPlan(manifest, plan.manifest, plan.model) as trainer:
        trainer.begin(plans.sent_values(manifest))
        trainer.step(tokens, weight, np.zeros((batches.batch_size, 2), np.uint32), 0.1)


@pytest.mark.parametrize(
    ("change", "limits", "why"),
    [
        (hostile_models.failing, {}, "the plan's model does not run"),
        pytest.param(hostile_models.slow, {"call_seconds": 2.0}, "took more than 2 seconds", marks=pytest.mark.long),
        pytest.param(
            hostile_models.too_large, {"memory_bytes": 1 << 30}, "memory|does not run", marks=pytest.mark.long
        ),
    ],
    ids=["failing", "slow", "too large"],
)
def test_a_step_that_fails_takes_too_long_or_too_much_memory_ends_the_plan(made, change, limits, why):
    with pytest.raises(PlanError, match=why):
        trained(hostile_models.hostile(made[0], change, **limits))


def test_what_fedlm_writes_is_what_the_client_runs(made):
    litert = pytest.importorskip("fedlm.fedlm_client.plans.litert")
    source = "".join(path.read_text() for path in Path(lowering.__file__).parent.glob("*.py"))
    written = {name for name in re.findall(r'"([A-Z][A-Z0-9_]+)"', source)} & set(litert._NUMBERS.values())
    assert written - litert.ALLOWED == set()
    assert not litert.ALLOWED & {"CUSTOM", "WHILE", "IF", "CALL_ONCE", "VAR_HANDLE", "READ_VARIABLE", "ASSIGN_VARIABLE"}


def test_what_the_process_answers_is_not_believed():
    with Confined(2 << 30) as process, pytest.raises(PlanError, match="does not run"):
        process.ask({"do": "anything"}, [], 60)


def test_an_answer_that_never_ends_is_not_waited_for():
    ours, theirs = socket.socketpair()
    stop = threading.Event()

    def dribble():
        theirs.sendall(struct.pack("<QQ", 2, 1000) + b"{}")
        while not stop.wait(0.05):
            theirs.sendall(b"x")

    with ours, theirs:
        sending = threading.Thread(target=dribble)
        sending.start()
        try:
            with pytest.raises(TimeoutError):
                receive_frame(ours, 1000, time.monotonic() + 0.5)
            with pytest.raises(FrameError):
                receive_frame(ours, 0, time.monotonic() + 5)
        finally:
            stop.set()
            sending.join()


CONFINED = """
import socket, sys
from fedlm_client.plans.confinement import confine
confine(1 << 30)
try:
    socket.create_connection(("127.0.0.1", int(sys.argv[1])), 5).close()
    print("reached")
except OSError:
    print("not reached")
try:
    print(len(bytearray(2 << 30)))
except MemoryError:
    print("no memory")
"""


def test_the_process_that_runs_plans_has_limits_and_no_network():
    allowed = subprocess.run(["unshare", "--user", "--net", "true"], capture_output=True, check=False)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        done = subprocess.run(
            [sys.executable, "-c", CONFINED, port],
            env={"PYTHONPATH": str(Path(confined.__file__).parents[2])},
            capture_output=True,
            text=True,
            check=True,
        )
    reached, memory = done.stdout.split("\n")[:2]
    assert memory == "no memory"
    # Where the kernel has no user namespaces for everybody, there is nothing to take the network away with.
    assert reached == ("not reached" if allowed.returncode == 0 else "reached")
