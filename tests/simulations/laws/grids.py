"""Grids of trainings that obey a law, with noise."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from fedlm.simulations.laws.forms.form import Form
from fedlm.simulations.laws.forms.rows import critical_batch, unseen_loss
from fedlm.simulations.laws.measurements import Measurements, make_measurements

SIZES = (4_500_000, 11_400_000, 29_000_000, 41_000_000, 109_000_000, 335_000_000)
CHINCHILLA = {"E": 1.69, "A": 406.4, "alpha": 0.34, "B": 410.7, "beta": 0.28}
"""Hoffmann et al. 2022, equation 10."""
MCKENNA_L2 = {"E": 1.2, "A": 900.0, "a": 0.47, "B": 20.0, "b": 0.25, "C": 1.6, "g": 0.95, "a2": -0.07}


def grid(
    sizes: Sequence[int] = SIZES,
    steps: Sequence[int] = (16_000, 32_000, 64_000, 128_000),
    blocks: int = 1,
    noise_batch_ratios: Sequence[float] = (0.0,),
    learning_rates: Sequence[float] = (0.01,),
    seeds: int = 1,
    batch_sizes: Sequence[int] = (1024,),
    length: int = 512,
    training_examples: Sequence[int] = (0,),
) -> Measurements:
    """Lay out runs without losses, each of some blocks."""
    axes = (
        range(len(sizes)),
        steps,
        range(blocks),
        noise_batch_ratios,
        learning_rates,
        range(seeds),
        batch_sizes,
        training_examples,
    )
    size, run_steps, block, ratio, rate, seed, batch_size, examples = (
        axis.ravel() for axis in np.meshgrid(*axes, indexing="ij")
    )
    parameters = np.asarray(sizes)[size]
    return make_measurements(
        model=np.array([f"model{index}" for index in size], object),
        parameters=parameters,
        non_embedding_parameters=parameters,
        learning_rate=rate,
        noise_batch_ratio=ratio,
        batch_size=batch_size,
        length=length,
        steps=run_steps,
        seed=seed,
        step=run_steps * (block + 1) // blocks,
        training_examples=examples,
        loss=1.0,
        loss_error=np.nan,
        gradient_noise_scale=np.nan,
    )


def obeying(
    form: Form, values: Mapping[str, float], measurements: Measurements, noise: float = 0.0, seed: int = 0
) -> Measurements:
    """Fill in losses of a law, or what else it gives, with noise of some standard deviation in their logarithms."""
    exact = form.predict(values, form.variables(measurements))
    noisy = exact * np.exp(np.random.default_rng(seed).normal(0, noise, len(measurements)))
    if form.target is critical_batch:
        return dataclasses.replace(measurements, gradient_noise_scale=noisy / measurements.length)
    heldout = noisy if form.target is unseen_loss else measurements.heldout_loss
    return dataclasses.replace(measurements, loss=noisy, heldout_loss=heldout)
