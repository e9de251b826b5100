"""Epsilon and delta of sums of privacy losses, between bounds that hold at any delta that a float can express.

The sum S of the releases' losses has `delta(epsilon) = E[max(0, 1 - exp(epsilon - S))]`. Its distribution is a power of
a Fourier transform. A transform's rounding error is relative to all of the mass, of which delta may be a part of
1e-12. So masses are tilted first: multiplied by `exp(tilt loss)` and divided by their sum M, which moves the bulk to
where epsilon is. With T the tilted masses and M the product of all sums, at a point s of the grid

    delta(s) = M exp(-tilt s) sum over y >= 0 of T(s + y) exp(-tilt y) (1 - exp(-y)),

whose sum is of positive terms, and whose factors stay logarithms to the end. With this all errors are relative to a
mass that is of delta's size. They are bounded, and the bound is in the result:

- of transforms and their powers, in the mean square (`loss_spectra`);
- of what lies outside the window, and of what is cut off: by Chernoff's inequality on the masses themselves;
- of masses on the grid and of where their losses are (`loss_grids`), and of exponentials and sums.

`docs/design/accounting.md` has the proof; statements are numbered there.

Where one rare loss is so large that no tilt brings it together with the others, there are two ways out. Losses that are
far above epsilon need not be computed (`MixedLoss.cap`): with J the event that there is one,
`P(J) - exp(epsilon) Q(J) <= E[max(0, 1 - exp(epsilon - S)); J] <= P(J)`. And where only sums with a large loss reach
epsilon, only these are computed, and the others are bounded by Chernoff's inequality.
"""

import math

import numpy as np

from fedlm.fl_core.privacy.accounting.losses.loss_profiles import (
    LITTLE,
    MOST_EXPONENT,
    Profile,
    computed,
    grown,
    is_too_wide,
    points_of,
)
from fedlm.fl_core.privacy.accounting.losses.loss_windows import (
    Window,
    window_for_epsilon,
    window_of_jumps,
)
from fedlm.fl_core.privacy.accounting.losses.quick_bounds import (
    OF_TAILS,
    Losses,
    chernoff_delta,
    chernoff_epsilon,
    largest_sum,
    mass_above,
    total_variation,
    with_cap_for_delta,
    with_cap_for_epsilon,
)

_SMALL_ERROR = 1e-4  # of delta
_SMALL_ROUNDING = 2e-3  # of epsilon
_MOST_FINER_POINTS = 1 << 20  # where more than two times as many were wanted
_GUESSES = 3  # of where epsilon is, each from the one before


def upper_epsilon(losses: Losses, delta: float, finer: int = 0, near: float | None = None) -> float:
    """Bound epsilon at delta from above; grids with 2^finer times as many points bound it more closely, and it may help
    to know what it is near to."""
    if total_variation(losses) <= delta:
        return 0.0
    quick = chernoff_epsilon(losses, delta)
    near = quick if near is None else near
    return min(_epsilon(losses, delta, finer, below=False, near=near), quick) * (1 + LITTLE)


def lower_epsilon(losses: Losses, delta: float, finer: int = 0, near: float | None = None) -> float:
    """Bound epsilon at delta from below; see `upper_epsilon`."""
    if total_variation(losses) <= delta:
        return 0.0
    near = chernoff_epsilon(losses, delta) if near is None else near
    return _epsilon(losses, delta, finer, below=True, near=near) * (1 - LITTLE)


def upper_delta(losses: Losses, epsilon: float) -> float:
    """Bound delta at epsilon from above."""
    losses = with_cap_for_epsilon(losses, epsilon)
    quick = min(1.0, chernoff_delta(losses, epsilon))
    if largest_sum(losses) <= epsilon:
        return quick
    window: Window | None = window_for_epsilon(losses, epsilon, max(quick, 1e-250))
    found = quick
    for _ in range(2):
        if window is None or is_too_wide(window):
            break
        profile = computed(losses, window, 0, below=False)
        if epsilon <= profile.sums[-1]:
            at = epsilon - profile.shift
            found = min(found, profile.between(at) + float(profile.beside(np.asarray(at))))
        if profile.log_error(epsilon) < math.log(_SMALL_ERROR * found):
            break
        window = window_of_jumps(losses, epsilon, found)
    return min(1.0, found)


