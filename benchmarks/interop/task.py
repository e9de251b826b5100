"""What is trained on both sides of a comparison: clients, first parameters and settings, as files in a folder.

Read in the environments of the peers too, which have nothing of ours but this checkout.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np

from fedlm.interop.parameters import Tree, flatten, load_params, save_params
from fedlm.models.special_tokens import BOS_ID, EOS_ID, OOV_ID, PAD_ID


@dataclass(frozen=True)
class Setting:
    """What is trained, and how: every client in every round, one epoch of SGD each.

    Attributes:
      model: a name of the registry.
      vocabulary_size: token ids.
      length: tokens that are read of an example.
      sizes: examples of each client.
      batch_size: of local steps.
      rounds: how many.
      client_rate: the clients' learning rate.
      server_rate: the server optimizer's.
      epsilon: FedAdam's; a small one would make much of rounding.
      clip_norm: of updates, which then all weigh the same; None for a mean by examples.
      noise_multiplier: of the noise of DP-FTRL, in clip norms; None for none.
    """

    model: str
    vocabulary_size: int = 1000
    length: int = 12
    sizes: tuple[int, ...] = (7, 20, 33, 10, 58)
    batch_size: int = 10
    rounds: int = 3
    client_rate: float = 0.5
    server_rate: float = 0.01
    epsilon: float = 1e-3
    clip_norm: float | None = None
    noise_multiplier: float | None = None


class Task(NamedTuple):
    """A setting with its clients, int32 [examples, length + 1] each by id, and the parameters of round 0."""

    setting: Setting
    clients: dict[str, np.ndarray]
    params: Tree

    def save(self, folder: Path) -> None:
        """Write a task into a folder that is there."""
        (folder / "setting.json").write_text(json.dumps(asdict(self.setting)))
        save_params(folder / "clients.npz", self.clients)
        save_params(folder / "params.npz", self.params)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read what `save` wrote."""
        setting = json.loads((folder / "setting.json").read_text())
        clients = {name: np.asarray(rows) for name, rows in load_params(folder / "clients.npz").items()}
        return cls(Setting(**setting | {"sizes": tuple(setting["sizes"])}), clients, load_params(folder / "params.npz"))


def make_clients(setting: Setting) -> dict[str, np.ndarray]:
    """Draw sequences of words, of which some are common, with unknown ones, cut where they are too long."""
    rng = np.random.default_rng(0)
    common = 1.0 / np.arange(1, setting.vocabulary_size - OOV_ID + 1)

    def sequence() -> np.ndarray:
        words = OOV_ID + rng.choice(len(common), int(rng.integers(2, 2 * setting.length)), p=common / common.sum())
        tokens = np.concatenate([[BOS_ID], words, [EOS_ID]])[: setting.length + 1]
        return np.pad(tokens, (0, setting.length + 1 - len(tokens)), constant_values=PAD_ID)

    return {
        f"client {number}": np.stack([sequence() for _ in range(size)]).astype(np.int32)
        for number, size in enumerate(setting.sizes)
    }


def greatest_difference(ours: Tree, theirs: Tree) -> float:
    """Return the greatest difference of two trees of parameters, entry by entry."""
    flat, other = flatten(ours), flatten(theirs)
    if flat.keys() != other.keys():
        raise ValueError(f"the parameters have other names: {sorted(flat.keys() ^ other.keys())}")
    return max(float(np.max(np.abs(np.float64(flat[name]) - np.float64(other[name])))) for name in flat)
