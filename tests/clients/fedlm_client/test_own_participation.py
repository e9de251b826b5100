"""What a device counts itself: a hostile server gets no more of it than the first plan that it showed."""

import asyncio
import itertools
import json
import os

import jax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlm.fedlm_client import messages_pb2 as messages
from fedlm.fedlm_client.errors import ClientError
from fedlm.fedlm_client.files import held_alone, replace_whole
from fedlm.fedlm_client.link.protocol import PROTOCOL
from fedlm.fedlm_client.own_participation import OwnParticipation, asked_of_all
from fedlm.fedlm_client.training import EndedError
from fedlm.fl_core.deployment.protocol.artifacts import ServedArtifact
from fedlm.fl_core.deployment.protocol.training_program import write_training_program
from fedlm.fl_core.deployment.server.client_service import participation_plan
from fedlm.fl_core.updates.update_bytes import pack_parameters
from tests.deployment import small_deployment as small
from tests.support.serving import serving

SETTINGS = small.deployment(chunk_bytes=4096)
Outcome = messages.UploadHeader.Outcome


def plan(rounds=20, min_separation=3, max_participations=4):
    return messages.ParticipationPlan(
        rounds=rounds, min_separation=min_separation, max_participations=max_participations
    )


def asked(number, shown=None, population="people", **others):
    """What a server asks for; the first plan where none is given, and none where it is False."""
    shown = None if shown is False else shown or plan()
    return messages.RoundConfiguration(round_number=number, population=population, participation=shown, **others)


def models(count):
    """So many models, as a server offers them."""
    model = small.task(SETTINGS).model
    params = [model.init(jax.random.key(seed)) for seed in range(count)]
    return [ServedArtifact(pack_parameters(jax.device_get(one)), "float32", 4096) for one in params]


class Hostile:
    """Handlers of a server that asks for whatever rounds it likes, and says that it wants all updates."""

    def __init__(self, *wanted, status="ACCEPTED", want_bytes=True, settings=SETTINGS):
        self.wanted, self.status, self.want_bytes = list(wanted), status, want_bytes
        self.outcomes, self.updates, self.next = [], [], 0
        self.models = models(2)
        self.vocabulary = ServedArtifact([b'{"kind": "numbers"}'], "tokenizer", 4096)
        self.program = write_training_program(settings.model, small.task(settings).model, settings.training)

    async def check_in(self, peer, request):
        if self.next == len(self.wanted):
            return messages.CheckInReply(come_back=messages.ComeBack(finished=True), protocols=[PROTOCOL])
        selected, self.next = messages.RoundConfiguration(), self.next + 1
        selected.CopyFrom(self.wanted[self.next - 1])
        model = self.models[selected.client_index]
        selected.MergeFrom(
            messages.RoundConfiguration(
                attempt=bytes([self.next]),
                learning_rate=0.1,
                program=self.program,
                parameters=model.description,
                vocabulary=self.vocabulary.description,
                seconds=20.0,
            )
        )
        return messages.CheckInReply(selected=selected, protocols=[PROTOCOL])

    async def download(self, peer, request, bytes_at_once=0):
        (artifact,) = (one for one in [*self.models, self.vocabulary] if one.description.digest == request.digest)
        number = request.first_chunk
        while number < len(artifact.description.chunk_digests):
            chunk = artifact.chunk(number, bytes_at_once)
            yield chunk
            number += chunk.count

    async def upload(self, peer, upload):
        header, body, space = await upload.header(), b"", memoryview(bytearray(99_999))
        self.outcomes.append(Outcome.Name(header.outcome))
        if header.outcome == Outcome.Value("TRAINED") and self.want_bytes:
            while count := await upload.read_into(space):
                body += space[:count]
            self.updates.append(body)
        return messages.UploadReply(status=self.status)


@pytest.fixture(autouse=True)
def one_text(tmp_path, monkeypatch):
    """The device keeps its text from one life to the next."""
    made = small.store_of(tmp_path, 3)
    monkeypatch.setattr(small, "store_of", lambda folder, client: made)


