"""What a client of plans refuses, each once: by a clear error, before or while it runs."""

import json
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedlm.fl_core.deployment.plans import programs
from fedlm.fl_core.deployment.security.plan_keys import PLAN_KEY_FILE, PlanSigner, create_plan_key
from fedlm.fl_core.errors import ConfigurationError
from fedlm_client import confined, jax_runtime
from fedlm_client.confined import Confined, Trainer
from fedlm_client.errors import ClientError, PlanError
from fedlm_client.frames import FrameError, receive_frame
from fedlm_client.limits import Limits
from fedlm_client.manifest import Argument, Program, check_limits, check_program, read_manifest
from fedlm_client.operations import ALLOWED, check_operations
from fedlm_client.signature import check_signature, read_public_keys
from tests.support import plans


@pytest.fixture(scope="module")
def made():
    return plans.plan_of()


def changed(plan, change):
    found = json.loads(plan.manifest)
    change(found)
    return json.dumps(found).encode()


def program_of(run, *shapes):
    """A program of one's own, and what a manifest would say of it."""
    exported = jax.export.export(jax.jit(run), platforms=("cpu",))(*shapes)
    content = programs._portable(exported.mlir_module_serialized, programs.versions()[1])
    inputs = tuple(Argument("x", place, one.shape, one.dtype.name) for place, one in enumerate(shapes))
    given = jax.eval_shape(run, *shapes)
    return content, Program("", len(content), inputs, (Argument("y", 0, given.shape, given.dtype.name),))


def test_a_plan_must_be_signed_by_a_key_that_its_owner_was_given(made, tmp_path):
    plan, _ = made
    keys = read_public_keys(create_plan_key(tmp_path / "keys"))
    signature = PlanSigner(tmp_path / "keys" / PLAN_KEY_FILE).sign(plan.manifest)
    check_signature(plan.manifest, signature, keys)
    with pytest.raises(PlanError, match="not signed"):
        check_signature(plan.manifest, b"", keys)
    with pytest.raises(PlanError, match="not of a key"):
        check_signature(plan.manifest + b" ", signature, keys)
    others = read_public_keys(create_plan_key(tmp_path / "others"))
    with pytest.raises(PlanError, match="not of a key"):
        check_signature(plan.manifest, signature, others)
    check_signature(plan.manifest, signature, others + keys)
    with pytest.raises(ClientError, match=r"plan\.key: holds no Ed25519"):
        read_public_keys(tmp_path / "keys" / PLAN_KEY_FILE)


def test_a_signature_of_something_else_is_none_of_a_plan(made):
    key = Ed25519PrivateKey.generate()
    with pytest.raises(PlanError, match="not of a key"):
        check_signature(made[0].manifest, key.sign(made[0].manifest), [key.public_key()])


def test_another_program_than_the_manifest_names_is_refused(made):
    plan, manifest = made
    with pytest.raises(PlanError, match="program step is not the one"):
        check_program(manifest.step, plan.step[:-1] + b"x", "step")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda found: found.update(version=2), "of version 2"),
        (lambda found: found["shuffle"].update(version=2), "shuffles by"),
        (lambda found: found["batches"].update(batch_size=5), "step takes tokens 0"),
        (lambda found: found["state"][0].update(shape=[1]), "step takes state 0"),
        (lambda found: found["state"][0].update(begins=1), "begins as a tensor"),
        (lambda found: found["programs"]["step"]["outputs"].pop(), "step gives other tensors"),
        (lambda found: found["programs"]["step"]["inputs"][0].update(role="files"), "none of what this client has"),
        (lambda found: found["programs"]["finish"]["outputs"][1].update(shape=[9]), "not as long as"),
        (lambda found: found["upload"].update(header="00" * 8), "header of an upload"),
        (lambda found: found["programs"]["step"]["inputs"][0].update(shape=[-1]), "where a count"),
        (lambda found: found["programs"]["step"]["inputs"][0].update(dtype="object"), "'object'"),
        (lambda found: found.pop("limits"), "cannot be read"),
        (lambda found: found["limits"].update(call_seconds=10**400), "cannot be read"),
        (lambda found: found["limits"].update(call_seconds=float("nan")), "no number of JSON"),
        (lambda found: found["limits"].update(call_seconds="1"), "where a number"),
        (lambda found: found["batches"].update(pad=1 << 31), "where a count"),
        (lambda found: found["batches"].update(batch_size=1 << 40), "batches of at most"),
        (lambda found: found["state"][0].update(shape=[1] * 65), "65 dimensions"),
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


@pytest.mark.parametrize("name", ["memory_bytes", "compile_seconds", "call_seconds", "program_bytes"])
def test_a_plan_that_asks_for_more_than_the_owner_allows_is_refused(made, name):
    check_limits(made[1], Limits())
    with pytest.raises(PlanError, match=f"--{name.replace('_', '-')}"):
        check_limits(made[1], Limits(**{name: 1}))


