"""Machine code of a server is run where a signed statement says that it is what the device's owner asked for."""

import json

import pytest

from fedlm.fl_core.deployment.plans import plan_modules
from fedlm.fl_core.deployment.security.plan_keys import PLAN_KEY_FILE, PlanSigner, create_plan_key
from fedlm_client import messages_pb2 as messages
from fedlm_client.client import Client, Settings
from fedlm_client.errors import ClientError, PlanError
from fedlm_client.http_channel import Channel
from fedlm_client.own_participation import OwnParticipation
from fedlm_client.served_modules import check_module, read_statement
from fedlm_client.signature import MODULES, PLAN, read_public_keys
from tests.support import plans

WANTED = messages.Runtime(name="iree", version="3.13.0", target="x86_64-linux")


@pytest.fixture(scope="module")
def made():
    return plans.plan_of()


@pytest.fixture(scope="module")
def signer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    public = create_plan_key(folder)
    return PlanSigner(folder / PLAN_KEY_FILE), read_public_keys(public)


def offered(signer, statement, purpose=MODULES):
    return messages.PlanModules(statement=statement, signature=signer.sign(statement, purpose))


def test_a_statement_of_the_server_is_read(made, signer):
    (plan, manifest), (sign, keys) = made, signer
    statement = plan_modules.statement_on(plan, WANTED.name, WANTED.target, WANTED.version, b"one", b"two")
    digests = read_statement(offered(sign, statement), keys, manifest, WANTED)
    check_module(b"one", digests.step, "step")
    check_module(b"two", digests.finish, "finish")
    with pytest.raises(PlanError, match="module step is not the one"):
        check_module(b"two", digests.step, "step")
    assert plan_modules.PURPOSE == MODULES


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"target": "aarch64-linux"}, "of fedlm-modules 1 of plan .* aarch64-linux, but this client takes"),
        ({"runtime_version": "3.12.0"}, r"3\.12\.0"),
        ({"runtime": "other"}, "other"),
        ({"plan": "0" * 64}, "plan 000000000000"),
        ({"version": 2}, "fedlm-modules 2"),
        ({"version": {"a": ["b"]}}, "takes those of fedlm-modules 1"),
        ({"modules": {}}, "cannot be read"),
        ({"modules": [1]}, "cannot be read"),
    ],
)
def test_other_modules_than_those_that_were_asked_for_are_refused(made, signer, change, why):
    (plan, manifest), (sign, keys) = made, signer
    found = json.loads(plan_modules.statement_on(plan, WANTED.name, WANTED.target, WANTED.version, b"one", b"two"))
    with pytest.raises(PlanError, match=why):
        read_statement(offered(sign, json.dumps(found | change).encode()), keys, manifest, WANTED)


def test_a_statement_must_be_signed_as_such(made, signer, tmp_path):
    (plan, manifest), (sign, keys) = made, signer
    statement = plan_modules.statement_on(plan, WANTED.name, WANTED.target, WANTED.version, b"one", b"two")
    # The signature of a plan's manifest is none of machine code.
    for wrong in (offered(sign, statement, PLAN), messages.PlanModules(statement=statement, signature=b"x" * 64)):
        with pytest.raises(PlanError, match="not of a key"):
            read_statement(wrong, keys, manifest, WANTED)
    with pytest.raises(PlanError, match="not signed"):
        read_statement(messages.PlanModules(statement=statement), keys, manifest, WANTED)
    others = read_public_keys(create_plan_key(tmp_path / "others"))
    with pytest.raises(PlanError, match="not of a key"):
        read_statement(offered(sign, statement), others, manifest, WANTED)
    for content in (b"", b"\xff", b"[]", b"[" * 100_000):
        with pytest.raises(PlanError, match="cannot be read"):
            read_statement(offered(sign, content), keys, manifest, WANTED)


def test_only_iree_runs_modules(tmp_path):
    settings = Settings(tmp_path / "mine.jsonl", [], "jax", accept_modules="x86_64-linux")
    with pytest.raises(ClientError, match="--runtime iree"):
        Client(Channel("127.0.0.1:1", None, "ann"), settings, OwnParticipation(tmp_path / "record"))