def meet(handlers, folder, participation=None):
    """Let one device take part for a server until it says that the run is over; returns what the device said."""
    heard = []

    async def go():
        record = participation or OwnParticipation(folder / "record.json")
        async with asyncio.timeout(60), serving(handlers) as server:
            made = small.make_client(server.port, folder, 3, participation=record, notice=heard.append)
            await made.run_async()

    asyncio.run(go())
    return heard


def test_a_server_gets_no_more_than_the_first_plan_however_it_asks(tmp_path):
    hostile = Hostile(asked(0), asked(1), asked(2), asked(3), asked(25))
    meet(hostile, tmp_path)
    assert hostile.outcomes == ["TRAINED", "NOT_ALLOWED", "NOT_ALLOWED", "TRAINED", "NOT_ALLOWED"]
    # The device was off, and the population begins again under the same name, with the rounds of another run.
    again = Hostile(asked(3, client_index=1), asked(10), asked(6), asked(15), asked(19), asked(0, client_index=1))
    heard = meet(again, tmp_path)
    assert again.outcomes == ["NOT_ALLOWED", "TRAINED", "TRAINED", "NOT_ALLOWED", "NOT_ALLOWED", "NOT_ALLOWED"]
    assert len(again.updates) == 2
    assert any("taken part 4 times, as often as the plan allows" in words for words in heard)
    assert any("less than 3 rounds away" in words for words in heard)


@pytest.mark.parametrize(
    ("looser", "what"),
    [
        (plan(rounds=21), "a plan that allows more"),
        (plan(min_separation=2), "a plan that allows more"),
        (plan(max_participations=5), "a plan that allows more"),
        (messages.ParticipationPlan(rounds=20, min_separation=3), "a plan that allows more"),
        (False, "shows no plan"),
        (messages.ParticipationPlan(rounds=20), "a plan without rounds, participations or a separation"),
    ],
    ids=["rounds", "separation", "participations", "unbounded", "none", "nonsense"],
)
def test_a_looser_plan_ends_the_client_until_its_owner_agrees(tmp_path, looser, what):
    hostile = Hostile(asked(0), asked(7, looser))
    with pytest.raises(ClientError, match=what):
        meet(hostile, tmp_path)
    assert len(hostile.updates) == 1
    with pytest.raises(ClientError, match=what):
        meet(Hostile(asked(7, looser)), tmp_path)


def test_another_population_is_refused_and_a_tighter_plan_is_kept(tmp_path):
    hostile = Hostile(asked(0), asked(9, population="others"))
    with pytest.raises(ClientError, match="'others', but this device is one of 'people'"):
        meet(hostile, tmp_path)
    tighter = plan(min_separation=6)
    kept = Hostile(asked(5, tighter), asked(6, tighter), asked(9))
    meet(kept, tmp_path)
    assert kept.outcomes == ["NOT_ALLOWED", "TRAINED", "TRAINED"]


def test_an_attempt_that_is_made_again_gets_the_same_update_and_nothing_else(tmp_path):
    hostile = Hostile(asked(4), asked(4), asked(4, client_index=1), asked(4))
    meet(hostile, tmp_path)
    assert hostile.outcomes == ["TRAINED", "TRAINED", "NOT_ALLOWED", "TRAINED"]
    assert len(set(hostile.updates)) == 1
    # Not with other text.
    small.store_of(tmp_path, 3).append(["9 9 9"])
    changed = Hostile(asked(4))
    meet(changed, tmp_path)
    assert changed.outcomes == ["NOT_ALLOWED"]


def test_with_layers_of_its_own_too_an_attempt_that_is_made_again_gets_the_same_update(tmp_path):
    personal = small.deployment(chunk_bytes=4096, personal_layers=("head",))
    # What the first request began with is gone after another one, so that it would get another update.
    hostile = Hostile(asked(4), asked(4), asked(9), asked(9), asked(4), settings=personal)
    meet(hostile, tmp_path)
    assert hostile.outcomes == ["TRAINED"] * 4 + ["NOT_ALLOWED"]
    first, again, second, again_second = hostile.updates
    assert first == again
    assert second == again_second
    assert first != second


