"""A population: what all private runs of a server promise together."""

import asyncio
import contextlib

import pytest

from fedlm.fedlm_client.own_participation import OwnParticipation
from fedlm.fl_core.composed_settings import compose, settings_as_json
from fedlm.fl_core.deployment.roles import serve_runs
from fedlm.fl_core.deployment.runs import current_runs
from fedlm.fl_core.deployment.runs.population_settings import PopulationSettings
from fedlm.fl_core.deployment.runs.populations import Populations
from fedlm.fl_core.deployment.runs.run_maker import RunMaker, ServerRules
from fedlm.fl_core.deployment.runs.run_queue import FINISHED, PAUSED, QUEUED, STOPPED, UNAPPROVED, RunQueue
from fedlm.fl_core.deployment.runs.run_server import RunServer
from fedlm.fl_core.deployment.runs.shown_runs import RunLogs, ShownRuns
from fedlm.fl_core.deployment.server.settings import Deployment
from fedlm.fl_core.deployment.server.training import planned_reservation
from fedlm.fl_core.deployment.state.database import Database
from fedlm.fl_core.deployment.state.state_sql import sqlite_url
from fedlm.fl_core.errors import ConfigurationError, DiskError
from fedlm.fl_core.privacy.joint_statement import state_together
from fedlm.fl_core.privacy.record.ledger import PrivacyLedger
from fedlm.fl_core.runs.capabilities.budget_records import BudgetError
from fedlm.fl_core.runs.capabilities.data_budget import DataBudget
from fedlm.fl_core.runs.run_folder import QUEUE_FILE
from tests.deployment import small_deployment as small

# Two runs of these settings spend about 10.9 at this delta, and three 14.4.
PROMISED = PopulationSettings(epsilon=12.0, delta=1e-3, rounds=50, max_participations=2, min_separation=2)
RUN = small.PRIVACY | {"noise_seed": "entropy", "rounds": 3, "noise_multiplier": 1.0}


def maker():
    def complete(settings):
        return settings_as_json(compose(Deployment, **settings))

    return RunMaker(complete, lambda settings: small.task(compose(Deployment, **settings)))


def settings_of(**changes):
    return settings_as_json(small.deployment(**RUN | changes))


@contextlib.contextmanager
def opened(directory, promised=PROMISED, make=None):
    """A server that trains nothing."""
    database = Database(sqlite_url(directory / QUEUE_FILE))
    with contextlib.closing(database):
        server = RunServer(directory, database, make or maker(), lambda row: None)
        server.promise(Populations.open(directory, promised, server.queue.all()))
        yield server


async def test_a_run_that_does_not_fit_is_refused_and_what_never_began_goes_back(tmp_path):
    with opened(tmp_path) as server:
        for name in ("one", "two", "two"):
            server.submit(name, settings_of())
        with pytest.raises(BudgetError, match=r"by `fedlm serve` in .*/one, .*/two; this run does not fit: .* alone"):
            server.submit("three", settings_of())
        assert [run.name for run in server.queue.all()] == ["one", "two"], "a name that was refused is free"
        server.become("one", STOPPED)
        server.submit("three", settings_of())
        assert [run.first_round for run in server.queue.all()] == [0, 4, 8], "runs are apart as was promised"
        with pytest.raises(BudgetError):
            server.submit("four", settings_of())
    with opened(tmp_path) as server:
        told = server.populations.read(server.queue.all())[0]
        assert (told["rounds_left"], told["unit"].split(":")[0]) == (39, "client")
        shown = ShownRuns(server, server.queue._database, RunLogs(tmp_path / "logs"), None)
        values = {one.labels["of"]: one.value for one in list(shown.collect())[-1].samples}
        assert values == {"reserved": told["epsilon_reserved"], "budget": 12.0}
        beginnings = {line.split(":")[0].split()[0] for line in told["statement"]}
        assert beginnings == {"population", "rounds", "reserved", "unit", "adjacency", "vocabulary", "assumes"}
        with pytest.raises(ConfigurationError, match="at most 38 are left"):
            server.submit("long", settings_of(rounds=39, noise_multiplier=50.0))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"privacy": "none", "noise_multiplier": None, "delta": None, "noise_seed": "entropy"}, "only private runs"),
        ({"noise_seed": "experiment"}, "only private runs with secret noise"),
        ({"min_separation": 1}, "was promised 2"),
        ({"min_separation": 3}, "devices hold"),
        ({"max_participations": 1}, "take part in 2 of 3 rounds"),
        ({"population": "others"}, "populations are 'default'"),
    ],
)
async def test_a_run_that_promises_less_than_the_population_was_is_refused(tmp_path, changes, words):
    with opened(tmp_path) as server, pytest.raises(ConfigurationError, match=words):
        server.submit("one", settings_of(**changes))


