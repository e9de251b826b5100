"""With IREE, in an environment without JAX, a plan trains to 1e-5 of the update; hostile programs are not compiled."""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.support import plans

pytestmark = pytest.mark.long
PYTHON = Path(__file__).parents[3] / "clients/plan_client/.venv/bin/python"
SCRIPT = """
import json, sys
from pathlib import Path
import numpy as np
from fedlm_client import iree_compiler
from fedlm_client.confined import Trainer
from fedlm_client.errors import PlanError
from fedlm_client.manifest import read_manifest
from fedlm_client.runtimes import write_modules

folder = Path(sys.argv[1])
described = (folder / "manifest.json").read_bytes()
manifest = read_manifest(described)
contents = [(folder / name).read_bytes() for name in ("step", "finish")]
try:
    iree_compiler.check((folder / "hostile").read_bytes(), manifest.step)
    raise SystemExit("compiled what it must not")
except PlanError as error:
    assert "custom_call" in str(error), error
try:
    iree_compiler.check(contents[1], manifest.step)
    raise SystemExit("took another program")
except PlanError as error:
    assert "other tensors" in str(error), error
modules = [path.read_bytes() for path in write_modules(manifest, described, contents, folder / "modules")]
batches = np.load(folder / "batches.npz")
with Trainer(manifest, described, "iree", modules) as trainer:
    trainer.begin(batches["values"])
    for tokens, weight, random in zip(batches["tokens"], batches["weight"], batches["random"]):
        trainer.step(tokens, weight, random, float(batches["rate"]))
    sums, finite, body = trainer.finish(*map(int, batches["stream"]))
(folder / "update").write_bytes(body)
assert "jax" not in sys.modules and finite
print(json.dumps(sums))
"""


@pytest.mark.parametrize("settings", [{"upload_bits": 32}, {"model": "cifg_tiny", "upload_bits": 32}], ids=str)
def test_iree_comes_to_the_update_of_local_sgd(tmp_path, settings):
    if not PYTHON.exists():
        pytest.skip("IREE is not installed; `make plan-client` makes the environment of a client with it")
    plan, manifest = plans.plan_of(**settings)
    values, sequences = plans.sent_values(manifest), plans.examples(11, manifest.batches.length)
    kept = plans.Recorded()
    plans.train(kept, manifest, values, sequences)
    for name, content in {"manifest.json": plan.manifest, "step": plan.step, "finish": plan.finish}.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "hostile").write_bytes(plans.portable(plans.CALLING))
    np.savez(tmp_path / "batches.npz", values=values, **kept.steps(), rate=plans.RATE, stream=kept.stream)
    done = subprocess.run(
        [PYTHON, "-c", SCRIPT, tmp_path],
        env={"PYTHONPATH": str(PYTHON.parents[2]), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    expected, _, upload = plans.trained_natively(values, sequences, manifest.batches, **settings)
    np.testing.assert_allclose(json.loads(done.stdout), expected, rtol=1e-3)
    body = (tmp_path / "update").read_bytes()
    found, update = (np.frombuffer(one, "<f4").astype(np.float64) for one in (body, upload[8:-4]))
    assert np.linalg.norm(found - update) <= 1e-5 * np.linalg.norm(update)
