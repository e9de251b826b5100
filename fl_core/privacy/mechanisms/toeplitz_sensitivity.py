"""Strategy matrices of the Toeplitz mechanisms: how they are chosen, and how sensitive they are to one client.

They are chosen by jax-privacy; this module alone touches its `matrix_factorization`. It works in float64.
"""

import functools

import jax
import numpy as np
from jax_privacy.matrix_factorization import buffered_toeplitz, toeplitz

from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.privacy.participation import BoundedParticipation
from fedlm.fl_core.privacy.plan import PrivacyPlan

DEFAULT_BANDS = 16
_BUFFERS = 3
"""More made prefix sums of a thousand rounds no more exact; choosing them takes several seconds for each."""


def banded_coefficients(
    rounds: int, participation: BoundedParticipation, bands: int | None = None
) -> tuple[float, ...]:
    """Choose the banded Toeplitz strategy of the least mean squared error of prefix sums.

    Source: Choquette-Choo et al. 2023, "(Amplified) banded matrix factorization".

    Args:
      rounds: T.
      participation: what is enforced.
      bands: how many diagonals are not zero, at most the min-separation where a client takes part more than once; the
        mechanism keeps one draw of noise less than this in memory.

    Returns:
      The coefficients, as float32 numbers.

    Raises:
      ConfigurationError: there are more bands than fit, or there is no round.
    """
    _check_rounds(rounds)
    single = participation.most(rounds) == 1
    limit = rounds if single else min(participation.min_separation, rounds)
    bands = min(DEFAULT_BANDS, limit) if bands is None else bands
    if not 1 <= bands <= limit:
        raise ConfigurationError(
            f"bands is {bands}, but must lie between 1 and {limit}, the min-separation (the rounds, where a client "
            "takes part only once)"
        )
    with jax.enable_x64(True):
        found = np.asarray(toeplitz.optimize_banded_toeplitz(rounds, bands), np.float32)
    return tuple(map(float, found))


@functools.lru_cache(maxsize=64)
def blt_coefficients(rounds: int, participation: BoundedParticipation) -> tuple[float, ...]:
    """Choose the buffered linear Toeplitz strategy of the least greatest squared error of prefix sums.

    Source: McMahan et al. 2024, "A hassle-free algorithm for strong differential privacy in federated learning
    systems".

    Args:
      rounds: T.
      participation: what is enforced.

    Returns:
      Buffer decays and then output scales, as float32 numbers.

    Raises:
      ConfigurationError: there is no round.
    """
    _check_rounds(rounds)
    buffers = max(1, min(_BUFFERS, rounds - 1))
    with jax.enable_x64(True):
        found = buffered_toeplitz.optimize(
            n=rounds,
            min_sep=participation.min_separation,
            max_participations=participation.most(rounds),
            min_buffers=buffers,
            max_buffers=buffers,
        )
        values = np.concatenate([found.buf_decay, found.output_scale]).astype(np.float32)
    return tuple(map(float, values))


@functools.lru_cache(maxsize=4096)
def toeplitz_sensitivity_squared(plan: PrivacyPlan, rounds: int, most: int, min_separation: int) -> float:
    """Compute the squared sensitivity of a Toeplitz mechanism over so many rounds.

    Source: Kalinin and Lampert 2024, "Banded square root matrix factorization", theorem 2.

    Args:
      plan: names the mechanism and its coefficients.
      rounds: of one stretch of noise.
      most: how often a client takes part at most.
      min_separation: b.

    Returns:
      The squared sensitivity for updates of norm 1.

    Raises:
      ConfigurationError: the coefficients are not such as the theorem is about.
    """
    column = strategy_column(plan, rounds)
    if column.min() < 0 or np.any(np.diff(column) > 0):
        raise ConfigurationError("the coefficients of a Toeplitz mechanism must fall, and not below zero")
    # The worst is to take part as often, and as close together, as is allowed, from the first round on.
    shifts = np.pad(column, (0, -rounds % min_separation)).reshape(-1, min_separation)
    sums = np.cumsum(shifts, axis=0)
    sums[most:] -= np.cumsum(shifts, axis=0)[:-most] if most < len(sums) else 0
    return float(np.sum(sums.ravel()[:rounds] ** 2))


def strategy_column(plan: PrivacyPlan, rounds: int) -> np.ndarray:
    """Write out the first column of the strategy matrix C.

    Args:
      plan: names the mechanism and its coefficients.
      rounds: how many rows it has.

    Returns:
      float64 [rounds].
    """
    values = np.asarray(plan.coefficients, np.float64)
    if plan.mechanism == "banded":
        return np.pad(values, (0, max(0, rounds - len(values))))[:rounds]
    decays, scales = np.split(values, 2)
    powers = np.arange(rounds - 1)[:, None]
    return np.append(1.0, np.sum(scales * decays**powers, axis=1))


def _check_rounds(rounds: int) -> None:
    if rounds < 1:
        raise ConfigurationError(f"rounds is {rounds}, but must be at least 1")
