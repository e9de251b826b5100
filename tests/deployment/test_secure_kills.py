"""A server of sums with noise of clients that is killed in each phase: what may have been seen is charged, once."""

import asyncio
import dataclasses
import os
import signal

import pytest

from fedlm.fedlm_client.link.credentials import read_certificates
from fedlm.fedlm_client.secure_aggregation.device import SecureSums
from fedlm.fl_core.deployment.endpoints import Endpoints
from fedlm.fl_core.deployment.roles import serve
from fedlm.fl_core.deployment.secure_aggregation.attempt import SecureAttempt
from fedlm.fl_core.deployment.secure_aggregation.attempts_sql import SecureAttempts
from fedlm.fl_core.deployment.state.state_sql import DATABASE_FILE, SqlState, sqlite_url
from fedlm.fl_core.deployment.transport.http_server import HttpServer
from fedlm.fl_core.deployment.transport.listeners import ListenOptions
from fedlm.fl_core.privacy.record.ledger import PrivacyLedger
from fedlm.fl_core.runs.driver import Run
from tests.deployment import kills
from tests.deployment import small_deployment as small
from tests.deployment.test_secure_sums import COUNT, FLOORS, NOISED, PROMPT, make_credentials

SETTINGS = NOISED | PROMPT | {"minimum_reports": 5, "rounds": 3, "min_separation": 1, "max_participations": 6}
# After which call of a method in the second round the process ends, and whether its sum may have been seen by then.
PLACES = {
    "dealing": (SecureAttempts, "save", lambda kept, attempt: attempt.phase == "dealing", False),
    "charged in the database alone": (SecureAttempts, "save", lambda kept, one: one.phase == "masking", False),
    "charged": (Run, "see", lambda run, done: done == 2, True),
    "masked": (SecureAttempt, "merge", lambda attempt, *given: len(attempt.survivors) == 1, True),
    "announced": (SecureAttempts, "save", lambda kept, attempt: attempt.phase == "agreeing", True),
    "agreed": (SecureAttempts, "save", lambda kept, attempt: attempt.phase == "revealing", True),
    "revealed": (SecureAttempt, "reveal", lambda attempt, *given: len(attempt.revealed) == 1, True),
    "unmasked": (SecureAttempts, "save", lambda kept, attempt: attempt.phase == "finished", True),
    "recorded": (SqlState, "record_attempt", lambda state, record, *who: record.round_number == 1, True),
}


def serve_and_end(settings, out, port, keys, place, log):
    """Run a server in a process of its own, which ends at a place as if it were killed."""
    small.log_to(log)
    if place:
        owner, name, reached, _ = PLACES[place]
        called = getattr(owner, name)

        def end_after(this, *given):
            called(this, *given)
            first = next((one for one in (this, *given) if hasattr(one, "name")), None)
            if reached(this, *given) and (first is None or first.name.round_number == 1):
                os.kill(os.getpid(), signal.SIGKILL)

        setattr(owner, name, end_after)
    task = dataclasses.replace(small.task(settings), authorities=tuple(read_certificates(keys / "ca.pem")))
    options = ListenOptions(f"127.0.0.1:{port}", keys=keys)
    asyncio.run(serve(task, out, Endpoints(lambda handlers: HttpServer(handlers, options)), small.log_release))


@pytest.mark.long
@pytest.mark.parametrize("place", PLACES)
async def test_a_round_counts_from_the_moment_at_which_its_sum_may_be_seen(tmp_path, free_port, place):
    keys, credentials = make_credentials(tmp_path / "keys")
    settings, out = small.deployment(**SETTINGS), tmp_path / "run"
    clients = [
        small.make_client(free_port, tmp_path, one, credentials=mine, sums=SecureSums.read(mine, FLOORS))
        for one, mine in enumerate(credentials)
    ]
    async with small.running(clients):
        for life, end in enumerate((place, "")):
            log = tmp_path / f"{life}.log"
            process = small.in_process(serve_and_end, settings, out, free_port, keys, end, log)
            try:
                await asyncio.to_thread(process.join, small.PATIENCE)
                assert process.exitcode == (-signal.SIGKILL if end else 0), log.read_text()[-2000:]
            finally:
                process.kill()
    url, seen = sqlite_url(out / DATABASE_FILE), PLACES[place][-1]
    kills.check(out, url, settings, {})
    ledger = PrivacyLedger(out / "privacy/ledger.jsonl")
    kinds = [record["kind"] for record in ledger.records]
    round_ = ["seen", "intent", "release"]
    assert kinds == ["plan", *round_, *(["seen", "restart"] if seen else round_), *round_]
    assert ledger.generations[-1][1] == 3
    (counted,) = kills.rows_of(url, "select count(*) from participations where round_number = 1")
    assert counted == (COUNT,)