def test_a_round_of_a_secure_sum_gets_one_vector_in_all_lives_of_the_device(tmp_path):
    """A noised sum has other noise in each attempt, so a server must not have several."""
    record, noised = OwnParticipation(tmp_path / "record.json"), {"secure_sum": messages.SecureSum(clip_norm=1.0)}
    assert record.may(asked(4, **noised), "text") == ""
    record.take(asked(4, **noised), "text")
    for device in (record, OwnParticipation(tmp_path / "record.json")):
        assert "rounds away" in device.may(asked(4, attempt=b"says it was abandoned", **noised), "text")
        assert device.may(asked(7, **noised), "text") == ""


def exact(number, **others):
    return asked(number, False, secure_sum=messages.SecureSum(clip_norm=1.0), **{"run": "one"} | others)


def test_a_run_without_a_plan_gets_one_exact_sum_of_a_round(tmp_path):
    """The difference of two sums is the update of who is in one alone."""
    record = OwnParticipation(tmp_path / "record.json")
    assert record.may(exact(4), "text") == ""
    record.take(exact(4), "text")
    for device in (record, OwnParticipation(tmp_path / "record.json")):
        for number in (3, 4):
            assert "in a sum of that round" in device.may(exact(number, attempt=b"once more"), "text")
        assert device.may(exact(5), "text") == ""
        # A label of a run costs a server nothing.
        with pytest.raises(ClientError, match="of another run"):
            device.may(exact(0, run="another"), "text")


def test_the_owner_lets_another_run_have_exact_sums_but_never_a_round_of_the_same_run_twice(tmp_path):
    path = tmp_path / "record.json"
    for number, run in enumerate(("one", "another", "one", "one")):
        device = OwnParticipation(path, accept_plan=number > 0)
        for round_number in range(2 * number, 2 * number + 2):
            assert device.may(exact(round_number, run=run), "text") == ""
            device.take(exact(round_number, run=run), "text")
        assert json.loads(path.read_text()).get("populations", {}) == {}
        again = OwnParticipation(path, accept_plan=True)
        assert "in a sum of that round" in again.may(exact(round_number, run=run), "text")


@pytest.mark.parametrize(("before", "after"), [((), ["people"]), (["people"], ()), (["others"], ["others", "people"])])
def test_no_name_of_a_population_gets_a_second_sum_of_a_round(tmp_path, before, after):
    """Whatever the server calls it, and whatever its owner begins to name."""
    device = OwnParticipation(tmp_path / "record.json", populations=before)
    device.take(exact(4, population="others"), "text")
    named = OwnParticipation(tmp_path / "record.json", populations=after)
    assert "in a sum of that round" in named.may(exact(4), "text")
    assert named.may(exact(5), "text") == ""
    if "others" not in after:
        with pytest.raises(ClientError, match="of another run"):
            named.may(exact(5, run="another"), "text")


def test_each_population_that_the_owner_names_has_exact_sums_of_a_run(tmp_path):
    def ask(device, number, run, population):
        asked = exact(number, run=run, population=population)
        if not (why := device.may(asked, "text")):
            device.take(asked, "text")
        return why

    named = {"populations": ["people", "others"]}
    for life in range(2):
        device = OwnParticipation(tmp_path / "record.json", **named)
        for population in named["populations"]:
            assert bool(ask(device, 4, f"of {population}", population)) == life
            assert "in a sum of that round" in ask(device, 4, f"of {population}", population)
            with pytest.raises(ClientError, match="of another run"):
                ask(device, 5, "another", population)
    agreeing = OwnParticipation(tmp_path / "record.json", accept_plan=True, **named)
    assert ask(agreeing, 0, "another", "others") == ""
    again = OwnParticipation(tmp_path / "record.json", **named)
    assert "in a sum of that round" in ask(again, 4, "of people", "people")


def test_members_of_a_sum_name_all_that_their_updates_follow_from():
    one = asked(4, run="one", secure_sum=messages.SecureSum(bounds=[2.0]))
    others = [
        {"learning_rate": 1e-30},
        {"seed": 9},
        {"run": "another"},
        {"round_number": 5},
        {"program": messages.TrainingProgram(batch_size=3)},
        {"parameters": messages.Artifact(digest=b"of another model")},
        {"vocabulary": messages.Artifact(digest=b"of another text")},
        {"secure_sum": messages.SecureSum(bounds=[1e300])},
    ]
    names = {asked_of_all(one)}
    for other in others:
        changed = messages.RoundConfiguration()
        changed.CopyFrom(one)
        changed.MergeFrom(messages.RoundConfiguration(**other))
        names.add(asked_of_all(changed))
    assert len(names) == 1 + len(others)
    alike = messages.RoundConfiguration(
        attempt=b"2", client_index=7, seconds=3.0, population="other", plan=messages.Plan(signature=b"s")
    )
    one.MergeFrom(alike)
    assert asked_of_all(one) in names


