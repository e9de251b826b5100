"""Measurements that obey a known law, with noise, as trainings of a grid would give them, and their exact fit."""

import dataclasses
from dataclasses import dataclass

import numpy as np

from fedlm.simulations.laws.forms.fitted_form import FittedForm
from fedlm.simulations.laws.forms.rows import critical_batch, unseen_loss
from fedlm.simulations.laws.measuring.measurements import make_measurements
from fedlm.simulations.laws.surface.loss_surface import LossSurface

RATES = (2**-7, 2**-8, 2**-9)
SIZES = (4_500_000, 11_400_000, 29_000_000, 41_000_000, 109_000_000, 335_000_000)
PUBLISHED_MODELS = dict(
    zip(("BertTiny", "BertMini", "BertSmall", "BertMedium", "BertBase", "BertLarge"), SIZES, strict=True)
)
SMALL_MODELS = {"tiny": 1.3e5, "small": 6.6e5, "large": 3.3e6}
CHINCHILLA = {"E": 1.69, "A": 406.4, "alpha": 0.34, "B": 410.7, "beta": 0.28}
"""Hoffmann et al. 2022, equation 10."""
MCKENNA_L2 = {"E": 1.2, "A": 900.0, "a": 0.47, "B": 20.0, "b": 0.25, "C": 1.6, "g": 0.95, "a2": -0.07}


@dataclass(frozen=True)
class Truth:
    """Form (3) of McKenna et al. 2025, appendix E, E + A/M^a + B/N^b + C s'^g / M^a2 with N = steps x batch size.

    The learning rate multiplies it by 1 + `curvature` x (log2 of the rate - log2 of the best one)^2, see `best_rate`.
    """

    E: float = 1.1
    A: float = 900.0
    B: float = 6.0
    C: float = 4.0
    a: float = 0.47
    b: float = 0.12
    g: float = 0.95
    a2: float = -0.03
    curvature: float = 0.02
    batch_size: int = 1024

    def loss(self, parameters, steps, ratio, learning_rate=None):
        noise = np.where(np.asarray(ratio) > 0, 1 / (1 + np.exp(-(np.log(np.maximum(ratio, 1e-300)) + 8) / 1.6)), 0.0)
        loss = (
            self.E
            + self.A / np.asarray(parameters, float) ** self.a
            + self.B / (np.asarray(steps, float) * self.batch_size) ** self.b
            + self.C * noise**self.g / np.asarray(parameters, float) ** self.a2
        )
        if learning_rate is None:
            return loss
        return loss * (1 + self.curvature * np.log2(learning_rate / self.best_rate(ratio)) ** 2)

    def best_rate(self, ratio):
        """One of the three measured rates for every ratio, so that their minimum is the law's."""
        return 2.0 ** np.select([np.asarray(ratio) >= 2.0**-10, np.asarray(ratio) >= 2.0**-16], [-9, -8], -7)


COEFFICIENTS = {"E": 0.9, "A": 300.0, "a": 0.4, "B": 500.0, "b": 0.42, "C": 3.0, "g": 0.95, "a2": -0.07}
WORLD = Truth(**COEFFICIENTS)
"""That of figures and plans."""


def laid_out(models, axes, others=0.8, **columns):
    """Lay out runs without losses: every model, named by its parameters or as they come, with every combination of
    other columns, in the order of `axes`; `others` is the share of parameters that are not embeddings."""
    names = list(models) if isinstance(models, dict) else [f"model{number}" for number in range(len(models))]
    parameters = np.array(list(models.values()) if isinstance(models, dict) else models, float)
    model, *values = (part.ravel() for part in np.meshgrid(range(len(names)), *axes.values(), indexing="ij"))
    found = {
        "model": np.array(names, object)[model.astype(int)],
        "parameters": np.round(parameters[model.astype(int)]),
        "non_embedding_parameters": np.round(others * parameters[model.astype(int)]),
        "loss": 1.0,
        "loss_error": np.nan,
        "gradient_noise_scale": np.nan,
    }
    return make_measurements(**found | dict(zip(axes, values, strict=True)) | columns)


