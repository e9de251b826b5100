"""Models go to other processes: through pickle and cloudpickle, and give there what they give here."""

import dataclasses
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import cloudpickle
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedlm.models.base import given_frozen, language_model
from fedlm.models.layers.dropout import with_dropout
from fedlm.models.layers.lora import LoraConfig, lora_model
from fedlm.models.precision import with_precision
from fedlm.models.registry import MODELS, create_model
from tests.models import pickled_model
from tests.models.pickled_model import loss_of

ROOT = Path(__file__).parents[2]
TOKENS = np.array([[1, 4, 5, 6, 7, 2], [1, 9, 8, 2, 0, 0]], np.int32)
FAMILIES = {entry.build.__name__: name for name, entry in reversed(MODELS.items())}
"""The first named model of each family, which is its smallest."""
VARIANTS = ("si_cifg_tiny", "si_transformer_tiny", "transformer_tiny+reattention")


def draw_bigrams(key):
    return jax.random.normal(key, (30, 30))


def read_bigrams(params, tokens):
    return params[tokens]


def all_models():
    """Every family, and every way to make a model of another."""
    named = {name: create_model(name, 30) for name in (*FAMILIES.values(), *VARIANTS)}
    base = named["transformer_tiny"]
    adapted = lora_model(base, LoraConfig(rank=2, alpha=2.0))
    return named | {
        "own": language_model("own", 30, draw_bigrams, read_bigrams),
        "bfloat16": with_precision(base, "bfloat16"),
        "dropout": with_dropout(named["sasrec_tiny"], 0.5),
        "adapters": given_frozen(adapted, base.init(jax.random.key(1))),
        "adapters in bfloat16": given_frozen(with_precision(adapted, "bfloat16"), base.init(jax.random.key(1))),
        "other parameters": dataclasses.replace(named["cifg_tiny"], init=named["si_cifg_tiny"].init),
    }


@pytest.mark.long
def test_a_fresh_process_computes_the_loss_of_every_model(tmp_path):
    models = all_models()
    assert len(models) >= 17
    # What pickle writes by a function's name, cloudpickle does too.
    files = {tmp_path / "pickle": (pickle, list(models)), tmp_path / "cloudpickle": (cloudpickle, ["own", "adapters"])}
    for file, (pickler, names) in files.items():
        file.write_bytes(pickler.dumps([(models[name], TOKENS) for name in names]))
    command = [sys.executable, "-m", pickled_model.__name__, *files]
    environment = os.environ
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    expected = {name: loss_of(model, TOKENS) for name, model in models.items()}
    asked = [expected[name] for _, names in files.values() for name in names]
    assert json.loads(done.stdout) == pytest.approx(asked, rel=1e-4)
    assert len({round(loss, 6) for loss in expected.values()}) >= 13


@pytest.mark.parametrize("name", ["cifg_tiny", "sasrec_tiny"])
def test_a_model_comes_back_with_all_its_functions_and_is_compiled_once(name):
    model = create_model(name, 30)
    for pickler in (pickle, cloudpickle):
        copy = pickle.loads(pickler.dumps(model))
        assert (copy.name, copy.vocabulary_size) == (name, model.vocabulary_size)
        shapes = [jax.eval_shape(one.init, jax.random.key(0)) for one in (copy, model)]
        assert shapes[0] == shapes[1]
        assert jax.eval_shape(copy.apply, shapes[0], TOKENS) == jax.eval_shape(model.apply, shapes[0], TOKENS)
        assert (copy.decoder is None, copy.with_dropout is None) == (model.decoder is None, model.with_dropout is None)
    # What is read twice is one model.
    assert pickle.loads(pickle.dumps(model)) == pickle.loads(pickle.dumps(model))
    assert pickle.loads(pickle.dumps(model)) != pickle.loads(pickle.dumps(create_model(name, 31)))


def test_a_function_that_was_replaced_is_the_one_that_comes_back():
    model = dataclasses.replace(create_model("cifg_tiny", 30), init=draw_bigrams)
    copy = pickle.loads(pickle.dumps(model))
    assert copy.init is draw_bigrams
    assert copy.loss is pickle.loads(pickle.dumps(create_model("cifg_tiny", 30))).loss
    constant = dataclasses.replace(model, init=lambda key: jnp.full(3, 7.0))
    assert pickle.loads(cloudpickle.dumps(constant)).init(None).tolist() == [7.0, 7.0, 7.0]
