"""The settings of a private run."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

from fl_core.errors import ConfigurationError
from fl_core.privacy.plan import TREES

PrivacyName = Literal["none", "gaussian", "tree", "tree_honaker", "blt", "banded"]
PRIVATE_SAMPLERS = ("poisson", "min_separation", "shuffled_epochs")
_TREE_SETTINGS = ("tree_restart_every", "tree_complete", "tree_restart_optimizer")
_SETTINGS = (
    "noise_multiplier",
    "target_epsilon",
    "target_rho",
    "delta",
    "report_goal",
    *_TREE_SETTINGS,
    "bands",
    "clip_quantile",
    "clip_quantile_rate",
    "clip_count_noise",
    "noise_seed",
)


@dataclass(frozen=True, kw_only=True)
class PrivacySettings:
    """Differential privacy of each client, and how it is paid for."""

    privacy: PrivacyName = "none"
    """Noise that makes the released models differentially private, hiding each client's presence. gaussian: fresh noise
    in every round (DP-FedAvg). tree: binary-tree aggregation (DP-FTRL), tree_honaker: the same with less noise for more
    memory. blt, banded: correlated noise by matrix factorization, with the least error. Needs update-clip-norm, a
    cohort-sampler that bounds participation (poisson, min_separation or shuffled_epochs), and one of noise-multiplier,
    target-epsilon and target-rho."""
    noise_multiplier: float | None = None
    """Standard deviation of one draw of noise (of a tree's node, or a matrix mechanism's input), in clip norms."""
    target_epsilon: float | None = None
    """Choose the noise so that the whole run is (this, delta)-differentially private."""
    target_rho: float | None = None
    """Choose the noise so that the whole run has this rho of zero-concentrated differential privacy."""
    delta: float | None = None
    """At which epsilon is stated; the number of training clients to the power -1.1 where it is not given."""
    report_goal: int | None = None
    """What a round's noised sum is divided by, however many clients reported; cohort-size where it is not given."""
    tree_restart_every: int | None = None
    """Begin a new tree every so many rounds."""
    tree_complete: bool = False
    """Complete each tree to a power of two before the next begins, which leaves less noise behind."""
    tree_restart_optimizer: bool = False
    """Let the server optimizer forget its state whenever a tree ends, as DP-FTRL with momentum does."""
    bands: int | None = None
    """Diagonals of the banded mechanism, at most min-separation; each costs the memory of one model. 16 or as many as
    are allowed where it is not given."""
    clip_quantile: float | None = None
    """Move the clip norm towards this quantile of the updates' norms, beginning with update-clip-norm (Andrew et al.
    2021). Only with gaussian, or with a tree that restarts."""
    clip_quantile_rate: float = 0.2
    """How fast the clip norm moves, in logarithms a round or a tree."""
    clip_count_noise: float | None = None
    """Standard deviation of the noise on the count of clipped updates, in clients; report-goal / 20 where it is not
    given, but at least the noise multiplier."""
    noise_seed: Literal["entropy", "experiment"] = "entropy"
    """entropy: noise nobody can compute again; the ledger's folder keeps its secret. experiment: noise that follows
    from the seed, for runs that must be repeatable; such a run is NOT PRIVATE, and says so."""

    def check_privacy(self, sampler: str, clip_norm: float | None, weighting: str, audited: bool) -> None:
        """Refuse settings that break a guarantee, or do nothing.

        Args:
          sampler: how cohorts are drawn.
          clip_norm: of updates, on the server.
          weighting: of clients.
          audited: whether a lower bound on epsilon will be stated, which is one at delta.

        Raises:
          ConfigurationError: there is one.
        """
        if self.privacy not in get_args(PrivacyName):
            raise ConfigurationError(f"privacy is {self.privacy!r}, but must be one of {get_args(PrivacyName)}")
        if self.delta is not None and not 0 < self.delta < 1:
            raise ConfigurationError(f"delta is {self.delta}, but must lie between 0 and 1")
        if self.privacy == "none":
            without = tuple(name for name in _SETTINGS if name != "delta" or not audited)
            self._refuse_without_effect(without, "without privacy")
            return
        if self.privacy not in TREES:
            self._refuse_without_effect(_TREE_SETTINGS, f"with the privacy mechanism {self.privacy}")
        if self.privacy != "banded":
            self._refuse_without_effect(("bands",), f"with the privacy mechanism {self.privacy}")
        if self.clip_quantile is None:
            self._refuse_without_effect(("clip_quantile_rate", "clip_count_noise"), "without clip_quantile")
        if sampler not in PRIVATE_SAMPLERS:
            raise ConfigurationError(
                f"cohort_sampler is {sampler}, for which there is no sound analysis: it neither bounds how often a "
                f"client takes part, nor draws every client independently. Give one of {', '.join(PRIVATE_SAMPLERS)}"
            )
        if clip_norm is None:
            raise ConfigurationError("privacy needs update_clip_norm: without it one client could move the sum at will")
        if weighting == "examples":
            raise ConfigurationError(
                "weighting is examples, but with privacy all clients must weigh the same, since nothing bounds "
                "what one says that it has; give weighting uniform, or leave it out"
            )
        given = [
            name for name in ("noise_multiplier", "target_epsilon", "target_rho") if getattr(self, name) is not None
        ]
        if len(given) != 1:
            raise ConfigurationError(
                f"privacy needs exactly one of noise_multiplier, target_epsilon and target_rho, but "
                f"{given or 'none'} is given"
            )
        for name in ("noise_multiplier", "target_epsilon", "target_rho"):
            value = getattr(self, name)
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise ConfigurationError(f"{name} is {value}, but must be positive and finite")
        if self.report_goal is not None and self.report_goal < 1:
            raise ConfigurationError(f"report_goal is {self.report_goal}, but must be at least 1")

    def _refuse_without_effect(self, names: tuple[str, ...], why: str) -> None:
        defaults = {name: field.default for name, field in PrivacySettings.__dataclass_fields__.items()}
        for name in names:
            if getattr(self, name) != defaults[name]:
                raise ConfigurationError(f"{name} is {getattr(self, name)}, which does nothing {why}; leave it out")