async def test_an_evaluation_may_count_each_device_once(tmp_path):
    evaluate = {"client_algorithm": "evaluate", "privacy": "gaussian", "update_clip_norm": 1.0, "upload_bits": 32}
    settings = settings_of(**evaluate, max_participations=1, init_from=tmp_path)
    with opened(tmp_path) as server:
        assert server.populations.chosen(settings).complete(settings)["max_participations"] == 1


async def test_a_run_that_never_began_gives_its_numbers_back(tmp_path):
    with opened(tmp_path) as server:
        server.submit("long", settings_of(rounds=48, noise_multiplier=50.0))
        with pytest.raises(ConfigurationError, match="at most 1 are left"):
            server.submit("short", settings_of())
        server.become("long", STOPPED)
        assert server.submit("short", settings_of()).first_round == 0


async def test_what_a_forgotten_run_had_reserved_goes_back(tmp_path, monkeypatch):
    with opened(tmp_path) as server:
        server.submit("one", settings_of())
        with monkeypatch.context() as patch:
            # Killed between the two.
            patch.setattr(DataBudget, "give_back", lambda *names: None)
            server.become("one", STOPPED)
    (tmp_path / QUEUE_FILE).unlink()
    assert DataBudget(tmp_path).has_reserved("one")
    with opened(tmp_path) as server:
        assert not server.populations.all["default"].budget.has_reserved("one")


async def test_a_queue_or_folder_of_a_run_that_has_begun_is_missed(tmp_path):
    with opened(tmp_path) as server:
        one, two = (server.submit(name, settings_of()) for name in ("one", "two"))
        task = server.populations.all["default"].place(maker().make_task(one.settings), one)
        planned_reservation(task, server.folder("one")).begun("c" * 64)
        with pytest.raises(ConfigurationError, match="put it back"):
            server._task(two)
    (tmp_path / QUEUE_FILE).unlink()
    with pytest.raises(ConfigurationError, match="the queue lacks one"), opened(tmp_path):
        pass


async def test_what_was_promised_stays_and_a_server_without_a_budget_promises_nothing(tmp_path):
    with opened(tmp_path) as server:
        server.submit("one", settings_of())
    with (
        pytest.raises(ConfigurationError, match="was promised when"),
        opened(tmp_path, PopulationSettings(epsilon=13.0, delta=1e-3)),
    ):
        pass
    (tmp_path / "privacy-budget.jsonl").unlink()
    with pytest.raises(ConfigurationError, match="put it back"), opened(tmp_path):
        pass
    (tmp_path / "open").mkdir()
    with opened(tmp_path / "open", PopulationSettings()) as server:
        with pytest.raises(ConfigurationError, match="no budget of privacy"):
            server.submit("one", settings_of())
        server.submit("two", settings_of(privacy="none", noise_multiplier=None, delta=None, noise_seed="entropy"))
    with pytest.raises(ConfigurationError, match="NOT PRIVATE"), opened(tmp_path / "open"):
        pass


