"""Privacy statements that others have published: their plans, by which this accountant finds its own numbers."""

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from fedlm.fl_core.privacy.mechanisms.banded import BandedSettings
from fedlm.fl_core.privacy.participation.limits import BoundedParticipation
from fedlm.fl_core.privacy.promise.central_plan import central_plan
from fedlm.fl_core.privacy.promise.guarantee import Guarantee, account, calibrate
from fedlm.fl_core.privacy.promise.plan import PrivacyPlan, plan_noise

_NO_DELTA = 1e-10  # of statements of rho alone, at which nothing is compared


@dataclass(frozen=True, kw_only=True)
class PublishedStatement:
    """What somebody has published, and the plan of it.

    Attributes:
      about: what was trained, or tried.
      source: where it is published.
      plan_words: the plan as it is published, in its own units.
      theirs: their `rho`, `epsilon`, or both.
      delta: at which they state epsilon; None of statements of rho alone.
      plan: makes ours of the same.
      within: how far apart theirs and ours may be, as a part of theirs; half of their last digit where they agree.
      why: why the two differ, or what a reader has to know to see that they agree.
      seconds: about how long the plan takes to make.
    """

    about: str
    source: str
    plan_words: str
    theirs: Mapping[str, float]
    delta: float | None = None
    plan: Callable[[], PrivacyPlan]
    within: float
    why: str
    seconds: int = 0


class Recomputed(NamedTuple):
    """What this accountant finds of a published plan."""

    plan: PrivacyPlan
    guarantee: Guarantee
    ours: dict[str, float]  # by the names of theirs
    differences: dict[str, float]  # ours less theirs, as a part of theirs


def recompute(statement: PublishedStatement) -> Recomputed:
    """Account a published plan."""
    plan = statement.plan()
    guarantee = account(plan, statement.delta or _NO_DELTA)
    ours = {name: getattr(guarantee, name) for name in statement.theirs}
    return Recomputed(
        plan, guarantee, ours, {name: ours[name] / theirs - 1 for name, theirs in statement.theirs.items()}
    )


@functools.lru_cache(maxsize=4)
def _coefficients(rounds: int, bands: int) -> tuple[float, ...]:
    once = BoundedParticipation(1)
    return plan_noise("banded", rounds, once, options=BandedSettings(bands=bands))(1.0).coefficients


def _banded(bands: int, noise_multiplier: float, between: int, most: int) -> Callable[[], PrivacyPlan]:
    def plan() -> PrivacyPlan:
        participation = BoundedParticipation(most, _apart(between))
        coefficients = _coefficients(2000, bands)
        return PrivacyPlan("banded", 2000, noise_multiplier, participation, coefficients=coefficients)

    return plan


def _tree(rounds: int, noise_multiplier: float, most: int | None, apart: int) -> Callable[[], PrivacyPlan]:
    return lambda: PrivacyPlan("tree", rounds, noise_multiplier, BoundedParticipation(most, apart))


def _apart(between: int) -> int:
    """The least difference of two rounds' numbers, from the least number of rounds between the two."""
    return between + 1


_GBOARD = "github.com/google-research/federated, mf_dpftrl_matrices/privacy_accounting.ipynb"
_THOUSAND = "1,000 bands, noise multiplier 8.35 in clip norms, where the matrix has columns of norm 1; at least"
_SPAIN = {"rho": 0.1506840301548885, "epsilon": 3.4240074094281336}
_STRONGEST = {"rho": 0.014342572340349278, "epsilon": 0.9935500950539097}
_WHOLE_COLUMNS = (
    "no difference but rounding: with no more bands than the separation, rho is k times the squared norm of a column "
    "over twice the squared noise multiplier, for any matrix. Ours is optimised here, and has columns of norm 1"
)
_CUT_COLUMNS = (
    "in their matrix all columns have norm 1. Ours, optimised here, is Toeplitz: the last round cuts off the column of "
    "the second participation, which counts for less"
)
_CONFIDENTIAL = "github.com/google-parfait/federated-compute, tests of fcp/confidentialcompute/python/accounting"
_BUFFERS = (0.9999999999921251, 0.9944453083640997, 0.8985923474607591, 0.4912001418098778)
_SCALES = (0.0070314825502323835, 0.10613806907600574, 0.1898159060327625, 0.1966594748073734)
_BY_HAND = "no difference; their separation is the difference of the numbers of two rounds, as ours is"
_DE = "De et al. 2022, arXiv 2204.13650; github.com/google-deepmind/jax_privacy, experiments/image_classification"
_RENYI = "they account by Renyi divergences, which we compute too; ours is by privacy loss distributions"


