"""Killing the process that runs the rounds of a private deployment, and what must hold however often that happens."""

import asyncio
import json
import os
import signal
import time
from collections import Counter, defaultdict

import numpy as np
from sqlalchemy import text

from fedlm.fedlm_client import messages_pb2 as messages
from fedlm.fedlm_client.link.http_channel import HttpChannel
from fedlm.fl_core.deployment.state.database import Database
from fedlm.fl_core.privacy.promise.guarantee import account
from fedlm.fl_core.privacy.record.ledger import PrivacyLedger
from fedlm.fl_core.privacy.statement import state
from tests.deployment import small_deployment as small

SETTINGS = small.PRIVACY | {
    "noise_seed": "entropy",
    "min_separation": 3,
    "max_participations": 4,
    "rounds": 12,
    "cohort_size": 2,
    "minimum_reports": 2,
    "over_selection": 1.5,
    "reporting_seconds": 5.0,
}
# More than a server without kills would need: a device counts an update too that a killed server has forgotten.
CLIENTS = 20
# What to wait for before a kill, and how many seconds may pass from there on.
AIMS = {"anything": 4.0, "selected": 0.03, "finished": 0.25, "opened": 0.2, "reported": 0.0}


def rows_of(url, query):
    database = Database(url)
    try:
        with database.reading() as connection:
            return connection.execute(text(query)).fetchall()
    finally:
        database.close()


class Seen:
    """What clients saw: the models of each round, who was selected and who reported in each attempt, and whether there
    was an answer since a kill."""

    def __init__(self):
        self.models, self.answered = defaultdict(set), True
        self.selected, self.reported = Counter(), Counter()

    @property
    def reports(self):
        """Of the newest attempt that had an answer."""
        return next(reversed(self.reported.values()), 0)

    def clients(self, port, folder):
        """Clients on a port whose connections are watched."""
        clients = [small.make_client(port, folder, one) for one in range(CLIENTS)]
        for one, client in enumerate(clients):
            client._dial = lambda name=f"client{one}": Watched(f"127.0.0.1:{port}", name, self)
        return clients


class Watched(HttpChannel):
    """Notes what a client sees."""

    def __init__(self, server, name, seen):
        super().__init__(server, name)
        self._seen, self._attempt = seen, None

    async def check_in(self, request):
        reply = await super().check_in(request)
        self._seen.answered = True
        if reply.HasField("selected"):
            self._attempt = reply.selected.attempt.hex()
            self._seen.selected[self._attempt] += 1
            self._seen.models[reply.selected.round_number].add(reply.selected.parameters.digest)
        return reply

    async def upload(self, header, pieces):
        reply = await super().upload(header, pieces)
        self._seen.reported[self._attempt] += reply.status == messages.UploadReply.ACCEPTED
        return reply


class Life:
    """One life of the process that runs the rounds, from its start to its end or its kill."""

    def __init__(self, serve, words, log):
        self._log = log
        self.process = small.in_process(serve, *words, log)

    def events(self):
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def count(self, event):
        return sum(one["event"] == event for one in self.events())

    async def until(self, reached, seconds=small.PATIENCE):
        """Wait for something, or the end, so long at most; returns whether the process lives on."""
        end = time.monotonic() + seconds
        while self.process.is_alive() and time.monotonic() < end and not reached():
            await asyncio.sleep(0.003)
        return self.process.is_alive()

    async def until_aim(self, aim, seen, rng):
        """Wait until an instant that is to be the last one."""
        rounds, selected = int(rng.integers(1, 4)), seen.selected.total()
        if aim == "anything":
            if rng.random() < 0.75:
                # Else it may die before it answers anybody.
                await self.until(lambda: seen.answered)
        elif aim == "selected":
            await self.until(lambda: seen.selected.total() >= selected + rounds)
        else:
            event = "round_finished" if aim == "finished" else "round_opened"
            await self.until(lambda: self.count(event) >= rounds)
            if aim == "reported":
                before = len(seen.reported)
                await self.until(lambda: len(seen.reported) > before and seen.reports == 1)
        # What matters is decided soon after an event.
        part = rng.uniform() if aim == "anything" else rng.uniform() ** 3
        return await self.until(lambda: False, AIMS[aim] * part)

    def kill(self):
        if self.process.is_alive():
            os.kill(self.process.pid, signal.SIGKILL)
        self.process.join()


