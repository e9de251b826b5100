"""Two versions of the software meet: whoever is turned away is told which versions are spoken."""

import asyncio
import configparser
import json
from pathlib import Path

import pytest

from fedlm.clients.device.jax_trainer import JaxTrainer
from fedlm.fedlm_client import messages_pb2 as messages
from fedlm.fedlm_client.errors import ClientError
from fedlm.fedlm_client.link.protocol import PROTOCOL
from fedlm.fedlm_client.plans.plan_trainer import PlanTrainer
from tests.deployment import small_deployment as small
from tests.deployment.open_round import in_round
from tests.support.serving import serving


class OtherVersion:
    """Handlers of a server that answers as another version of the software does."""

    def __init__(self, *protocols):
        self.protocols, self.asked = protocols, []

    async def check_in(self, peer, request):
        self.asked.append(request.protocol)
        reason = f"the client speaks version {request.protocol} of the protocol"
        return messages.CheckInReply(come_back=messages.ComeBack(seconds=0.01, reason=reason), protocols=self.protocols)


@pytest.mark.parametrize("version", [0, PROTOCOL - 1, PROTOCOL + 1])
def test_a_server_tells_a_client_of_another_version_which_one_it_speaks(tmp_path, version):
    async def scenario(round_):
        found.extend([await round_.check_in("old", version), await round_.check_in("new")])
        round_.collecting.cancel()

    found = []
    in_round(tmp_path, scenario, compiled=False)
    reply, known = found
    assert list(reply.protocols) == list(known.protocols) == [PROTOCOL]
    assert reply.come_back.reason == (
        f"the client speaks version {version} of the protocol, but the server speaks {PROTOCOL}"
    )
    # Also a client that knows of no `protocols` ends with this reason, and comes back no more.
    assert reply.come_back.done
    assert not reply.come_back.finished
    assert not known.come_back.done


@pytest.mark.parametrize(("protocols", "told"), [((), "1"), ((PROTOCOL + 1, PROTOCOL + 2), "3, 4")])
def test_a_client_tells_its_user_which_versions_a_server_speaks(tmp_path, protocols, told):
    async def go():
        handlers = OtherVersion(*protocols)
        async with asyncio.timeout(small.PATIENCE), serving(handlers) as listener:
            try:
                await small.make_client(listener.port, tmp_path, 0).run_async()
            finally:
                assert handlers.asked == [PROTOCOL]

    with pytest.raises(ClientError, match=f"speaks version {told} of the protocol, but this client speaks 2"):
        asyncio.run(go())


def test_a_client_without_the_run_s_algorithm_is_told_so_and_comes_back_no_more(tmp_path):
    name, replies = "tests.support.own_algorithms:REMEMBERING", []

    async def scenario(round_):
        for algorithms in ([], ["sgd", name]):
            request = messages.CheckInRequest(protocol=PROTOCOL, algorithms=algorithms)
            replies.append((await round_.handlers.check_in("old", request)).come_back)
        round_.collecting.cancel()

    in_round(tmp_path, scenario, compiled=False, client_algorithm=name)
    refused, taken = replies
    reason = "the client does not have the client algorithm tests.support.own_algorithms:REMEMBERING, which this run"
    assert refused.reason.startswith(reason)
    assert (refused.done, taken.done) == (True, False)


def test_clients_say_name_and_version_of_their_packages():
    clients = Path(__file__).parents[2] / "clients"
    package = configparser.ConfigParser()
    package.read(clients / "fedlm_client/setup.cfg")
    version = package["metadata"]["version"]
    assert JaxTrainer(None, None).introduce().client_version == f"fedlm {version}"
    assert PlanTrainer(None, ()).introduce().client_version == f"fedlm-client {version}"
    said = (clients / "javascript/src/client.ts").read_text()
    of_javascript = json.loads((clients / "javascript/package.json").read_text())["version"]
    assert f'VERSION = "{of_javascript}"' in said
    assert "clientVersion: `fedlm-js-client ${VERSION}`" in said


def test_a_client_of_other_models_is_turned_away_and_may_come_back(tmp_path):
    async def scenario(round_):
        request = messages.CheckInRequest(protocol=PROTOCOL, models=["another"])
        answers.append((await round_.handlers.check_in("a", request)).come_back)
        round_.collecting.cancel()

    answers = []
    in_round(tmp_path, scenario, compiled=False)
    assert answers[0].reason == f"the client cannot train the model {small.MODEL}"
    assert not answers[0].done