def _gboard(who: str, plan: Callable[[], PrivacyPlan], plan_words: str, columns: str) -> PublishedStatement:
    whole = columns == _WHOLE_COLUMNS
    return PublishedStatement(
        about=f"Gboard, {who}",
        source=_GBOARD,
        plan_words=f"2,000 rounds, {plan_words} at most",
        theirs=_SPAIN if whole else _STRONGEST,
        delta=1e-10,
        plan=plan,
        within=1e-6 if whole else 0.02,
        why=columns,
        seconds=30,
    )


def _by_hand(noise_multiplier: float, rounds: int, apart: int, rho: float) -> PublishedStatement:
    return PublishedStatement(
        about="one tree without restart",
        source=_CONFIDENTIAL,
        plan_words=f"{rounds} rounds, noise multiplier {noise_multiplier:g}, separation {apart}, any number of times",
        theirs={"rho": rho},
        plan=_tree(rounds, noise_multiplier, None, apart),
        within=1e-12,
        why=_BY_HAND,
    )


def _cifar(epsilon: float, noise_multiplier: float, steps: int) -> PublishedStatement:
    return PublishedStatement(
        about="CIFAR-10, a wide residual network (40-4)",
        source=_DE,
        plan_words=f"DP-SGD, 50,000 examples, batches of 4,096, {steps:,} steps, noise multiplier {noise_multiplier:g}",
        theirs={"epsilon": epsilon},
        delta=1e-5,
        plan=lambda: central_plan(50_000, 4096, steps, noise_multiplier),
        within=0.1,
        why=_RENYI,
    )


def _mckenna() -> PrivacyPlan:
    def with_noise(examples: int) -> Callable[[float], PrivacyPlan]:
        return lambda noise: central_plan(examples, 880_000, 49_000, noise)

    noise = calibrate(with_noise(10**7), 1e-8, epsilon=64).noise_multiplier
    return with_noise(10**8)(noise)