def test_what_no_server_wanted_is_not_counted(tmp_path):
    record = tmp_path / "record.json"
    meet(Hostile(asked(0), status="LATE", want_bytes=False), tmp_path)
    assert json.loads(record.read_text())["populations"]["people"]["taken"] == {}
    meet(Hostile(asked(1)), tmp_path)
    assert [*json.loads(record.read_text())["populations"]["people"]["taken"]] == ["1"]
    assert record.stat().st_mode & 0o777 == 0o600


def test_a_server_that_wants_no_update_is_not_told_for_ever_what_training_came_to(tmp_path):
    """A loss of a model that a server makes up says what the text is."""
    shown = plan(max_participations=2)
    asks = (asked(0, shown, seed=seed) for seed in (1, 2, 2, 3, 4, 5))
    # It wants no update: it reads what training came to, which precedes it.
    curious = Hostile(*asks, status="LATE", want_bytes=False)
    heard = meet(curious, tmp_path)
    assert curious.outcomes == ["TRAINED"] * 5 + ["NOT_ALLOWED"]
    assert any("whose updates no server took" in words for words in heard)
    # Nor of another round, in another life of the device. What was told may be asked again, and be sent.
    again = Hostile(asked(9, shown), asked(0, shown, seed=2), asked(9, shown))
    meet(again, tmp_path)
    assert again.outcomes == ["NOT_ALLOWED", "TRAINED", "TRAINED"]


@pytest.mark.parametrize("outcome", ["NOT_FINITE", "TOO_SLOW"])
def test_training_that_came_to_no_update_is_told_as_often_as_other(tmp_path, monkeypatch, outcome):
    """Whether a model of a server's making comes to numbers on some text, in time, says something of the text."""

    def train(*given, before_step, **named):
        if outcome == "TOO_SLOW":
            raise EndedError(Outcome.Value(outcome))

    monkeypatch.setattr("fedlm.clients.device.jax_trainer.train_locally", train)
    curious = Hostile(*(asked(0, plan(max_participations=5), seed=seed) for seed in range(6)))
    meet(curious, tmp_path)
    assert curious.outcomes == [outcome] * 5 + ["NOT_ALLOWED"]


def test_rounds_of_all_runs_of_a_population_count_by_one_numbering():
    own, text, later = OwnParticipation(), (1, 1), plan()
    own.take(asked(1), text)
    later.first_round = 3
    assert "rounds away" in own.may(asked(0, later), text)
    assert own.may(asked(1, later), text) == ""
    later.first_round = 19
    assert "has 20 rounds" in own.may(asked(1, later), text)


def test_the_owner_agrees_once(tmp_path):
    record, text = tmp_path / "record.json", (1, 1)
    first = OwnParticipation(record)
    assert first.may(asked(0), text) == ""
    first.take(asked(0), text)
    agreeing = OwnParticipation(record, accept_plan=True)
    looser = plan(min_separation=1)
    assert agreeing.may(asked(1, looser), text) == ""
    with pytest.raises(ClientError, match="--accept-plan"):
        agreeing.may(asked(2, plan(rounds=99)), text)
    # What was taken stays counted.
    assert "rounds away" in OwnParticipation(record).may(asked(0, looser, learning_rate=0.5), text)
    agreeing = OwnParticipation(record, accept_plan=True)
    assert agreeing.may(asked(1, population="others"), text) == ""
    assert agreeing.may(asked(1, looser), text) == ""
    # But not to be asked uncounted.
    with pytest.raises(ClientError, match="another --record"):
        OwnParticipation(record, accept_plan=True).may(asked(50, False), text)


def test_a_plan_may_be_required_and_without_privacy_there_is_none():
    assert participation_plan(small.deployment()) is None
    assert OwnParticipation().may(asked(0, False), (0, 0)) == ""
    with pytest.raises(ClientError, match="leave out --require-plan"):
        OwnParticipation(require_plan=True).may(asked(0, False), (0, 0))
    assert OwnParticipation(require_plan=True).may(asked(0), (0, 0)) == ""


