"""Devices in an exact sum, from an update to what they send."""

import asyncio
from types import SimpleNamespace

from fedlm.fedlm_client import messages_pb2 as messages
from fedlm.fedlm_client.errors import UnsafeSumError
from fedlm.fedlm_client.secure_aggregation.device import SecureSums, take_on, why_unsafe
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
    """Let devices take part until each has sent its vector or refused; what the server got."""
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
    return sent


def test_a_device_takes_part_in_an_exact_sum_without_dropout_alone():
    assert len(asyncio.run(asyncio.wait_for(vectors(asked()), 20))) == COUNT
    sums = SecureSums(cohorts.identity("client0"), (), cohorts.FLOORS)
    for rate in (1e-300, 0.1, -1.0, float("nan")):
        assert "may tell its members apart" in why_unsafe(sums, asked(dropout=rate))
    noised = asked(dropout=0.1)
    noised.participation.rounds, noised.secure_sum.noise.bits = 1, 20
    assert why_unsafe(sums, asked()) == why_unsafe(sums, noised) == ""


def test_a_device_draws_from_another_index_in_each_round_and_run_and_the_same_in_each_attempt():
    def index(sums, **others):
        one = messages.RoundConfiguration(secure_sum={"clip_norm": 1.0}, client_index=7)
        one.MergeFrom(messages.RoundConfiguration(**others))
        take_on(one, sums, by_plan=False)
        return one.client_index

    one, other = (SecureSums(cohorts.identity("client0"), (), cohorts.FLOORS) for _ in range(2))
    rounds = [{"run": "a"}, {"run": "b"}, {"round_number": 1}, {"seed": 3}]
    assert len({index(sums, **asked) for sums in (one, other) for asked in rounds}) == 8
    assert len({index(one, attempt=attempt, client_index=3, seconds=2.0) for attempt in (b"1", b"2")}) == 1