PUBLISHED_STATEMENTS: dict[str, PublishedStatement] = {
    "gboard-es-ES": _gboard(
        "Spanish of Spain",
        _banded(400, 1.411 * math.sqrt(5), between=484, most=3),
        "400 bands, noise multiplier 1.411 in clip norms, where the matrix has columns of norm 1 / sqrt(5); at least "
        "484 rounds between two of a client's, 3",
        _WHOLE_COLUMNS,
    ),
    "gboard-pt-BR": _gboard(
        "Portuguese of Brazil",
        _banded(1000, 8.35, between=1428, most=2),
        f"{_THOUSAND} 1,428 rounds between two of a client's, 2",
        _CUT_COLUMNS,
    ),
    "gboard-es-LatAm": _gboard(
        "Spanish of Latin America",
        _banded(1000, 8.35, between=1132, most=2),
        f"{_THOUSAND} 1,132 rounds between two of a client's, 2",
        _CUT_COLUMNS,
    ),
    "gboard-first-launch": PublishedStatement(
        about="Gboard, Spanish of Spain, the first launch with DP-FTRL",
        source="github.com/google-research/federated, dp_ftrl/blogpost_supplemental_privacy_accounting.ipynb",
        plan_words=(
            "one tree, 2,000 rounds, noise multiplier 7; at least 313 rounds between two of a client's, 6 at most"
        ),
        theirs={"rho": 0.81, "epsilon": 8.90},
        delta=1e-10,
        plan=_tree(2000, 7.0, 6, _apart(313)),
        within=0.05,
        why=(
            "rho is the same in their two digits; their epsilon follows from rho by Renyi divergences, ours from the "
            "Gaussian mechanism itself"
        ),
        seconds=1,
    ),
    "blt-four-buffers": PublishedStatement(
        about="a buffered linear Toeplitz matrix of four buffers",
        source=_CONFIDENTIAL,
        plan_words="100 rounds, noise multiplier 1, separation 50, 2 participations at most, buffers as published",
        theirs={"rho": 3.17226586},
        plan=lambda: PrivacyPlan("blt", 100, 1.0, BoundedParticipation(2, 50), coefficients=(*_BUFFERS, *_SCALES)),
        within=5e-9,
        why=_BY_HAND,
    ),
    "tree-4-rounds": _by_hand(1.0, 4, 2, 4.0),
    "tree-4-rounds-more-noise": _by_hand(2.0, 4, 2, 1.0),
    "tree-5-rounds": _by_hand(1.0, 5, 2, 4.5),
    "tree-7-rounds": _by_hand(1.0, 7, 2, 5.5),
    "tree-7-rounds-apart": _by_hand(1.0, 7, 3, 4.5),
    "ro-table-4": PublishedStatement(
        about="the production runs of Ro et al.",
        source="Ro et al. 2024, table 4",
        plan_words="one tree, 3,000 rounds, noise multiplier 7; how often a client takes part is not stated",
        theirs={"rho": 1.05},
        plan=_tree(3000, 7.0, 6, 410),
        within=0.01,
        why=(
            "the plan is incomplete. Their rho needs a squared sensitivity of 103, which no participation in one tree "
            "has. 6 times, in rounds whose numbers differ by 410 to 511, has 102; 7 times, by 499, has 104. Ours is "
            "the first of these"
        ),
        seconds=1,
    ),
    "vaultgemma": PublishedStatement(
        about="VaultGemma 1B, each sequence of 1,024 tokens",
        source="VaultGemma 2025, arXiv 2510.15001, table 3",
        plan_words=(
            "DP-SGD, 100,000 steps, truncated Poisson batches of 517,989, noise multiplier 0.6143481, zero-out; the "
            "number of sequences and the most in a batch are not stated"
        ),
        theirs={"epsilon": 2.0},
        delta=1.1e-10,
        plan=lambda: central_plan(
            9_660_000_000, 517_989, 100_000, 0.6143481, truncated_batch_size=524_288, adjacency="zero_out"
        ),
        within=0.01,
        why=(
            "the plan is incomplete. Ours has 9.66e9 sequences, and 524,288 in a batch at most. With fewer sequences "
            "epsilon would be more"
        ),
        seconds=3,
    ),
    "mckenna-table-2": PublishedStatement(
        about="scaling laws, the best training for epsilon 4 and 1e8 examples",
        source="McKenna et al. 2025, arXiv 2501.18914, table 2",
        plan_words=(
            "DP-SGD, 49,000 steps, batches of 880,000. No noise is stated, but the row of epsilon 64 and 1e7 examples "
            "has the same training and loss, and so the same noise"
        ),
        theirs={"epsilon": 4.0},
        delta=1e-8,
        plan=_mckenna,
        within=0.05,
        why="their steps and batches have two digits; ours is the epsilon of the noise that the other row needs",
        seconds=1,
    ),
    "abadi-mnist": PublishedStatement(
        about="MNIST",
        source="Abadi et al. 2016, arXiv 1607.00133, figure 2",
        plan_words="DP-SGD, 60,000 examples, lots of 600, 10,000 steps, noise multiplier 4",
        theirs={"epsilon": 1.26},
        delta=1e-5,
        plan=lambda: central_plan(60_000, 600, 10_000, 4.0),
        within=0.3,
        why=(
            "their moments accountant bounds moments of whole orders, and takes epsilon from them by Markov's "
            "inequality. Renyi divergences give less, and privacy loss distributions less still"
        ),
    ),
    "de-cifar-1": _cifar(1.0, 10.0, 875),
    "de-cifar-2": _cifar(2.0, 6.0, 1125),
    "de-cifar-3": _cifar(3.0, 5.0, 1593),
}
"""By name. Whoever adds one has a test of it, and runs `tests/fedlm/commands/test_account_published.py` for its line in
docs/reference/published.md."""
