"""Devices in an exact sum, from an update to what they send."""

import asyncio
from types import SimpleNamespace

import pytest

from fedlm.fedlm_client import messages_pb2 as messages
from fedlm.fedlm_client.errors import UnsafeSumError
from fedlm.fedlm_client.secure_aggregation.device import SecureSums
from fedlm.fedlm_client.secure_aggregation.keys import AttemptName
from fedlm.fedlm_client.training import Update
from fedlm.fl_core.deployment.secure_aggregation.secure_round import SecureRound
from fedlm.fl_core.updates.float32 import Float32Upload
from fedlm.fl_core.updates.update_bytes import plan_digest
from tests.support import secure_cohorts as cohorts

COUNT, SHAPES, STEP = 3, [(2, 3), (4,)], 2.0**-8
UPDATE = Update(b"FLU2" + plan_digest(Float32Upload().scheme, SHAPES)[:4] + bytes(44), 3, 1.0, 2.0, 3.0)
UPLOAD = {"scheme": 1, "version": 1, "tensors": [{"dimensions": one} for one in SHAPES]}
Reply = messages.SecureReply


def asked(**program):
    told = {"clip_norm": 1.0, "step": STEP, "bounds": [1.0] * 6}
    return messages.RoundConfiguration(attempt=b"attempt", secure_sum=told, program={"upload": UPLOAD} | program)


async def vectors(asked):
    """Let devices take part until each has sent its vector or refused; what the server got, and why others refused."""
    rules = cohorts.rules(COUNT, graph=(2, 2), length=16, largest=256, scale=1 / STEP)
    authorities, sent = (cohorts.authority("ours")[0],), []
    server = SecureRound(AttemptName.of(asked), lambda count: rules, authorities, lambda state: None)

    def device(name):
        async def secure_sum(request):
            reply = server.answer(name, request.step, request.content)
            return Reply(state=reply.state.upper(), content=reply.content, reason=reply.reason)

        async def send(vector):
            sent.append(vector)
            return messages.UploadReply(status="LATE")

        sums = SecureSums(cohorts.identity(name), authorities, cohorts.FLOORS)
        return sums.give(SimpleNamespace(secure_sum=secure_sum), asked, UPDATE, send)

    giving = [asyncio.create_task(device(f"client{one}")) for one in range(COUNT)]
    for answers in (lambda: server.attempt.advertisements, lambda: server.attempt.dealings):
        while len(answers()) < COUNT:
            await asyncio.sleep(0.01)
        server.end_step()
    ended = await asyncio.gather(*giving, return_exceptions=True)
    assert all(isinstance(one, UnsafeSumError) for one in ended)
    return sent, {str(one) for one in ended}


@pytest.mark.parametrize(("dropout", "count"), [(0.0, COUNT), (0.1, 0)])
def test_members_that_drop_so_much_that_numbers_are_of_one_alone_send_no_vector(dropout, count):
    sent, refusals = asyncio.run(asyncio.wait_for(vectors(asked(dropout=dropout)), 20))
    assert len(sent) == count
    assert any("that drop 0.1 of what they compute" in why for why in refusals) == (not count)
