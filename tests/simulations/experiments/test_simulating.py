"""A program's own experiment: parts by object, on data in memory."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedlm
from fedlm.fl_core.client_algorithms.interface import LocalState
from fedlm.fl_core.errors import CheckpointError, ConfigurationError, DataError
from fedlm.fl_core.runs.files.checkpoints import parameters_digest
from fedlm.models.families.cifg import CifgConfig, cifg
from fedlm.models.losses import ExampleSums
from fedlm.simulations.data.client_text import ClientText
from fedlm.simulations.data.importing import ImportSettings, import_text
from fedlm.simulations.data.sources.in_memory import InMemoryText
from tests.simulations.experiments.own_experiments import PRIVATE, SETTINGS, TINY, HalfSteps


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
        assert [found.vocabulary_origin.kind for found in (data, given, public)] == ["training data", "given", "public"]
    with pytest.raises(ConfigurationError, match="no vocabulary is given"):
        fedlm.DataInMemory.from_texts(texts, vocabulary_origin="public")


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda texts: fedlm.DataInMemory.from_texts({"ann": "a text"}), "'ann': found one text"),
        (lambda texts: fedlm.DataInMemory.from_texts({"ann": [3]}), "other things than texts"),
        (lambda texts: fedlm.DataInMemory.from_texts({1: ["a"]}), "found an id of type int, expected a str"),
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
    with pytest.raises(CheckpointError, match="nothing shows whether its server_optimizer was this object"):
        fedlm.simulate(data=data, out=tmp_path, **settings | {"server_optimizer": optax.sgd(0.1)})
    with pytest.raises(ConfigurationError, match="holds a typed random key"):
        fedlm.simulate(data=data, **SETTINGS | {"server_optimizer": optax.add_noise(0.1, 0.5, 1)})


@dataclasses.dataclass(frozen=True)
class Counting(fedlm.ClientAlgorithm):
    """Takes smaller steps the more it has taken, which it counts in a number of Python's."""

    def init(self, server):
        return LocalState(server.params, 0)

    def step(self, server, local, gradient, learning_rate):
        params = gradient.descend(local.params, learning_rate / (1 + local.memory))
        return LocalState(params, local.memory + 1)


@pytest.mark.long
def test_what_a_client_remembers_may_begin_as_a_number(data):
    settings = SETTINGS | {"client_algorithm": Counting(), "rounds": 1}
    losses = [fedlm.simulate(data=data, lanes_per_device=lanes, **settings).rows[-1]["train_loss"] for lanes in (1, 3)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@dataclasses.dataclass(frozen=True)
class Chatty(HalfSteps):
    """Sends its parameters twice."""

    def finish(self, server, local):
        return (super().finish(server, local),) * 2


class Cohorts:
    def __init__(self, cohort=(0, 2, 4)):
        self.cohort = cohort

    def sample(self, round_number):
        return np.array(self.cohort) + round_number


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"cohort_sampler": Cohorts()}, "cohort_sampler is an object.*no epsilon could be stated"),
        ({"client_algorithm": Chatty()}, "sends more than its update"),
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
    with pytest.raises(ConfigurationError, match="is 3, but must be text, an object with sample or a Named"):
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


class Unhashable(HalfSteps):
    """None of these may be asked for its hash."""

    __hash__ = None

    def __call__(self, size_or_rate):
        return 3


class Undecorated(HalfSteps):
    """Has a constant that equality does not see."""

    def __init__(self, part):
        self.part = part


@dataclasses.dataclass(frozen=True)
class Complex(HalfSteps):
    def finish(self, server, local):
        return jax.tree_util.tree_map(lambda leaf: leaf + 1j, local.params)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"model": 3}, "model is 3, but must be text, a path, a Model, .* or a Named"),
        ({"model": cifg("mine", CifgConfig(vocabulary_size=50, embedding=4, hidden=6))}, "vocabulary of 50"),
        ({"model": lambda vocabulary_size: 3}, "model is a int"),
        ({"model": Unhashable()}, "model is a int"),
        ({"client_algorithm": HalfSteps}, "client_algorithm is the class HalfSteps"),
        ({"client_algorithm": 3}, "client_algorithm is 3, but must be text, a ClientAlgorithm"),
        ({"client_algorithm": Unhashable()}, "cannot be hashed"),
        ({"client_algorithm": Undecorated(0.5)}, "a Undecorated whose part is not a field"),
        ({"client_algorithm": Complex()}, r"Complex.finish must make float32 arrays"),
        ({"server_optimizer": 3}, "server_optimizer is 3, but must be text, a GradientTransformation"),
        ({"server_optimizer": Unhashable()}, "a Unhashable that cannot be hashed"),
        ({"roundz": 3}, r"no setting has the name roundz; did you mean rounds"),
        ({"server_optimizer": optax.sgd(0.1), "server_learning_rate": 0.1}, "brings its own learning rate"),
        ({"model": "bert_tiny"}, "'bert_tiny' has the masked objective.*next token.*fedlm models"),
        ({"model": "cifg_tiny", "dropout": 0.4}, "dropout is 0.4, but the model 'cifg_tiny' has none"),
        ({"model": "sasrec_tiny", "length": 51}, r"the model sasrec_tiny cannot be used with length 51: .* for 50"),
        ({"model": "transformer_tiny", "lora_rank": 2}, "give init_from"),
        ({"personal_layers": ("heads",)}, "names heads, but the model has weights"),
        ({"personal_layers": ("",)}, "names , but"),
    ],
)
def test_settings_and_objects_that_do_not_fit_say_so_and_write_nothing(data, tmp_path, changes, what):
    with pytest.raises(ConfigurationError, match=what):
        fedlm.simulate(data=data, out=tmp_path / "run", **SETTINGS | changes)
    assert not (tmp_path / "run").exists()


def test_a_name_has_no_parentheses():
    with pytest.raises(ConfigurationError, match="parentheses"):
        fedlm.named("a (b)", 3)


@pytest.mark.long
def test_parts_by_object_are_what_runs_do_and_names_of_modules_lead_to_the_same_bits(data, tmp_path, monkeypatch):
    (tmp_path / "own_parts_of_mine.py").write_text(
        "import dataclasses, optax, fedlm\nfrom tests.support.plain_runs import UNIGRAM as TINY\n"
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
    assert by_object.summary["experiment"]["client_algorithm"] == "own()"
    # Half of each step is a step of half the rate.
    half = SETTINGS | objects | {"client_learning_rate": 0.25}
    plain = fedlm.simulate(data=data, **half | {"client_algorithm": fedlm.Sgd()})
    assert plain.summary["experiment"]["client_algorithm"] == "sgd"
    assert by_object.rows[-1]["train_loss"] == pytest.approx(plain.rows[-1]["train_loss"], rel=1e-5)


@pytest.mark.long
def test_the_large_programs_of_a_run_are_compiled_once_and_ahead_of_its_first_round(data, caplog):
    model = fedlm.ModelEntry(cifg, CifgConfig(embedding=3, hidden=5))
    with caplog.at_level("DEBUG", "jax._src.interpreters.pxla"):
        fedlm.simulate(data=data, **SETTINGS | {"model": model})
    large = ("_first_state", "_run_chunk", "add_devices", "_next_state")
    found = [record for record in caplog.records if record.getMessage().startswith("Compiling")]
    compiled = [
        (name, record.threadName) for record in found for name in large if f"jit({name}) " in record.getMessage()
    ]
    assert sorted(name for name, _ in compiled) == sorted(large)
    assert all(thread.startswith("compile") for _, thread in compiled)
