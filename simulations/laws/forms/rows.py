"""Which rows of measurements a law is fitted to, and the variables that laws are made of."""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit

from fedlm.simulations.laws.measuring.measurements import Measurements

RUN = ("model", "learning_rate", "noise_batch_ratio", "batch_size", "length", "steps", "training_examples", "seed")
"""The columns that tell one training from another."""
CELL = ("model", "noise_batch_ratio", "batch_size", "length", "steps", "training_examples")
"""The columns that tell what was trained, whatever its learning rate and seed."""
SETTLED = 1 / 8
"""The share of a schedule after which a loss follows a power law: McKenna et al. fit from 16,000 of 128,000 steps."""
PETAFLOP_DAY = 8.64e19
"""Floating-point operations of a PF-day."""


def numbered(measurements: Measurements, columns: tuple[str, ...]) -> NDArray[np.int64]:
    """Number the rows' combinations of values in some columns: int64 [rows], from 0 without gaps."""
    numbers = np.zeros(len(measurements), np.int64)
    for column in columns:
        values, inverse = np.unique(getattr(measurements, column), return_inverse=True)
        numbers = np.unique(numbers * len(values) + inverse, return_inverse=True)[1]
    return numbers


def one_pass(measurements: Measurements) -> NDArray[np.bool_]:
    """Tell the blocks until which no example came twice, so that the loss in training is one on unseen text."""
    known = measurements.training_examples > 0
    return ~known | (measurements.batch_size * measurements.step <= measurements.training_examples)


def noiseless(measurements: Measurements) -> NDArray[np.bool_]:
    """Tell the blocks of trainings without noise until which no example came twice: bool [rows]."""
    return (measurements.noise_batch_ratio == 0) & one_pass(measurements)


def settled(measurements: Measurements, share: float = SETTLED) -> NDArray[np.bool_]:
    """Tell the blocks that ended after a share of the run's schedule: bool [rows]."""
    return measurements.step > share * measurements.steps


def final(measurements: Measurements) -> NDArray[np.bool_]:
    """Tell the last block of each run that reached its last step: bool [rows]."""
    return measurements.step == measurements.steps


def largest(numbers: NDArray[np.int64], values: NDArray[np.floating | np.integer]) -> NDArray[np.float64]:
    """Return for each row the largest value among the rows of the same number: float64 [rows]."""
    found = np.full(int(numbers.max(initial=-1)) + 1, -np.inf)
    np.maximum.at(found, numbers, values)
    return np.asarray(found[numbers])


def longest(measurements: Measurements) -> NDArray[np.bool_]:
    """Tell the rows of each model's longest runs, in tokens: bool [rows]."""
    tokens = measurements.batch_size * measurements.length * measurements.steps
    return tokens == largest(numbered(measurements, ("model", "noise_batch_ratio")), tokens)


def best_rate(measurements: Measurements) -> NDArray[np.bool_]:
    """Tell the rows of the best learning rate of each cell, whichever the seed: bool [rows].

    A rate is chosen once for a run, by the mean over seeds of `end_loss` at the last step that any run of the cell
    reached, and not at every step, where a minimum over noisy losses would be biased.
    """
    last = measurements.step == largest(numbered(measurements, CELL), measurements.step)
    return _lowest_rate(measurements, last, end_loss(measurements))