@pytest.mark.parametrize("content", ["", "[]", '{"populations": {"a": {}}}', '{"populations": {"a": {"plan": [1]}}}'])
def test_a_damaged_record_is_named(tmp_path, content):
    (tmp_path / "record.json").write_text(content)
    with pytest.raises(ClientError, match=r"record\.json: not a record of what this device took part in"):
        OwnParticipation(tmp_path / "record.json").may(asked(0), (0, 0))


def test_nothing_is_sent_that_cannot_be_counted(tmp_path, monkeypatch):
    def full(path, content, private=False):
        if '"0":' in content:
            raise OSError(28, "No space left on device")
        replace_whole(path, content, private)

    monkeypatch.setattr("fedlm.fedlm_client.files.replace_whole", full)
    hostile = Hostile(asked(0))
    with pytest.raises(ClientError, match="cannot be written"):
        meet(hostile, tmp_path)
    assert not any(hostile.updates)


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, 2), st.sampled_from([(8, 3, 2), (8, None, 2), (8, 2, 3)])),
        max_size=14,
    )
)
def test_whatever_a_server_asks_no_device_takes_part_more_often_than_the_first_plan_says(tmp_path_factory, asks):
    path, first, taken = tmp_path_factory.mktemp("device") / "record", None, set()
    for number, seed, (rounds, most, apart) in asks:
        shown = messages.ParticipationPlan(rounds=rounds, max_participations=most, min_separation=apart)
        one = asked(number, shown, seed=seed)
        # Each time the device has just been started again.
        record = OwnParticipation(path)
        try:
            may = record.may(one, "text") == ""
        except ClientError:
            continue
        first = first or (rounds, most or -(-rounds // apart), apart)
        if may:
            record.tell(one, "text")
            record.take(one, "text")
            taken.add((number, seed))
    if first is not None:
        numbers = sorted(number for number, _ in taken)
        assert len(numbers) <= first[1]
        assert all(after - before >= first[2] for before, after in itertools.pairwise(numbers))
        assert all(number < first[0] for number in numbers)


@pytest.mark.long
async def test_a_device_is_shown_the_plan_of_a_deployment_and_counts_as_its_server_does(tmp_path):
    settings = small.deployment(
        **small.PRIVACY | {"cohort_size": 1, "minimum_reports": 1, "over_selection": 1.0, "min_separation": 1},
        max_participations=5,
        population="people of the test",
    )
    server = small.Server(small.task(settings), tmp_path / "run")
    async with asyncio.timeout(60), server:
        record = OwnParticipation(tmp_path / "record.json", require_plan=True)
        client = small.make_client(server.port, tmp_path, 3, participation=record)
        assert await client.run_async()
    kept = json.loads((tmp_path / "record.json").read_text())["populations"]["people of the test"]
    assert kept["plan"] == [3, 5, 1]
    assert [*kept["taken"]] == ["0", "1", "2"]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["participation"] == {
        "planned": {"max_participations": 3, "min_separation": 1},
        "realised": {"clients": 1, "max_participations": 3, "min_separation": 1},
    }


def test_one_client_at_a_time_has_a_record(tmp_path):
    record = tmp_path / "mine.jsonl.participation.json"
    with (
        held_alone(record),
        pytest.raises(ClientError, match="another client counts its rounds there"),
        held_alone(record),
    ):
        pass
    with held_alone(record):
        pass
    with pytest.raises(ClientError, match="cannot be written"), held_alone(tmp_path / "nowhere" / "record"):
        pass


def test_a_count_is_on_disk_under_its_name_before_it_is_relied_on(tmp_path, monkeypatch):
    """Else a failure of power brings back an older one, and the round is given for again."""
    synced, record = [], tmp_path / "record.json"
    monkeypatch.setattr("os.fsync", lambda descriptor: synced.append((os.fstat(descriptor).st_ino, record.exists())))
    OwnParticipation(record).take(asked(0), "text")
    assert synced == [(record.stat().st_ino, False), (tmp_path.stat().st_ino, True)]