def _epsilon(losses: Losses, delta: float, finer: int, *, below: bool, near: float) -> float:
    """Bound epsilon, which is about `near`, on several grids, until one of them has small errors."""
    infinite = -math.expm1(sum(count * math.log1p(-loss.infinite) for count, loss in losses))
    if infinite and delta <= infinite * (1 - OF_TAILS if below else 1 + OF_TAILS):
        return math.inf
    better, found = (max, 0.0) if below else (min, math.inf)

    def is_close(window: Window) -> bool:
        """Better what is found, where the grid has not too many points; tell whether errors and rounding are small."""
        nonlocal found
        if is_too_wide(window) or (finer > 1 and points_of(window, finer) > _MOST_FINER_POINTS):
            return False
        profile = computed(losses, window, finer, below)
        here = _solve(profile, delta)
        found = better(found, here)
        # What rounding to the grid adds to epsilon, as in the choice of the spacing.
        rounding = releases * (profile.sums[1] - profile.sums[0]) ** 2 * (window.tilt + 1) / 8
        is_small = here < math.inf and profile.log_error(here) < math.log(_SMALL_ERROR * left)
        return is_small and (here == 0 or rounding < _SMALL_ROUNDING * here)

    releases = sum(count for count, _ in losses)
    guess, left = near, delta - mass_above(losses, 0.0)[0]
    for number in range(_GUESSES):
        if not 0 < guess < math.inf or left <= 0:
            return found
        if is_close(window_for_epsilon(losses, guess, left)):
            return found
        if not number:
            # Where the errors, or the window, are large, some losses may be far above the others.
            losses = with_cap_for_delta(losses, delta)
            left = delta - mass_above(losses, 0.0)[0]
        guess = found if 0 < found < math.inf else chernoff_epsilon(losses, delta)
    with_jump = window_of_jumps(losses, near if below else guess, left)
    if with_jump is not None:
        is_close(with_jump)
    return found


def _solve(profile: Profile, delta: float) -> float:
    """Find where the bound on delta(epsilon) passes delta."""
    found = _solved_on_grid(profile, delta)
    return max(0.0, found - profile.shift if profile.below else found + profile.shift)


def _solved_on_grid(profile: Profile, delta: float) -> float:
    sums, below = profile.sums, profile.below
    left = delta - profile.beside(sums)
    with np.errstate(divide="ignore", invalid="ignore"):
        too_much = np.flatnonzero((left <= 0) | (profile.log_computed() > np.log(left)))
    if not len(too_much):
        return 0.0 if below else float(sums[0])
    place = int(too_much[-1]) + 1
    if place == len(sums):
        return max(0.0, float(sums[-1])) if below else math.inf
    # Between two points the same losses lie above. Errors are no more than at the first, and all else is no less than
    # at the second.
    low, high = float(sums[place - 1]), float(sums[place])
    error = grown(profile.error, profile.tilt * (high - low))
    remains = float(left[place] if below else left[place - 1])
    if remains <= 0 or profile.steep[place] <= 0:
        return max(0.0, low if below else high)
    sign = -1.0 if below else 1.0
    log_wanted = math.log(remains) - sign * profile.factor - profile.log_moment + profile.tilt * high
    wanted = math.exp(min(log_wanted, MOST_EXPONENT)) - sign * error
    part = (wanted - float(profile.over[place])) / float(profile.steep[place])
    step = -math.log1p(-part) if 0 < part < 1 else high - low if part > 0 else 0.0
    return max(0.0, high - min(step, high - low))
