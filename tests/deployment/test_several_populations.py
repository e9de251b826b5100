"""Several populations of one server: a run of each at once, and devices that belong to more than one."""

import asyncio

import pytest

from fedlm.fedlm_client import messages_pb2 as messages
from fedlm.fedlm_client.errors import ClientError, RefusedError
from fedlm.fedlm_client.link.protocol import PROTOCOL
from fedlm.fedlm_client.own_participation import OwnParticipation
from fedlm.fl_core.deployment.roles import serve_runs
from fedlm.fl_core.deployment.runs import current_runs
from fedlm.fl_core.deployment.runs.current_runs import AnsweringRun, CurrentRuns
from fedlm.fl_core.deployment.runs.population_settings import PopulationSettings
from fedlm.fl_core.deployment.runs.run_queue import FAILED, FINISHED, STOPPED
from fedlm.fl_core.deployment.server.client_handlers import ClientHandlers, Offer
from fedlm.fl_core.deployment.server.rate_limits import RateLimiter, RateLimits
from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.runs.run_folder import lock_of_run
from tests.deployment import small_deployment as small
from tests.deployment.test_population import maker, opened, settings_of

NAMES = ("phones", "tablets")
BOTH = PopulationSettings(epsilon=12.0, delta=1e-3, rounds=50, max_participations=2, min_separation=2, population=NAMES)


class Draws:
    """A run that takes whoever checks in into its next draw, and selects it after that."""

    def __init__(self, name):
        self.asked, self.candidates = [], set()
        self.answers = AnsweringRun(name, f"people of {name}", self, self.candidates.__contains__)

    async def check_in(self, peer, request):
        self.asked.append(peer)
        self.candidates.add(peer)
        return messages.CheckInReply(come_back=messages.ComeBack(seconds=1))


def asking(*populations):
    return messages.CheckInRequest(protocol=PROTOCOL, populations=populations)


async def test_a_client_of_two_populations_has_to_do_with_one_run_at_a_time():
    one, two, runs = Draws("one"), Draws("two"), CurrentRuns()
    for run in (one, two):
        runs.begin(run.answers)
    for _ in range(20):
        await runs.check_in("ann", asking("people of one", "people of two"))
    assert sorted(map(len, (one.asked, two.asked))) == [0, 20]
    first, other = (one, two) if one.asked else (two, one)
    first.candidates.clear()
    first.check_in = other.check_in
    runs.end(first.answers.population)
    await runs.check_in("ann", asking("people of one", "people of two"))
    assert other.asked == ["ann"], "the other run has it once the first has let it go"


async def test_a_client_is_asked_for_runs_of_its_own_populations_and_for_the_first_one_s_where_it_names_none():
    one, two, runs = Draws("one"), Draws("two"), CurrentRuns()
    for run in (one, two):
        runs.begin(run.answers)
    runs.first = "people of one"
    for name in ("ian", "joe", "kim", "lea", "mia", "ned"):
        await runs.check_in(name, asking())
    assert (len(one.asked), two.asked) == (6, []), "also where nothing is promised"
    one.asked.clear()
    runs.promised = ("people of two", "people of one")
    await runs.check_in("ann", asking("people of one", "strangers"))
    for name in ("ben", "cleo", "dora", "eve", "fay", "gus"):
        await runs.check_in(name, asking())
    assert (one.asked, len(two.asked)) == (["ann"], 6)
    with pytest.raises(RefusedError, match="populations are 'people of two', 'people of one'"):
        await runs.check_in("hal", asking("strangers"))


async def test_two_check_ins_of_a_client_at_once_have_to_do_with_one_run():
    class Slow(Draws):
        async def check_in(self, peer, request):
            await asyncio.sleep(0)
            return await super().check_in(peer, request)

    one, two, runs = Slow("one"), Slow("two"), CurrentRuns()
    for run in (one, two):
        runs.begin(run.answers)
    for name in map(str, range(20)):
        await asyncio.gather(*(runs.check_in(name, asking("people of one", "people of two")) for _ in range(2)))
    assert not one.candidates & two.candidates


async def test_the_server_of_one_run_refuses_a_device_of_other_people():
    offer, limiter = Offer(messages.TrainingProgram(), None, "phones", None), RateLimiter(RateLimits.for_rounds(0, 1))
    handlers = ClientHandlers(None, offer, None, pacing=None, limiter=limiter)
    with pytest.raises(
        RefusedError, match=r"is of the population 'phones', but the client of 'tablets'.*--accept-plan"
    ):
        await handlers.check_in("ann", asking("tablets"))


