"""RecBole's Hit, NDCG and ItemCoverage of made-up scores, for the tests of recommendation.

Both sides draw the same scores. To write the committed file anew, in an environment of its own, for RecBole pins what
other peers have newer, and is not made for numpy 2:

    python3.11 -m venv recbole && recbole/bin/pip install numpy scipy scikit-learn torch
    recbole/bin/pip install --no-deps recbole==1.2.1
    recbole/bin/python -m benchmarks.simulation.peers.recommendation_metrics \
        tests/simulations/evaluation/recommendation/recbole_scores.json
"""

import importlib.metadata
import importlib.util
import json
import sys
import types
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

USERS, ITEMS, TOP_K = 300, 80, (1, 5, 10, 20)


def draw() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw scores, float32 [users, items] without ties, in favour of some items; what users know, bool [users, items];
    and each user's next item, int64 [users], which is not known."""
    rng = np.random.default_rng(24)
    scores = (rng.gumbel(size=(USERS, ITEMS)) + rng.normal(scale=2.0, size=ITEMS)).astype(np.float32)
    targets = rng.integers(0, ITEMS, USERS)
    known = rng.random((USERS, ITEMS)) < 0.2
    known[np.arange(USERS), targets] = False
    return scores, known, targets


def _recbole_metrics() -> Any:
    """Load RecBole's module of metrics alone: its package imports what none of these needs."""
    np.float = float  # type: ignore[attr-defined]  # which numpy 1.24 has removed
    utils = types.ModuleType("recbole.utils")
    utils.EvaluatorType = Enum("EvaluatorType", "RANKING VALUE")  # type: ignore[attr-defined]
    root = importlib.metadata.distribution("recbole").locate_file("recbole")
    for name, module in {"recbole": None, "recbole.utils": utils, "recbole.evaluator": None}.items():
        sys.modules[name] = module or types.ModuleType(name)
    for name in ("utils", "base_metric", "metrics"):
        spec = importlib.util.spec_from_file_location(f"recbole.evaluator.{name}", f"{root}/evaluator/{name}.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[spec.name])
    return sys.modules["recbole.evaluator.metrics"]


def main(out: Path) -> None:
    """Write RecBole's scores of all items, and of those that users do not know."""
    import torch

    metrics, (scores, known, targets) = _recbole_metrics(), draw()
    config = {"topk": list(TOP_K), "metric_decimal_place": 12}
    found: dict[str, Any] = {"recbole": importlib.metadata.version("recbole")}
    for name, hidden in (("all", np.zeros_like(known)), ("unknown", known)):
        # As RecBole's trainer and collector do it: what is known scores minus infinity, and the best are looked up.
        shown = torch.from_numpy(np.where(hidden, -np.inf, scores))
        items = torch.topk(shown, max(TOP_K), dim=-1).indices
        right = (items == torch.from_numpy(targets)[:, None]).int()
        data = {
            "rec.topk": torch.cat([right, torch.ones(USERS, 1, dtype=torch.int32)], dim=1),
            "rec.items": items,
            "data.num_items": ITEMS,
        }
        found[name] = {}
        for metric in ("Hit", "NDCG", "ItemCoverage"):
            of_metric = getattr(metrics, metric)(config).calculate_metric(data)
            found[name] |= {key: float(value) for key, value in of_metric.items()}
    out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
