import dataclasses
import re

import jax
import pytest

from fedlm.models.base import parameter_count
from fedlm.models.errors import ConfigurationError
from fedlm.models.families.cifg import CifgConfig
from fedlm.models.families.reattention import reattention_transformer
from fedlm.models.families.transformer import TransformerConfig
from fedlm.models.model_files import ARCHITECTURES
from fedlm.models.registry import MODELS, UnknownModelError, create_model, find_entry, same_model, standard_twin

SIZES = ("vocabulary_size", "layers", "heads", "embedding", "mlp", "hidden", "tied")
TWINS = {name: standard_twin(name) for name in MODELS if standard_twin(name)}
ITEMS = 3416


def count_by_hand(config):
    v, e = config.vocabulary_size, config.embedding
    if isinstance(config, CifgConfig):
        h = config.hidden
        return 3 * h * (e + e) + 3 * h + h * e + v * e + v + (0 if config.tied else v * e)
    return v * e + config.layers * (4 * e * e + 2 * e * config.mlp + 4 * e) + 2 * e + v


COUNTED = [name for name, entry in MODELS.items() if type(entry.config) in (CifgConfig, TransformerConfig)]
MORE_PARAMETERS = {
    "cifg_tiny+output_norm=unit_rms": lambda config: 0,
    "cifg_tiny+output_norm=rms_norm": lambda config: config.embedding,
    # Three gates and the cell have a factor and a shift, and gates no bias.
    "cifg_tiny+recurrence=layer_norm": lambda config: 2 * 4 * config.hidden - 3 * config.hidden,
    # In place of a factor and a shift.
    "transformer_tiny+final_norm=rms_norm": lambda config: -config.embedding,
    "transformer_tiny+reattention": lambda config: 0,
}


def test_a_name_says_which_architecture_is_built_and_about_how_large_it_is():
    for name in (*COUNTED, *MORE_PARAMETERS):
        build, config = find_entry(name)
        architecture, size = name.split("+")[0].rsplit("_", 1)
        assert build is ARCHITECTURES[architecture.removeprefix("si_")].build or "reattention" in name
        more = config.embedding if architecture == "si_cifg" else 0
        more += MORE_PARAMETERS.get(name, lambda config: 0)(config)
        count = parameter_count(create_model(name))
        assert count == count_by_hand(config) + more, name
        assert size != "4m" or count == pytest.approx(4.2e6, rel=0.01)


@pytest.mark.parametrize(
    ("name", "items", "count"),
    [
        ("cifg_19m", None, 18_884_608),
        ("cifg_9m", None, 9_447_424),
        ("cifg_6m", None, 6_242_250),
        ("transformer_21m", None, 20_988_928),
        ("transformer_11m", None, 11_545_600),
        ("vaultgemma_1b", None, 1_038_741_120),
        # 12 layers width^2, two layer norms a layer and the last one, the table and the output's bias.
        ("transformer_3x128", 512, 12 * 3 * 128**2 + 14 * 128 + 512 * 129),
        # One GRU or LSTM layer of 64 to 128 has 3 or 4 matrices of 128 by 64 + 128 with biases; then back to 64.
        ("gru4rec", ITEMS, 3 * 128 * (64 + 128 + 1) + 128 * 64 + 64 + 64 * ITEMS),
        ("lstm4rec", ITEMS, 4 * 128 * (64 + 128 + 1) + 128 * 64 + 64 + 64 * ITEMS),
        # Two blocks of five matrices of 64 by 64, two of them with biases, and norms; positions.
        ("sasrec", ITEMS, 2 * (5 * 64 * 64 + 2 * 64 + 4 * 64) + 2 * 64 + 50 * 64 + 64 * ITEMS),
        ("sasrec+max_length=200", ITEMS, 2 * (5 * 64 * 64 + 2 * 64 + 4 * 64) + 2 * 64 + 200 * 64 + 64 * ITEMS),
    ],
)
def test_published_sizes(name, items, count):
    assert parameter_count(create_model(name, items)) == count
    if items == ITEMS:
        assert parameter_count(create_model(f"{name}+tied=false", items)) == count + 64 * items


def test_sizes_are_about_those_of_the_names_and_counting_allocates_nothing():
    for name, millions in (("1m", 1.57), ("10m", 10.5), ("20m", 20.0), ("100m", 101.7)):
        assert parameter_count(create_model(f"vaultgemma_{name}")) == pytest.approx(millions * 1e6, rel=0.01)
    huge = CifgConfig(vocabulary_size=10**7, embedding=10**5, hidden=10**5)
    assert parameter_count(MODELS["cifg_19m"].build("huge", huge)) == count_by_hand(huge)


