"""A server that unmasks a noised sum, says that it was abandoned, and asks for another sum of the round."""

import asyncio
import dataclasses

import pytest

from fedlm.fedlm_client.link.credentials import read_certificates
from fedlm.fedlm_client.own_participation import OwnParticipation
from fedlm.fedlm_client.secure_aggregation.device import SecureSums
from fedlm.fedlm_client.secure_aggregation.taking_part import Reply
from fedlm.fl_core.deployment.secure_aggregation.secure_round import SecureRound
from fedlm.fl_core.deployment.server.secure_collection import SecureCollection
from fedlm.fl_core.runs.driver import Run
from tests.deployment import small_deployment as small
from tests.deployment.test_secure_sums import FLOORS, NOISED, PROMPT, make_credentials

FIRST, SECOND = range(1, 6), range(6, 11)
VICTIM = "client0"


@pytest.mark.long
async def test_a_server_gets_one_sum_with_a_member_of_a_round_whatever_it_says_became_of_it(tmp_path, monkeypatch):
    """It has a member's vector, lets others sign alone, who then give the masks of all, and repeats the round with
    others. The mean of such sums would have less noise than was promised."""
    answer, record, seen, first_is_over = SecureRound.answer, SecureCollection.record, [], asyncio.Event()

    def lies(this, owner, step, content):
        if owner == VICTIM and step == "survivors":
            return Reply("over", reason="the attempt was abandoned")
        return answer(this, owner, step, content)

    def repeats(this, seconds):
        found, attempt = record(this, seconds), this._secure.attempt
        if attempt.phase == "finished":
            owners = [*attempt.advertisements]
            seen.append({owners[index] for index in attempt.survivors})
        first_is_over.set()
        return found if len(seen) == 2 else found._replace(outcome="abandoned")

    monkeypatch.setattr(SecureRound, "answer", lies)
    monkeypatch.setattr(SecureCollection, "record", repeats)
    monkeypatch.setattr(Run, "see", lambda run, done: None)
    keys, credentials = make_credentials(tmp_path / "keys", 11)
    sizes = {"cohort_size": 6, "minimum_reports": 5, "rounds": 1, "reporting_seconds": 5.0, "selection_seconds": 5.0}
    task = small.task(small.deployment(**NOISED | PROMPT | sizes))
    server = small.Server(
        dataclasses.replace(task, authorities=tuple(read_certificates(keys / "ca.pem"))), tmp_path / "run", keys=keys
    )

    def clients(numbers):
        for one in numbers:
            sums = SecureSums.read(credentials[one], FLOORS)
            counts = OwnParticipation(tmp_path / f"{one}.participation.json", require_plan=True)
            others = {"credentials": credentials[one], "sums": sums, "participation": counts}
            yield small.make_client(server.port, tmp_path, one, **others)

    async with asyncio.timeout(small.PATIENCE), server, small.running([*clients([0])]):
        async with small.running([*clients(FIRST)]):
            await first_is_over.wait()
        async with small.running([*clients(SECOND)]):
            await server.over
    assert [VICTIM in members for members in seen] == [True, False]
