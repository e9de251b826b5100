"""A program's own experiment: parts by object, on data in memory, with callbacks."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedlm
from fedlm.fl_core.errors import CheckpointError, ConfigurationError, DataError
from fedlm.fl_core.runs.checkpoints import parameters_digest
from fedlm.models.cifg import CifgConfig, cifg
from fedlm.models.losses import ExampleSums
from fedlm.simulations.data.client_text import ClientText
from fedlm.simulations.data.importing import ImportSettings, import_text
from fedlm.simulations.data.sources.in_memory import InMemoryText
from tests.conftest import texts_of_sixty_clients

pytestmark = pytest.mark.usefixtures("quick_compilation")

TINY = fedlm.ModelEntry(cifg, CifgConfig(embedding=4, hidden=6))
SETTINGS = {
    "model": TINY,
    "rounds": 4,
    "cohort_size": 5,
    "length": 6,
    "client_learning_rate": 0.5,
    "evaluate_every": 1,
    "checkpoint_every": 2,
}
PRIVATE = {
    "privacy": "gaussian",
    "noise_multiplier": 2.0,
    "update_clip_norm": 0.1,
    "cohort_sampler": "min_separation",
}


@pytest.fixture(scope="module")
def texts():
    return texts_of_sixty_clients()


@pytest.fixture(scope="module")
def data(texts):
    return fedlm.DataInMemory.from_texts(texts, vocabulary_size=80)


class Watch(fedlm.Callback):
    """Keeps what it is told."""

    def __init__(self):
        self.settings, self.rounds, self.ended, self.failed = None, [], [], []

    def on_begin(self, settings):
        self.settings = dict(settings)

    def on_round(self, finished):
        self.rounds.append(finished)

    def on_end(self, summary):
        self.ended.append(summary["status"])

    def on_failure(self, error):
        self.failed.append(str(error))


class StopAt(fedlm.Callback):
    may_stop = True

    def __init__(self, round_number):
        self.round_number = round_number

    def on_round(self, finished):
        return finished.row["round"] == self.round_number


@pytest.mark.long
def test_data_in_memory_is_the_store_that_an_import_makes(texts, data, tmp_path):
    source = InMemoryText([ClientText(client, found) for client, found in texts.items()])
    import_text("made up", source, tmp_path / "store", ImportSettings(vocabulary_size=80), workers=1)
    store = fedlm.TokenStore.open(tmp_path / "store")
    for what in ("fingerprint", "vocabulary_size", "vocabulary_origin"):
        assert getattr(data, what) == getattr(store, what)
    for name in ("train", "heldout", "test"):
        ours, theirs = data.split(name), store.split(name)
        assert ours.client_ids == theirs.client_ids
        for index in range(len(ours.client_ids)):
            np.testing.assert_array_equal(ours.sequences(index, 6), theirs.sequences(index, 6))
    in_memory = fedlm.simulate(data=data, **SETTINGS)
    stored = fedlm.simulate(data=store, out=tmp_path / "run", **SETTINGS)
    assert in_memory.summary["parameters_sha256"] == stored.summary["parameters_sha256"]
    assert in_memory.summary["test_loss"] == stored.summary["test_loss"]


def test_tokens_in_memory_are_the_texts_they_were_made_of(texts, data):
    tokens = {client: data.tokenizer.encode_batch(found) for client, found in texts.items()}
    same = fedlm.DataInMemory.from_tokens(tokens, data.vocabulary_size)
    for name in ("train", "heldout", "test"):
        assert same.split(name).digest() == data.split(name).digest()


def test_data_in_memory_say_where_their_vocabulary_comes_from(texts, data, tmp_path):
    data.tokenizer.save(tmp_path / "tokenizer.json")
    for vocabulary in (data.tokenizer, tmp_path / "tokenizer.json"):
        given = fedlm.DataInMemory.from_texts(texts, vocabulary=vocabulary)
        public = fedlm.DataInMemory.from_texts(texts, vocabulary=vocabulary, vocabulary_origin="public")
        assert given.contents == public.contents == data.contents
        assert [found.vocabulary_origin.kind for found in (data, given, public)] == ["training text", "given", "public"]
    with pytest.raises(ConfigurationError, match="no vocabulary is given"):
        fedlm.DataInMemory.from_texts(texts, vocabulary_origin="public")


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda texts: fedlm.DataInMemory.from_texts({"ann": "a text"}), "'ann': found one text"),
        (lambda texts: fedlm.DataInMemory.from_texts({"ann": [3]}), "other things than texts"),
        (lambda texts: fedlm.DataInMemory.from_texts({1: ["a"]}), "found a int as id"),
        (lambda texts: fedlm.DataInMemory.from_texts({"ann": ["\ud800"]}), "not Unicode"),
        (lambda texts: fedlm.DataInMemory.from_texts(texts, heldout=texts), "one of the two"),
        (
            lambda texts: fedlm.DataInMemory.from_texts(texts, heldout=texts, test={}, vocabulary_size=80),
            "split test: has no example",
        ),
        (lambda texts: fedlm.DataInMemory.from_tokens({"ann": [[4, 9]]}, 9), "from 4 to 9, expected 3 to 8"),
        (lambda texts: fedlm.DataInMemory.from_tokens({"ann": [[2]]}, 9), "from 2 to 2"),
        (lambda texts: fedlm.DataInMemory.from_tokens({"ann": [[4.5]]}, 9), "dtype float64"),
        (lambda texts: fedlm.DataInMemory.from_rows({"ann": [4, 5]}, 9), "shape"),
        (lambda texts: fedlm.DataInMemory.from_rows({"a": [[1, 2]], "b": [[1, 2, 3]]}, 9), "same width"),
    ],
)
def test_data_that_does_not_do_says_why(texts, make, what):
    with pytest.raises(DataError, match=what):
        make(texts)


@pytest.mark.long
def test_a_model_that_is_not_of_language_trains_on_rows_as_they_are():
    rng = np.random.default_rng(0)
    inputs = rng.integers(0, 5, (30, 8, 4))
    rows = np.concatenate([inputs, inputs.sum(-1, keepdims=True) % 3], axis=-1)
    clients = {f"client{index}": found for index, found in enumerate(rows)}

    def classifier(classes):
        def apply(params, features):
            return features @ params["w"] + params["b"]

        def loss(params, batch):
            logits = apply(params, batch.tokens[:, :-1].astype(jnp.float32))
            label = batch.tokens[:, -1]
            each = optax.softmax_cross_entropy_with_integer_labels(logits, label)
            correct, one = (jnp.argmax(logits, -1) == label).astype(jnp.float32), jnp.ones_like(each)
            return ExampleSums(each, one, each, correct, one, correct, one)

        def init(key):
            return {"w": jnp.zeros((4, classes)), "b": jnp.zeros(classes)}

        return fedlm.Model("classifier", classes, init, apply, loss)

    run = fedlm.simulate(
        model=classifier,
        data=fedlm.DataInMemory.from_rows(clients, 3),
        rounds=2,
        cohort_size=4,
        server_optimizer=optax.sgd(1.0),
        client_learning_rate=0.05,
    )
    assert run.rows[-1]["train_loss"] < run.rows[0]["train_loss"]
    assert run.rows[0]["train_loss"] == pytest.approx(np.log(3), abs=0.2)
    with pytest.raises(ConfigurationError, match=r"length is 7, but the rows .* are 5 wide; give length 4"):
        fedlm.simulate(model=classifier, data=fedlm.DataInMemory.from_rows(clients, 3), length=7, cohort_size=4)


@pytest.mark.long
def test_an_optimizer_by_object_goes_on_where_it_was(data, tmp_path):
    chain = fedlm.named("clipped adam", optax.chain(optax.clip_by_global_norm(1.0), optax.adam(0.05)))
    settings = SETTINGS | {"server_optimizer": chain, "model": fedlm.named("tiny", TINY)}
    whole = fedlm.simulate(data=data, **settings)
    fedlm.simulate(data=data, out=tmp_path, **settings | {"rounds": 2})
    resumed = fedlm.simulate(data=data, out=tmp_path, **settings)
    assert resumed.summary["parameters_sha256"] == whole.summary["parameters_sha256"]
    assert len(resumed.rows) == 4
    assert resumed.summary["experiment"]["server_optimizer"] == "own(clipped adam)"
    again = fedlm.simulate(data=data, out=tmp_path, **settings)
    assert parameters_digest(again.params) == resumed.summary["parameters_sha256"]
    other = fedlm.named("another", optax.sgd(0.1))
    with pytest.raises(CheckpointError, match=r"server_optimizer was own\(clipped adam\) and is now own\(another\)"):
        fedlm.simulate(data=data, out=tmp_path, **settings | {"server_optimizer": other})
    with pytest.raises(CheckpointError, match="whether its server_optimizer was this object cannot be told"):
        fedlm.simulate(data=data, out=tmp_path, **settings | {"server_optimizer": optax.sgd(0.1)})


def test_callbacks_see_every_round_with_its_parameters(data):
    watch = Watch()
    run = fedlm.simulate(data=data, callbacks=[watch], **SETTINGS)
    assert [finished.row["round"] for finished in watch.rounds] == [0, 1, 2, 3]
    assert [dict(finished.row) for finished in watch.rounds] == run.rows
    digests = [parameters_digest(finished.params) for finished in watch.rounds]
    assert len(set(digests)) == 4
    assert digests[-1] == run.summary["parameters_sha256"] == parameters_digest(run.params)
    assert (watch.settings["rounds"], watch.settings["model"], watch.ended) == (4, "own()", ["finished"])


def test_what_a_callback_does_to_what_it_is_told_changes_nothing(data, tmp_path):
    class Vandal(fedlm.Callback):
        def on_begin(self, settings):
            settings["rounds"] = 9

        def on_round(self, finished):
            finished.params.clear()
            finished.row["train_loss"] = 9.0

        def on_end(self, summary):
            summary["privacy"] = "perfect"
            summary["experiment"].clear()

    watch = Watch()
    run = fedlm.simulate(data=data, callbacks=[Vandal(), watch], out=tmp_path, **SETTINGS)
    honest = fedlm.simulate(data=data, **SETTINGS)
    for told in ("parameters_sha256", "privacy", "experiment"):
        assert run.summary[told] == honest.summary[told]
    assert [row["train_loss"] for row in run.rows] == [row["train_loss"] for row in honest.rows]
    assert [dict(finished.row) for finished in watch.rounds] == run.rows
    assert watch.settings["rounds"] == 4
    assert json.loads((tmp_path / "summary.json").read_text()) == run.summary


@pytest.mark.long
def test_a_model_function_is_called_for_each_run(data):
    sizes = {"hidden": 4}

    def model(vocabulary_size):
        return cifg("mine", CifgConfig(vocabulary_size=vocabulary_size, embedding=4, **sizes))

    settings = SETTINGS | {"model": model, "rounds": 1}
    small = fedlm.simulate(data=data, **settings)
    sizes["hidden"] = 6
    large = fedlm.simulate(data=data, **settings)
    assert small.summary["parameters"] < large.summary["parameters"]


@pytest.mark.long
def test_with_privacy_only_released_models_are_seen(data, tmp_path):
    released = []

    class Check(Watch):
        def on_round(self, finished):
            super().on_round(finished)
            ledger = [json.loads(line) for line in (tmp_path / "privacy" / "ledger.jsonl").read_text().splitlines()]
            released.append(max(int(path.name) for path in (tmp_path / "checkpoints").iterdir()))
            assert ledger[-1]["kind"] == "release"

    watch = Check()
    run = fedlm.simulate(data=data, out=tmp_path, callbacks=[watch], **SETTINGS | PRIVATE | {"checkpoint_every": 3})
    assert [finished.row["round"] for finished in watch.rounds] == [0, 1, 2, 3]
    assert [finished.params is not None for finished in watch.rounds] == [False, False, True, True]
    assert released == [3, 3, 3, 4]
    assert parameters_digest(watch.rounds[-1].params) == run.summary["parameters_sha256"]
    assert run.privacy.startswith("(epsilon = ")


def test_what_a_callback_raises_does_not_end_a_private_run(data, tmp_path):
    class PrunedError(Exception):
        pass

    class Prunes(Watch):
        def on_round(self, finished):
            super().on_round(finished)
            raise PrunedError(f"after round {finished.row['round']}")

    watch = Prunes()
    with pytest.raises(PrunedError, match="after round 0") as caught:
        fedlm.simulate(data=data, out=tmp_path / "private", callbacks=[watch], **SETTINGS | PRIVATE)
    assert "the private run went on to its end" in caught.value.__notes__[0]
    assert len(watch.rounds) == 1
    assert json.loads((tmp_path / "private" / "summary.json").read_text())["rounds"] == 4
    with pytest.raises(PrunedError):
        fedlm.simulate(data=data, out=tmp_path / "plain", callbacks=[Prunes()], **SETTINGS)
    assert not (tmp_path / "plain" / "summary.json").exists()


class Cohorts:
    def __init__(self, cohort=(0, 2, 4)):
        self.cohort = cohort

    def sample(self, round_number):
        return np.array(self.cohort) + round_number


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"cohort_sampler": Cohorts()}, "cohort_sampler is an object.*no epsilon could be stated"),
        ({"evaluation": lambda model, params: {}}, "before their release; give a callback"),
        ({"callbacks": [fedlm.EarlyStopping()]}, "a callback may stop the run, but epsilon"),
    ],
)
def test_with_privacy_what_would_break_the_claim_is_refused(data, tmp_path, changes, what):
    with pytest.raises(ConfigurationError, match=what):
        fedlm.simulate(data=data, out=tmp_path, **SETTINGS | PRIVATE | changes)
    assert not list(tmp_path.iterdir())


def test_a_sampler_of_ones_own_says_who_takes_part(data):
    run = fedlm.simulate(data=data, **SETTINGS | {"cohort_sampler": Cohorts()})
    sizes = data.split("train").num_examples
    assert [row["examples"] for row in run.rows] == [sum(sizes[[n, n + 2, n + 4]]) for n in range(4)]
    for cohort in ((0, 0), (-1, 2), (3, 100), (0.5, 1.5), ()):
        with pytest.raises(ConfigurationError, match=r"cohort_sampler gave .* for round 0"):
            fedlm.simulate(data=data, **SETTINGS | {"cohort_sampler": Cohorts(cohort)})
    with pytest.raises(ConfigurationError, match="must have a method sample"):
        fedlm.simulate(data=data, **SETTINGS | {"cohort_sampler": 3})


def test_an_evaluation_of_ones_own_is_in_the_rows(data):
    def evaluation(model, params):
        leaves = jax.tree_util.tree_leaves(params)
        return {"size": sum(leaf.size for leaf in leaves), "largest": max(float(abs(leaf).max()) for leaf in leaves)}

    run = fedlm.simulate(data=data, evaluation=evaluation, **SETTINGS | {"evaluate_every": 2})
    assert ["size" in row for row in run.rows] == [False, True, False, True]
    assert run.rows[-1]["size"] == run.summary["parameters"]
    for wrong, what in (({"round": 1.0}, "names of other metrics: round"), ({"a": "b"}, "numbers by name")):
        with pytest.raises(ConfigurationError, match=what):
            fedlm.simulate(data=data, evaluation=lambda model, params, wrong=wrong: wrong, **SETTINGS)


def test_a_run_that_a_callback_stops_has_ended(data, tmp_path):
    settings = SETTINGS | {"model": fedlm.named("tiny", TINY)}
    run = fedlm.simulate(data=data, out=tmp_path, callbacks=[StopAt(0)], **settings)
    assert (len(run.rows), run.summary["rounds"], run.summary["stopped_by_callback"]) == (1, 1, True)
    again = fedlm.simulate(data=data, out=tmp_path, **settings)
    assert parameters_digest(again.params) == run.summary["parameters_sha256"] == again.summary["parameters_sha256"]
    longer = fedlm.simulate(data=data, out=tmp_path, **settings | {"rounds": 3})
    assert len(longer.rows) == 3


def test_a_callback_that_may_not_stop_the_run_says_so(data):
    class Thoughtless(Watch):
        def on_round(self, finished):
            return True

    thoughtless = Thoughtless()
    with pytest.raises(ConfigurationError, match="only a callback with may_stop"):
        fedlm.simulate(data=data, callbacks=[thoughtless], **SETTINGS)
    assert len(thoughtless.failed) == 1
    assert not thoughtless.ended


def test_a_failing_callback_hides_no_error_and_no_other_callback(data):
    class FailsTwice(fedlm.Callback):
        def on_failure(self, error):
            raise ValueError("after the fact")

    class FailsToBegin(Watch):
        def on_begin(self, settings):
            raise RuntimeError("no connection")

    begun, fails_to_begin, not_begun = Watch(), FailsToBegin(), Watch()
    with pytest.raises(RuntimeError, match="no connection") as raised:
        fedlm.simulate(data=data, callbacks=[FailsTwice(), begun, fails_to_begin, not_begun], **SETTINGS)
    assert raised.value.__notes__ == ["FailsTwice.on_failure failed too: ValueError: after the fact"]
    assert begun.failed == ["no connection"]
    assert not fails_to_begin.failed
    assert not not_begun.failed


def test_a_callback_that_gives_an_array_is_named(data):
    class GivesArray(fedlm.Callback):
        def on_round(self, finished):
            return np.zeros(2)

    with pytest.raises(ConfigurationError, match=r"GivesArray\.on_round gave a ndarray"):
        fedlm.simulate(data=data, callbacks=[GivesArray()], **SETTINGS)


class UnhashableModel:
    __hash__ = None

    def __call__(self, vocabulary_size):
        return 3


class UnhashableOptimizer:
    __hash__ = None

    def __call__(self, learning_rate):
        return optax.sgd(learning_rate)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"model": 3}, "model is a int"),
        ({"model": cifg("mine", CifgConfig(vocabulary_size=50, embedding=4, hidden=6))}, "vocabulary of 50"),
        ({"model": lambda vocabulary_size: 3}, "model is a int"),
        ({"model": UnhashableModel()}, "model is a int"),
        ({"server_optimizer": 3}, "server_optimizer is a int"),
        ({"server_optimizer": UnhashableOptimizer()}, "a UnhashableOptimizer that cannot be hashed"),
        ({"server_optimizer": optax.add_noise(0.1, 0.5, 1)}, "holds a typed random key"),
        ({"roundz": 3}, r"no setting has the name roundz; did you mean rounds"),
        ({"server_optimizer": optax.sgd(0.1), "server_learning_rate": 0.1}, "brings its own learning rate"),
    ],
)
def test_objects_that_do_not_fit_say_so(data, changes, what):
    with pytest.raises(ConfigurationError, match=what):
        fedlm.simulate(data=data, **SETTINGS | changes)
    with pytest.raises(ConfigurationError, match="parentheses"):
        fedlm.named("a (b)", 3)


@dataclasses.dataclass(frozen=True)
class HalfSteps(fedlm.ClientAlgorithm):
    """Local SGD of half the rate."""

    def step(self, server, local, gradient, learning_rate):
        return local._replace(params=gradient.descend(local.params, learning_rate / 2))


@pytest.mark.long
def test_a_client_algorithm_by_object_is_what_clients_do(data):
    halves = fedlm.simulate(data=data, client_algorithm=HalfSteps(), **SETTINGS)
    plain = fedlm.simulate(data=data, **SETTINGS | {"client_learning_rate": 0.25})
    assert halves.rows[-1]["train_loss"] == pytest.approx(plain.rows[-1]["train_loss"], rel=1e-5)
    assert halves.summary["experiment"]["client_algorithm"] == "own()"
    by_object = fedlm.simulate(data=data, client_algorithm=fedlm.Sgd(), **SETTINGS | {"client_learning_rate": 0.25})
    assert by_object.summary["experiment"]["client_algorithm"] == "sgd"
    assert by_object.summary["parameters_sha256"] == plain.summary["parameters_sha256"]


@dataclasses.dataclass(frozen=True)
class Chatty(HalfSteps):
    """Sends its parameters twice."""

    def finish(self, server, local):
        return (super().finish(server, local),) * 2


class Unhashable(HalfSteps):
    __hash__ = None


class Undecorated(HalfSteps):
    """Has a constant that equality does not see."""

    def __init__(self, part):
        self.part = part


@pytest.mark.parametrize(
    ("algorithm", "what"),
    [
        (HalfSteps, "client_algorithm is the class HalfSteps"),
        (3, "client_algorithm is a int"),
        (Unhashable(), "cannot be hashed"),
        (Undecorated(0.5), "a Undecorated whose part is not a field"),
    ],
)
def test_what_is_no_client_algorithm_says_so(data, algorithm, what):
    with pytest.raises(ConfigurationError, match=what):
        fedlm.simulate(data=data, client_algorithm=algorithm, **SETTINGS)


def test_a_client_algorithm_that_sends_more_than_its_update_is_refused_privacy(data):
    with pytest.raises(ConfigurationError, match="sends more than its update"):
        fedlm.simulate(data=data, client_algorithm=Chatty(), **SETTINGS | PRIVATE)


@pytest.mark.long
def test_names_of_modules_lead_to_the_same_bits(data, tmp_path, monkeypatch):
    (tmp_path / "own_parts_of_mine.py").write_text(
        "import dataclasses, optax, fedlm\nfrom fedlm.models.cifg import CifgConfig, cifg\n"
        "TINY = fedlm.ModelEntry(cifg, CifgConfig(embedding=4, hidden=6))\n"
        "ADAM = optax.chain(optax.clip(0.1), optax.adam(0.05))\n"
        "@dataclasses.dataclass(frozen=True)\nclass Halves(fedlm.ClientAlgorithm):\n"
        "    def step(self, server, local, gradient, learning_rate):\n"
        "        return local._replace(params=gradient.descend(local.params, learning_rate / 2))\n"
        "HALVES = Halves()\n"
    )
    monkeypatch.chdir(tmp_path)
    names = {"model": "TINY", "server_optimizer": "ADAM", "client_algorithm": "HALVES"}
    named = {setting: f"own_parts_of_mine:{name}" for setting, name in names.items()}
    by_name = fedlm.simulate(data=data, **SETTINGS | named)
    optimizer = optax.chain(optax.clip(0.1), optax.adam(0.05))
    objects = {"model": TINY, "server_optimizer": optimizer, "client_algorithm": HalfSteps()}
    by_object = fedlm.simulate(data=data, **SETTINGS | objects)
    assert by_name.summary["parameters_sha256"] == by_object.summary["parameters_sha256"]
    assert by_name.summary["experiment"]["server_optimizer"] == "own_parts_of_mine:ADAM"


@dataclasses.dataclass(frozen=True)
class Complex(HalfSteps):
    def finish(self, server, local):
        return jax.tree_util.tree_map(lambda leaf: leaf + 1j, local.params)


def test_a_client_algorithm_that_does_not_fit_is_refused_before_the_folder_is_touched(data, tmp_path):
    with pytest.raises(ConfigurationError, match=r"Complex.finish must make float32 arrays"):
        fedlm.simulate(data=data, client_algorithm=Complex(), out=tmp_path / "run", **SETTINGS)
    assert not (tmp_path / "run").exists()