@pytest.mark.long
def test_a_program_that_calls_code_of_its_own_choice_is_refused(made):
    described = Program("", 0, (Argument("x", 0, (2,), "float32"),), (Argument("y", 0, (2,), "float32"),))
    with pytest.raises(PlanError, match=r"stablehlo\.custom_call"):
        jax_runtime.check(plans.portable(plans.CALLING), described)
    for name in ("infeed", "outfeed", "send", "recv", "all_reduce", "rng", "composite", "custom_call"):
        assert name not in ALLOWED
    with pytest.raises(PlanError, match=r"sparse\.add"):
        check_operations(["stablehlo.add", "vhlo.add_v1", "sparse.add"])
    # The process that runs plans looks before it compiles.
    plan, manifest = made
    with pytest.raises(PlanError, match="custom_call"):
        Trainer(manifest, plan.manifest, "jax", [plans.portable(plans.CALLING), plan.finish])


def test_a_server_makes_no_plan_that_would_call_other_code():
    with pytest.raises(ConfigurationError, match="code that a plan does not carry"):
        plans.plan_of(compression="powersgd1", model="cifg_tiny")


def test_a_program_of_other_shapes_than_its_manifest_is_refused():
    content, described = program_of(lambda x: x + 1, jax.ShapeDtypeStruct((3,), jnp.float32))
    jax_runtime.check(content, described)
    for shape, kind in (((4,), "float32"), ((3,), "int32")):
        other = described._replace(inputs=(Argument("x", 0, shape, kind),))
        with pytest.raises(PlanError, match="takes other tensors"):
            jax_runtime.check(content, other)
    with pytest.raises(PlanError, match="gives other tensors"):
        jax_runtime.check(content, described._replace(outputs=()))


def trained_with(plan, manifest, step, inputs, **limits):
    """Let a program take the place of a plan's step, where everything but the program fits."""
    hostile = manifest.__class__(**manifest.__dict__ | limits)
    with Trainer(hostile, plan.manifest, "jax", [step, plan.finish]) as trainer:
        trainer.begin(plans.sent_values(manifest))
        trainer.step(*[np.zeros(one, kind) for one, kind in inputs], 0.1)


def replaced_step(manifest, make):
    """A program with the arguments of the plan's step, which computes something else in its place."""
    shapes = [jax.ShapeDtypeStruct(one.shape, one.dtype) for one in manifest.step.inputs]
    kept = [(one.role, one.index) for one in manifest.step.outputs]
    places = {(one.role, one.index): place for place, one in enumerate(manifest.step.inputs)}

    def run(*given):
        extra = make(given[0]) + sum(jnp.sum(one).astype(jnp.float32) for one in given)
        return [given[places[key]] + extra.astype(given[places[key]].dtype) * 0 for key in kept]

    exported = jax.export.export(jax.jit(run, keep_unused=True), platforms=("cpu",))(*shapes)
    return programs._portable(exported.mlir_module_serialized, programs.versions()[1])


def batch_shapes(manifest):
    batches = manifest.batches
    return [
        ((batches.batch_size, batches.length + 1), np.int32),
        ((batches.batch_size,), np.float32),
        ((batches.batch_size, 2), np.uint32),
    ]


@pytest.mark.long
def test_a_step_that_never_ends_is_ended(made):
    plan, manifest = made
    # It goes on as long as a number that only grows is not below zero.
    forever = replaced_step(
        manifest,
        lambda x: jax.lax.while_loop(lambda c: c[0] >= 0, lambda c: (jnp.abs(c[0]) * 0.5,), (jnp.abs(x[0, 0]),))[0],
    )
    with pytest.raises(PlanError, match="more than 3 seconds"):
        trained_with(plan, manifest, forever, batch_shapes(manifest), call_seconds=3.0)


@pytest.mark.long
def test_a_step_that_takes_too_much_memory_is_ended(made):
    plan, manifest = made

    def large(x):
        grown = jnp.broadcast_to(x[0, 0], (1 << 30,)) * jnp.arange(1 << 30)
        return jax.lax.sort(grown)[12345]

    with pytest.raises(PlanError, match=r"memory|does not run"):
        trained_with(plan, manifest, replaced_step(manifest, large), batch_shapes(manifest))


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
from fedlm_client.confinement import confine
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
            env={"PYTHONPATH": str(Path(confined.__file__).parents[1])},
            capture_output=True,
            text=True,
            check=True,
        )
    reached, memory = done.stdout.split("\n")[:2]
    assert memory == "no memory"
    # Where the kernel has no user namespaces for everybody, there is nothing to take the network away with.
    assert reached == ("not reached" if allowed.returncode == 0 else "reached")