async def run_and_kill(serve, words, out, seen, rng, kills):
    """Run a server until its run is over, and kill it so many times at most.

    Args:
      serve: runs one in a process of its own.
      words: its arguments, but for the log.
      out: folder of the run.
      seen: by the clients, which run beside this.
      rng: chooses instants.
      kills: they go through `AIMS` in turn.

    Returns:
      How many kills there were.
    """
    killed = lives = 0
    while not (out / "summary.json").exists():
        lives += 1
        life = Life(serve, words, out.with_name(f"{out.name}-{lives}.log"))
        try:
            if killed < kills:
                survived = await life.until_aim(list(AIMS)[killed % len(AIMS)], seen, rng)
            else:
                survived = await life.until(lambda: False)
                assert not survived, "the server does not come to its end"
        finally:
            life.kill()
        assert life.process.exitcode == (-signal.SIGKILL if survived else 0)
        killed, seen.answered = killed + survived, False
    return killed


async def run_and_take_over(serve, words, out, seen, rng, takeovers, freeze=False):
    """Run two servers of one run until it is over, of which one stands by, and each time that one leads, kill it, or
    freeze it until the other leads.

    One that is frozen within a write holds the database, so that nobody can take over before it wakes.

    See `run_and_kill` for the arguments. Returns how often the lead went over.
    """
    lives, taken, standby = [], 0, None

    def begin():
        lives.append(Life(serve, words, out.with_name(f"{out.name}-{len(lives) + 1}.log")))
        return lives[-1]

    async def says(life, event, seconds=small.PATIENCE):
        assert await life.until(lambda: life.count(event), seconds), "it ended"
        return life.count(event)

    try:
        leader = begin()
        while not (out / "summary.json").exists():
            await says(leader, "leading")
            standby = standby or begin()
            if taken == takeovers:
                assert not await leader.until(lambda: False), "the server does not come to its end"
                break
            await says(standby, "standing_by")
            if not await leader.until_aim(list(AIMS)[taken % len(AIMS)], seen, rng):
                break
            os.kill(leader.process.pid, signal.SIGSTOP if freeze else signal.SIGKILL)
            began = time.monotonic()
            if not await says(standby, "leading", 10.0):
                assert freeze, "the other does not go on within ten seconds"
                print("it was frozen within a write", flush=True)
                os.kill(leader.process.pid, signal.SIGCONT)
                continue
            print(f"the other leads after {time.monotonic() - began:.1f} s", flush=True)
            if freeze:
                await says(standby, "round_released")
                os.kill(leader.process.pid, signal.SIGCONT)
                assert not await leader.until(lambda: False, 30.0), "who was taken over from goes on"
                assert leader.process.exitcode == 1
            leader.process.join()
            leader, standby, taken, seen.answered = standby, None, taken + 1, False
    finally:
        for life in lives:
            life.kill()
    return taken


async def run_until_killed(folder, most, run_once):
    """Run deployments, each in a folder of its own, until there were so many kills.

    Args:
      folder: of which each run gets a folder.
      most: kills.
      run_once: from the run's folder, a random generator and the kills that are left to how many there were.
    """
    rng, killed, runs = np.random.default_rng(int(time.time() * 1e6)), 0, 0
    while killed < most:
        runs += 1
        one = folder / str(runs)
        one.mkdir()
        killed += await run_once(one, rng, most - killed)
        print(f"{killed} kills in {runs} runs", flush=True)


def check(out, url, settings, models):
    """Check what a private run promises, once it is over.

    Args:
      out: folder of the run.
      url: of its database.
      settings: of the deployment.
      models: by round, the digests of the models that clients were given.
    """
    assert all(len(digests) == 1 for digests in models.values()), "two models went out with the noise of one round"
    ledger = PrivacyLedger(out / "privacy/ledger.jsonl")
    releases = [record["rounds"] for record in ledger.records if record["kind"] == "release"]
    assert releases == sorted(set(releases))
    assert {rounds for (rounds,) in rows_of(url, "select rounds from releases")} <= set(releases)
    assert state(ledger).own.epsilon <= account(ledger.plan, settings.privacy.delta).epsilon * (1 + 1e-6)

    took_part = defaultdict(list)
    for number, client in rows_of(url, "select round_number, client from participations order by round_number"):
        took_part[client].append(number)
    for rounds in took_part.values():
        assert min(np.diff(rounds), default=settings.min_separation) >= settings.min_separation, "too soon again"
        assert len(rounds) <= settings.max_participations
    finished = rows_of(url, "select round_number, reported from attempts where outcome = 'finished'")
    assert len(finished) == len({number for number, _ in finished}), "a round counted twice"
    assert sum(reported for _, reported in finished) == sum(map(len, took_part.values()))
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    recorded = [row["round"] for row in rows]
    assert recorded == sorted(set(recorded))
    assert [row["clients"] for row in rows] == [
        sum(number in rounds for rounds in took_part.values()) for number in recorded
    ]
    assert {rounds - 1 for rounds in releases} == set(recorded) <= {number for number, _ in finished}