def test_what_the_number_of_parameters_does_not_show():
    config = MODELS["vaultgemma_1b"].config
    assert (config.heads, config.key_value_heads, config.query_scale, config.max_length) == (4, 4, 256, 1024)
    assert (config.windows, config.attention_cap, config.logit_cap) == ((), None, None)
    published = [name for name in MODELS if name.endswith(("transformer_11m", "transformer_21m"))]
    assert {MODELS[name].config.heads for name in published} == {8}
    entry = find_entry("transformer_3x128")
    sizes = (entry.config.layers, entry.config.heads, entry.config.embedding, entry.config.mlp)
    assert (entry.build, sizes) == (MODELS["transformer_tiny"].build, (3, 4, 128, 512))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cifg_1m+outputnorm=none", "no setting 'outputnorm'; did you mean output_norm"),
        ("cifg_1m+vocabulary_size=3", "no setting 'vocabulary_size'.*there are embedding, hidden, tied"),
        ("cifg_1m+output_norm=layer_norm", "output_norm is 'layer_norm', expected none or unit_rms or rms_norm"),
        ("cifg_1m+tied=no", "tied is 'no', expected true or false"),
        ("cifg_1m+hidden=1e3", "hidden is '1e3', expected a positive integer"),
        ("cifg_1m+hidden=1_0", "hidden is '1_0', expected a positive integer"),
        ("cifg_1m+hidden= 3", "hidden is ' 3', expected a positive integer"),
        ("cifg_1m+hidden=3+hidden=3", "hidden is set twice"),
        ("cifg_1m+reattention", "no setting 'reattention'"),
        ("transformer_1m+heads=3", "embedding is 128, but must be a multiple of heads, which is 3"),
        ("transformer_1m+reattention+most_correction=x", "most_correction is 'x', expected a positive number"),
        ("vaultgemma_1b+logit_cap=0", "logit_cap is 0.0, expected a positive number or none"),
        ("vaultgemma_1m+windows=3", "no setting 'windows'"),
    ],
)
def test_settings_that_do_not_fit_are_refused(name, message):
    with pytest.raises(UnknownModelError, match=f"^model {re.escape(repr(name))}: .*{message}"):
        create_model(name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"key_value_heads": 3}, "heads is 4, but must be a multiple of key_value_heads, 3"),
        ({"head_size": 7}, "head_size is 7, but must be even"),
        ({"windows": (2, 0)}, "windows has 2 layers, but there are 4"),
    ],
)
def test_sizes_that_do_not_fit_each_other_are_refused(change, message):
    with pytest.raises(ConfigurationError, match=message):
        dataclasses.replace(MODELS["vaultgemma_1m"].config, **change)


def test_settings_change_what_they_name_alone():
    entry = find_entry("vaultgemma_1m+attention_cap=50+logit_cap=none+post_norms")
    changes = {"attention_cap": 50.0, "logit_cap": None, "post_norms": True}
    assert entry.config == dataclasses.replace(MODELS["vaultgemma_1m"].config, **changes)
    corrected = find_entry("si_transformer_1m+most_correction=4+reattention")
    assert corrected.build is reattention_transformer
    assert (corrected.config.attention, corrected.config.most_correction) == ("scale_invariant", 4.0)
    assert same_model("cifg_1m+output_norm=none", "cifg_1m")
    assert not same_model("si_cifg_1m+output_norm=none", "si_cifg_1m")
    assert same_model("transformer_3x128", "transformer_1m")


def test_only_scale_invariant_models_have_a_standard_twin():
    for name in ("cifg_19m", "cifg_tiny+output_norm=unit_rms", "transformer_1m+reattention"):
        assert standard_twin(f"si_{name}") == name
    assert standard_twin("si_cifg_19m+output_norm=none") == "cifg_19m"
    assert {standard_twin(name) for name in ("cifg_19m", "si_unheard_of")} == {None}


@pytest.mark.parametrize("name", TWINS)
def test_twins_have_the_same_sizes_and_parameters(name):
    assert name.startswith("si_")
    ours, theirs = MODELS[name].config, MODELS[TWINS[name]].config
    assert all(getattr(ours, size, None) == getattr(theirs, size, None) for size in SIZES)
    shapes = [jax.eval_shape(create_model(each).init, jax.random.key(0)) for each in (name, TWINS[name])]
    # SI-CIFG's output has a gain for each coordinate; that of CIFG as published has no norm.
    gain = shapes[0].pop("output_norm", {}) if "output_norm" not in shapes[1] else {}
    assert shapes[0] == shapes[1]
    assert {key: leaf.shape for key, leaf in gain.items()} in ({}, {"scale": (ours.embedding,)})


def test_created_models_have_the_vocabulary_asked_for_or_their_own():
    shapes = jax.eval_shape(create_model("transformer_tiny", 77).init, jax.random.key(0))
    assert create_model("transformer_tiny", 77).vocabulary_size == shapes["embedding"]["table"].shape[0] == 77
    for name, (_, config) in MODELS.items():
        model = create_model(name)
        assert model.vocabulary_size == config.vocabulary_size + (model.objective == "masked")
        hash(config)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("si_cfig_19m", r"'si_cfig_19m'.*did you mean.*\bsi_cifg_19m\b"),
        ("zzz", "^unknown model 'zzz'; `fedlm models` lists all$"),
        ("transformer_3x100", "3x100"),
        ("si_cfig_19m+tied", r"'si_cfig_19m'.*did you mean.*\bsi_cifg_19m\b"),
        ("transformer_0x128", "unknown"),
        ("models_of_mine:NUMBER", "found int as 'NUMBER' in 'models_of_mine', expected a ModelEntry"),
        ("models_of_mine:LARGE", "has no 'LARGE', but SMALL$"),
        ("models_of_yours:SMALL", "cannot be imported.*PYTHONPATH"),
        (":SMALL", "cannot be imported"),
    ],
)
def test_an_unknown_name_is_answered_with_the_closest_or_with_where_all_are(name, message, tmp_path, monkeypatch):
    (tmp_path / "models_of_mine.py").write_text(
        "from fedlm.models.registry import MODELS\nSMALL = MODELS['cifg_tiny']\nNUMBER = 3\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    model = create_model("models_of_mine:SMALL", 50)
    assert (model.name, model.vocabulary_size) == ("models_of_mine:SMALL", 50)
    with pytest.raises(UnknownModelError, match=message):
        create_model(name)