@dataclass(frozen=True)
class Grid:
    """Which trainings there are, and how their losses scatter."""

    parameters: tuple[float, ...]
    ratios: tuple[float, ...]
    steps: int
    block: int
    seeds: int = 1
    learning_rates: tuple[float, ...] = RATES
    example_spread: float = 1.0  # standard deviation of an example's loss; a block's mean has its share
    seed_spread: float = 0.0  # relative, of a training as a whole
    glitches: float = 0.0  # share of blocks that a spike of up to a tenth lifts
    batch_size: int = 1024
    length: int = 512

    def measure(self, truth, seed=0):
        random = np.random.default_rng(seed)
        steps = np.arange(self.block, self.steps + 1, self.block)
        axes = {"learning_rate": self.learning_rates, "noise_batch_ratio": self.ratios, "seed": range(self.seeds)}
        error = self.example_spread / np.sqrt(self.block * self.batch_size)
        settings = {"batch_size": self.batch_size, "length": self.length, "steps": self.steps}
        rows = laid_out(self.parameters, axes | {"step": steps}, loss_error=error, **settings)
        parameters = np.repeat(self.parameters, len(rows) // len(self.parameters))
        loss = truth.loss(parameters, rows.step, rows.noise_batch_ratio, rows.learning_rate)
        shape = (len(rows) // len(steps), 1)
        loss = loss * np.repeat(1 + self.seed_spread * random.standard_normal(shape), len(steps), axis=1).ravel()
        loss = loss + error * random.standard_normal(len(loss))
        loss = loss * (1 + (random.random(len(loss)) < self.glitches) * random.uniform(0.02, 0.1, len(loss)))
        return dataclasses.replace(rows, loss=loss)


SMALL = Grid(
    parameters=(130_000, 270_000, 660_000, 1_870_000, 3_280_000),
    ratios=(0.0, *(2.0**-power for power in (14, 12, 10, 8, 6))),
    steps=1024,
    block=32,
    seeds=2,
    seed_spread=0.002,
    glitches=0.02,
    batch_size=32,
    length=32,
)
FEW = dataclasses.replace(
    SMALL,
    parameters=tuple(SMALL_MODELS.values()),
    ratios=(0.0, 2**-14, 2**-11, 2**-8),
    steps=512,
    seed_spread=0.001,
    glitches=0.0,
)
PUBLISHED = Grid(
    parameters=(*SIZES, 778e6),
    ratios=(0.0, *(2.0**-power for power in range(23, 5, -1))),
    steps=128_000,
    block=100,
    seed_spread=0.0,
    glitches=0.005,
)


def grid(
    sizes=SIZES,
    steps=(16_000, 32_000, 64_000, 128_000),
    blocks=1,
    noise_batch_ratios=(0.0,),
    learning_rates=(0.01,),
    seeds=1,
    batch_sizes=(1024,),
    length=512,
    training_examples=(0,),
):
    """Lay out runs of several lengths without losses, each of some blocks."""
    axes = {
        "steps": steps,
        "step": range(1, blocks + 1),
        "noise_batch_ratio": noise_batch_ratios,
        "learning_rate": learning_rates,
        "seed": range(seeds),
        "batch_size": batch_sizes,
        "training_examples": training_examples,
    }
    rows = laid_out(sizes, axes, others=1, length=length)
    return dataclasses.replace(rows, step=rows.steps * rows.step // blocks)


def obeying(form, values, measurements, noise=0.0, seed=0):
    """Fill in losses of a law, or what else it gives, with noise of some standard deviation in their logarithms."""
    exact = form.predict(values, form.variables(measurements))
    noisy = exact * np.exp(np.random.default_rng(seed).normal(0, noise, len(measurements)))
    if form.target is critical_batch:
        return dataclasses.replace(measurements, gradient_noise_scale=noisy / measurements.length)
    heldout = noisy if form.target is unseen_loss else measurements.heldout_loss
    return dataclasses.replace(measurements, loss=noisy, heldout_loss=heldout)


def surface_of(models=PUBLISHED_MODELS, steps=None, batch_size=1024, length=512, draws=3, measured_steps=128_000.0):
    """The surface that a perfect fit would find."""
    steps = np.array(1000 * 2.0 ** np.arange(14)) if steps is None else np.asarray(steps, float)
    parameters = np.array(list(models.values()))
    ratios = 2.0 ** np.arange(-23, -5)
    truth = dataclasses.replace(WORLD, batch_size=batch_size)
    loss = truth.loss(parameters[:, None, None], steps[:, None], ratios)
    noiseless = truth.loss(parameters[:, None], steps, 0.0)
    factors = 1 + 0.002 * np.arange(-(draws // 2), draws - draws // 2)
    return LossSurface(
        models=tuple(models),
        parameters=parameters,
        steps=steps,
        noise_batch_ratios=ratios,
        loss=loss,
        noiseless=noiseless,
        learning_rates=np.full(loss.shape, RATES[1]),
        noiseless_learning_rates=np.full(noiseless.shape, RATES[1]),
        curves=np.full((len(parameters), 1 + len(ratios), 3), np.nan),
        measured_steps=measured_steps,
        batch_size=batch_size,
        length=length,
        method="paper",
        draws=factors[:, None, None, None] * loss,
        noiseless_draws=factors[:, None, None] * noiseless,
    )


def fitted_form(name, **coefficients):
    """A law as if it had been fitted, the last coefficient not identified."""
    intervals = {one: (0.9 * value, 1.1 * value) for one, value in coefficients.items()}
    last = list(coefficients)[-1]
    return FittedForm(name, coefficients, intervals, 0.9, {last: "made up"}, 12, 6, 0.01, 8, 7)