def end_loss(measurements: Measurements) -> NDArray[np.float64]:
    """Return for each row the loss at the end of its run: float64 [rows].

    It is the median of the last blocks, a sixteenth of the run's, but three where it has twelve, so that no single
    spike counts.
    """
    runs = numbered(measurements, RUN)
    by_step = np.lexsort((measurements.step, runs))
    ends = np.searchsorted(runs[by_step], np.arange(runs.max(initial=-1) + 1), side="right")
    losses = np.split(measurements.loss[by_step], ends[:-1])
    medians = np.array([np.median(one[-max(1, min(3, len(one) // 4), len(one) // 16) :]) for one in losses])
    return medians[runs] if len(runs) else np.zeros(0)


def stopped_early(measurements: Measurements) -> NDArray[np.bool_]:
    """Tell the block of each run at which early stopping ends it, of each cell's best learning rate: bool [rows].

    It is that of the lowest held-out loss; without one the last, where no example came twice. Runs without noise are
    taken that reached their last step.
    """
    losses = unseen_loss(measurements)
    runs = numbered(measurements, RUN)
    ended = largest(runs, final(measurements).astype(int)) > 0
    lowest = -largest(runs, -np.nan_to_num(measurements.heldout_loss, nan=np.inf))
    block = np.where(np.isfinite(lowest), measurements.heldout_loss == lowest, final(measurements))
    chosen = block & ended & (measurements.noise_batch_ratio == 0) & np.isfinite(losses)
    return chosen & _lowest_rate(measurements, chosen, losses)


def _lowest_rate(
    measurements: Measurements, compared: NDArray[np.bool_], losses: NDArray[np.float64]
) -> NDArray[np.bool_]:
    """Tell the rows of the learning rate of each cell whose mean loss over the compared rows is lowest: bool [rows]."""
    cells = numbered(measurements, CELL)
    rates = numbered(measurements, (*CELL, "learning_rate"))
    counts = np.bincount(rates[compared], minlength=rates.max(initial=-1) + 1)
    sums = np.bincount(rates[compared], losses[compared], minlength=len(counts))
    means = np.where(counts > 0, sums / np.maximum(counts, 1), np.inf)[rates]
    return (means == -largest(cells, -means)) & np.isfinite(means)


def unseen_loss(measurements: Measurements) -> NDArray[np.float64]:
    """Return the held-out loss, or that of training where there is none and no example came twice; NaN elsewhere."""
    trained = np.where(one_pass(measurements), measurements.loss, np.nan)
    return np.where(np.isfinite(measurements.heldout_loss), measurements.heldout_loss, trained)


def parameters(measurements: Measurements) -> NDArray[np.float64]:
    """Return all parameters, embeddings included: float64 [rows]."""
    return measurements.parameters.astype(np.float64)


def non_embedding_parameters(measurements: Measurements) -> NDArray[np.float64]:
    """Return the parameters that are in no table of embeddings: float64 [rows]."""
    return measurements.non_embedding_parameters.astype(np.float64)


def training_examples(measurements: Measurements) -> NDArray[np.float64]:
    """Return batch times steps: float64 [rows], in examples. It is what McKenna et al.'s appendix E calls N."""
    return (measurements.batch_size * measurements.step).astype(np.float64)


def tokens(measurements: Measurements) -> NDArray[np.float64]:
    """Return batch times length times steps, padding included: float64 [rows], in tokens."""
    return training_examples(measurements) * measurements.length


def data_tokens(measurements: Measurements) -> NDArray[np.float64]:
    """Return the tokens of the data set, each counted once; where its size is not known, those trained on so far."""
    examples = measurements.training_examples * measurements.length.astype(np.float64)
    return np.where(measurements.training_examples > 0, examples, tokens(measurements))


def compute(measurements: Measurements) -> NDArray[np.float64]:
    """Return 6 times non-embedding parameters times tokens: float64 [rows], in PF-days (Kaplan et al.)."""
    return 6 * non_embedding_parameters(measurements) * tokens(measurements) / PETAFLOP_DAY


def critical_batch(measurements: Measurements) -> NDArray[np.float64]:
    """Return the gradient noise scale in tokens: float64 [rows]; NaN where it was not measured."""
    return measurements.gradient_noise_scale * measurements.length


def least_compute(measurements: Measurements) -> NDArray[np.float64]:
    """Return C_min = C / (1 + B / B_crit): float64 [rows], in PF-days (Kaplan et al., equation 5.5)."""
    return compute(measurements) / (1 + measurements.batch_size / measurements.gradient_noise_scale)


def least_steps(measurements: Measurements) -> NDArray[np.float64]:
    """Return S_min = S / (1 + B_crit / B): float64 [rows] (Kaplan et al., equation 5.4)."""
    return measurements.step / (1 + measurements.gradient_noise_scale / measurements.batch_size)


def lowest_so_far(cost: NDArray[np.float64], loss: NDArray[np.float64], kept: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Tell the rows, among those that are kept, whose loss is below that of every cheaper one: bool [rows]."""
    order = np.flatnonzero(kept)[np.lexsort((loss[kept], cost[kept]))]
    before = np.minimum.accumulate(np.concatenate([[np.inf], loss[order]]))[:-1]
    found = np.zeros_like(kept)
    found[order[loss[order] < before]] = True
    return found


def course(measurements: Measurements) -> NDArray[np.bool_]:
    """Tell the blocks without noise after an eighth of the schedule, until an example came twice, at the best rate."""
    return settled(measurements) & noiseless(measurements) & best_rate(measurements)


def course_with_noise_scale(measurements: Measurements) -> NDArray[np.bool_]:
    """Tell the blocks of `course` in which the gradient noise scale was measured."""
    return course(measurements) & (critical_batch(measurements) > 0)


def best_of_compute(measurements: Measurements) -> NDArray[np.bool_]:
    """Tell the blocks of `course` whose loss no block of as little compute has.

    A minimum over noisy losses is somewhat too low.
    """
    return lowest_so_far(compute(measurements), measurements.loss, course(measurements))


def best_of_least_compute(measurements: Measurements) -> NDArray[np.bool_]:
    """Tell the same of C_min, among the blocks in which the noise scale was measured."""
    return lowest_so_far(least_compute(measurements), measurements.loss, course_with_noise_scale(measurements))


def end_with_noise(measurements: Measurements) -> NDArray[np.bool_]:
    """Tell the rows that McKenna et al. fit, at each cell's best learning rate.

    These have a noise-batch ratio above 5e-7, a loss of at most 8, and the last 28,000 of 128,000 steps, taken as that
    share of the schedule.

    With batches of one size these rows span training examples by a factor of 1.28 only, which cannot tell N's exponent.
    """
    kept = settled(measurements, 100_000 / 128_000) & (measurements.noise_batch_ratio > 5e-7)
    return kept & (measurements.loss <= 8.0) & one_pass(measurements) & best_rate(measurements)


def longest_ends_without_noise(measurements: Measurements) -> NDArray[np.bool_]:
    """Tell the last block of each model's longest runs without noise, at the best learning rate.

    Kaplan et al. train to near convergence. Runs that stop before make the exponent too small.
    """
    return final(measurements) & noiseless(measurements) & best_rate(measurements) & longest(measurements)


def stopped_early_of_largest(measurements: Measurements) -> NDArray[np.bool_]:
    """Tell the blocks of `stopped_early` of the largest model.

    Kaplan et al. train one large model on data sets of many sizes until the test loss rises.
    """
    return stopped_early(measurements) & (measurements.parameters == measurements.parameters.max(initial=0))


def saturating_noise(noise_batch_ratio: ArrayLike) -> NDArray[np.float64]:
    """Return s' = sigmoid((ln s + 8) / 1.6), from 0 without noise to 1: float64 (McKenna et al., equation 2).

    Its centre is a ratio of 2^-11.5. The paper writes log; another base than that of the natural one is off its grid.
    """
    with np.errstate(divide="ignore"):
        return np.asarray(expit((np.log(np.asarray(noise_batch_ratio, np.float64)) + 8.0) / 1.6))


VARIABLES: dict[str, Callable[[Measurements], NDArray[np.float64]]] = {
    "parameters": parameters,
    "non_embedding_parameters": non_embedding_parameters,
    "training_examples": training_examples,
    "tokens": tokens,
    "data_tokens": data_tokens,
    "compute": compute,
    "least_compute": least_compute,
    "least_steps": least_steps,
    "loss": lambda measurements: measurements.loss,
    "noise_batch_ratio": lambda measurements: measurements.noise_batch_ratio.astype(np.float64),
    "saturating_noise": lambda measurements: saturating_noise(measurements.noise_batch_ratio),
}
"""What laws are of, by name: float64 [rows] of measurements."""