def test_a_device_takes_the_first_plan_of_each_of_its_populations_and_trains_for_no_other(tmp_path):
    def asked(population, rounds):
        plan = messages.ParticipationPlan(rounds=rounds, min_separation=1)
        return messages.RoundConfiguration(population=population, participation=plan)

    own = OwnParticipation(tmp_path / "record.json", populations=NAMES)
    for name in NAMES:
        assert own.may(asked(name, 9), "text") == ""
        own.take(asked(name, 9), "text")
    with pytest.raises(ClientError, match="belongs to 'phones', 'tablets'"):
        own.may(asked("others", 9), "text")
    assert OwnParticipation(tmp_path / "record.json").belongs_to() == list(NAMES)
    agreeing = OwnParticipation(tmp_path / "record.json", accept_plan=True, populations=NAMES)
    for name in NAMES:
        assert agreeing.may(asked(name, 10), "other text").startswith("it took part in a round less than 1")
    with pytest.raises(ClientError, match="allows more"):
        agreeing.may(asked("phones", 11), "text")


def test_a_device_that_was_shown_a_plan_takes_no_round_without_one_for_another_population():
    uncounted = messages.RoundConfiguration(population="tablets")
    for accept_plan in (False, True):
        own = OwnParticipation(populations=NAMES, accept_plan=accept_plan)
        assert own.may(uncounted, "text") == ""
        plan = messages.ParticipationPlan(rounds=9, min_separation=1)
        assert own.may(messages.RoundConfiguration(population="phones", participation=plan), "text") == ""
        with pytest.raises(ClientError, match=r"shows no plan .*, but one was shown before"):
            own.may(uncounted, "text")


async def test_each_population_has_a_budget_of_its_own_and_one_may_be_added(tmp_path):
    with opened(tmp_path) as server:
        for name in ("one", "two"):
            server.submit(name, settings_of())
    with opened(tmp_path, BOTH) as server, pytest.raises(ConfigurationError, match="'default', 'phones', 'tablets'"):
        server.submit("three", settings_of(population="others"))
    with opened(tmp_path, PopulationSettings()) as server:
        assert server.submit("three", settings_of(population="tablets")).first_round == 0
        assert server.become("three", STOPPED).population == "tablets"
        told = {one["name"]: one["epsilon_reserved"] > 0 for one in server.populations.read(server.queue.all())}
    assert told == {"default": True, "phones": False, "tablets": False}


async def test_a_damaged_database_of_a_run_fails_that_run_and_no_other(tmp_path):
    with opened(tmp_path) as server:
        for name in ("one", "two"):
            run = server.submit(name, settings_of())
            # The next run counts what the first one's clients gave.
            lock_of_run(server.folder("one"), True).close()
            (server.folder("one") / "state.db").write_bytes(b"garbage" * 2000)
            await server._train(run)
            failed = server.queue.find(name)
            assert failed.state == FAILED
            assert "runs/one/state.db: is damaged" in failed.reason


@pytest.mark.long
async def test_two_populations_train_at_once_and_a_device_of_both_is_counted_in_each_apart(
    tmp_path, free_port, monkeypatch
):
    monkeypatch.setattr(current_runs, "_NO_MORE_SECONDS", 1.0)
    (folder := tmp_path / "server").mkdir()
    with opened(folder, BOTH) as server:
        for name in NAMES:
            server.submit(name, settings_of(population=name, rounds=2))
    rows = []
    endpoints = small.endpoints(None, free_port)
    serving = asyncio.create_task(serve_runs(maker(), folder, endpoints, rows.append, promised=BOTH))
    # Rounds of 8 clients: neither run has two rounds without some of those in both.
    of = [NAMES[:1]] * 4 + [NAMES[1:]] * 4 + [NAMES] * 16
    own = [OwnParticipation(tmp_path / f"{number}.json", populations=names) for number, names in enumerate(of)]
    clients = [small.make_client(free_port, tmp_path, number, participation=one) for number, one in enumerate(own)]
    async with small.running(clients):
        states = []
        while states != [FINISHED, FINISHED]:
            assert not serving.done()
            await asyncio.sleep(0.2)
            with opened(folder, PopulationSettings()) as server:
                states = [run.state for run in server.queue.all()]
    serving.cancel()
    taken = [{name: set(found["taken"]) for name, found in one._read().items()} for one in own]
    for names, found in zip(of, taken, strict=True):
        assert set(found) <= set(names)
        assert all(len(numbers) <= 2 for numbers in found.values())
    assert [sum(len(found.get(name, ())) for found in taken) >= 16 for name in NAMES] == [True, True]
    assert any(len(found) == 2 for found in taken), "some device took part in both"
    assert [row["round"] for row in rows] != [0, 1, 0, 1], "one run did not wait for the end of the other"
