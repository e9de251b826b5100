"""Two versions of the software meet: whoever is turned away is told which versions are spoken."""

import asyncio
import configparser
import json
import re
from pathlib import Path

import pytest

from fedlm.clients.device.jax_trainer import JaxTrainer
from fedlm.fedlm_client import messages_pb2 as messages
from fedlm.fedlm_client.errors import ClientError, RefusedError
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


@pytest.mark.parametrize(("protocols", "told"), [((), "1"), ((PROTOCOL + 1, PROTOCOL + 2), "4, 5")])
async def test_a_client_tells_its_user_which_versions_a_server_speaks(tmp_path, protocols, told):
    handlers, why = OtherVersion(*protocols), f"speaks version {told} of the protocol, but this client speaks 3"
    async with asyncio.timeout(small.PATIENCE), serving(handlers) as listener:
        with pytest.raises(ClientError, match=why):
            await small.make_client(listener.port, tmp_path, 0).run_async()
    assert handlers.asked == [PROTOCOL]


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


async def test_a_server_says_why_it_turns_a_client_away_and_which_version_it_speaks(tmp_path):
    """Also a client that knows of no `protocols` ends with the reason, and comes back no more."""
    name = "tests.support.own_algorithms:REMEMBERING"
    speaks = "the client speaks version {} of the protocol, but the server speaks {}"
    refused = [
        *(({"protocol": one}, speaks.format(one, PROTOCOL)) for one in (0, PROTOCOL - 1, PROTOCOL + 1)),
        ({}, f"the client does not have the client algorithm {name}, which this run trains with"),
        ({"needs_plan": True}, re.escape("the server has no key for plans (`fedlm keys plan`), so it makes none")),
    ]
    async with in_round(tmp_path, compiled=False, client_algorithm=name) as round_:

        async def check_in(**asked):
            return await round_.handlers.check_in("a", messages.CheckInRequest(**{"protocol": PROTOCOL} | asked))

        for asked, why in refused:
            with pytest.raises(RefusedError, match=why):
                await check_in(**asked)
        later = await check_in(models=["another"], algorithms=[name])
        taken = await check_in(algorithms=["sgd", name])
        round_.collecting.cancel()
    assert {tuple(reply.protocols) for reply in (later, taken)} == {(PROTOCOL,)}
    said = later.come_back
    assert (said.reason, said.done) == (f"the client cannot train the model {small.MODEL}", False)
    assert said.seconds > 0
    assert taken.WhichOneof("answer") == "selected"