async def test_a_private_run_is_not_trained_before_another_person_than_its_submitter_approves_it(tmp_path):
    with opened(tmp_path) as server:
        server.rules = ServerRules(wants_approval=True)
        assert server.submit("one", settings_of(), "ann").state == UNAPPROVED
        with pytest.raises(ConfigurationError, match="somebody else"):
            server.approve("one", "ann")
        for state in (PAUSED, QUEUED):
            with pytest.raises(ConfigurationError, match="is unapproved"):
                server.become("one", state)
    with opened(tmp_path) as server:
        assert not server.queue.next_runs()
        assert server.populations.all["default"].budget.has_reserved("one")
        assert server.approve("one", "ben")[-2:] == ("ann", "ben")
        assert server.queue.next_runs()["default"].name == "one"
        with pytest.raises(ConfigurationError, match="waits for nobody"):
            server.approve("one", "ben")


class KilledError(BaseException):
    pass


@pytest.mark.parametrize("at", ["reserve", "reserved", "queued"])
async def test_a_server_that_is_killed_while_a_run_is_submitted_reserves_it_once(tmp_path, monkeypatch, at):
    kind, name = {
        "reserve": (DataBudget, "reserve"),
        "reserved": (RunQueue, "become"),
        "queued": (RunServer, "_drain_held"),
    }[at]

    def die(*arguments, **others):
        raise KilledError

    with monkeypatch.context() as patch, opened(tmp_path) as server:
        patch.setattr(kind, name, die)
        with contextlib.suppress(KilledError):
            server.submit("one", settings_of())
            await asyncio.sleep(0.1)
    with opened(tmp_path) as server:
        assert [run.state for run in server.queue.all()] == [QUEUED]
        server.submit("one", settings_of())
        server.submit("two", settings_of())
        with pytest.raises(BudgetError):
            server.submit("three", settings_of())


async def test_a_submission_that_was_cut_short_goes_past_no_budget_when_it_is_resumed(tmp_path, monkeypatch):
    def full(*arguments):
        raise DiskError("no room")

    with opened(tmp_path) as server:
        with monkeypatch.context() as patch:
            patch.setattr(DataBudget, "reserve", full)
            with pytest.raises(DiskError):
                server.submit("one", settings_of())
        server.rules = server.rules._replace(wants_approval=True)
        assert server.become("one", QUEUED).state == UNAPPROVED
        assert server.populations.all["default"].budget.has_reserved("one")


@pytest.mark.long
async def test_devices_give_all_runs_of_their_population_together_what_the_first_plan_allows(
    tmp_path, free_port, monkeypatch
):
    """Each client holds the server to the plan that it was shown first, and none has to agree to another."""
    monkeypatch.setattr(current_runs, "_NO_MORE_SECONDS", 1.0)
    folder = tmp_path / "server"
    folder.mkdir()
    with opened(folder) as server:
        for name in ("one", "two"):
            server.submit(name, settings_of())
    serving = asyncio.create_task(
        serve_runs(maker(), folder, small.endpoints(None, free_port), lambda row: None, promised=PROMISED)
    )
    own = [OwnParticipation(tmp_path / f"{number}.json", require_plan=True) for number in range(40)]
    clients = [small.make_client(free_port, tmp_path, number, participation=one) for number, one in enumerate(own)]
    async with small.running(clients):
        states = []
        while states != [FINISHED, FINISHED]:
            assert not serving.done(), serving.exception()
            await asyncio.sleep(0.2)
            with opened(folder) as server:
                states = [run.state for run in server.queue.all()]
                promised = server.populations.read(server.queue.all())[0]["epsilon_reserved"]
    serving.cancel()
    taken = [sorted(map(int, one._read().get("default", {"taken": {}})["taken"])) for one in own]
    assert all(len(numbers) <= 2 and (len(numbers) < 2 or numbers[1] - numbers[0] >= 2) for numbers in taken)
    assert {number for numbers in taken for number in numbers} == {0, 1, 2, 4, 5, 6}
    ledgers = {name: PrivacyLedger(folder / "runs" / name / "privacy/ledger.jsonl") for name in ("one", "two")}
    assert state_together(ledgers).epsilon <= promised <= 12
