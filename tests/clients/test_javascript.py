"""The programs of plans, as TypeScript under clients/javascript runs them, give what they give with JAX."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from fedlm_client.jax_runtime import load
from tests.support import plans

FOLDER = Path(__file__).parents[2] / "clients/javascript"
CASES = ((plans.BIGRAM, 8), ("cifg_tiny", 32), ("transformer_tiny", 32))


def _value(rng, argument):
    if argument.role == "tokens":
        return plans.examples(argument.shape[0], argument.shape[1] - 1)
    if argument.role == "weight":
        return np.arange(argument.shape[0]) < argument.shape[0] - 1
    if argument.dtype == "uint32":
        return rng.integers(0, 2**32, argument.shape, np.uint32)
    return 0.1 * rng.normal(size=argument.shape)


def _plain(value):
    return {"shape": list(value.shape), "dtype": str(value.dtype), "data": value.ravel().tolist()}


def _write(folder):
    rng, cases = np.random.default_rng(0), {}
    for model, bits in CASES:
        plan, manifest = plans.plan_of(model, upload_bits=bits)
        for part in ("step", "finish"):
            content, program = getattr(plan, part), getattr(manifest, part)
            name = f"{model.rpartition(':')[2].lower()}.{part}"
            inputs = [np.asarray(_value(rng, one), one.dtype) for one in program.inputs]
            outputs = [np.asarray(one) for one in load(content, program)(inputs)]
            (folder / name).write_bytes(content)
            cases[name] = {"inputs": [_plain(one) for one in inputs], "outputs": [_plain(one) for one in outputs]}
    (folder / "calling").write_bytes(plans.portable(plans.CALLING))
    (folder / "cases.json").write_text(json.dumps(cases))


@pytest.mark.long
def test_programs_give_in_typescript_what_they_give_with_jax(tmp_path):
    if shutil.which("node") is None or not (FOLDER / "node_modules").exists():
        pytest.skip("Node, or TypeScript for it, is missing; `npm ci` in clients/javascript installs it")
    subprocess.run([FOLDER / "node_modules/.bin/tsc", "-p", FOLDER], check=True)
    _write(tmp_path)
    words = ["node", "--test", str(FOLDER / "build/tests/")]
    done = subprocess.run(words, env=os.environ | {"PLAN_PROGRAMS": str(tmp_path)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
