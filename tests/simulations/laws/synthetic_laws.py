"""A world whose losses are known: what trainings there would measure, and the surface that fits them exactly."""

import itertools

import numpy as np

from fedlm.simulations.laws.forms.fitted_form import FittedForm
from fedlm.simulations.laws.measurements import make_measurements
from fedlm.simulations.laws.surface import LossSurface

PUBLISHED_MODELS = {
    "BertTiny": 4.5e6,
    "BertMini": 11.4e6,
    "BertSmall": 29e6,
    "BertMedium": 41e6,
    "BertBase": 109e6,
    "BertLarge": 335e6,
}
SMALL_MODELS = {"tiny": 1.3e5, "small": 6.6e5, "large": 3.3e6}
COEFFICIENTS = {"E": 0.9, "A": 300.0, "a": 0.4, "B": 500.0, "b": 0.42, "C": 3.0, "g": 0.95, "a2": -0.07}
RATES = (2**-9, 2**-8, 2**-7)


def true_loss(parameters, examples, ratio):
    """Equation 3 of McKenna et al. 2025, with coefficients made up."""
    values = COEFFICIENTS
    saturated = 1 / (1 + np.exp(-(np.log(np.maximum(ratio, 1e-300)) + 8) / 1.6))
    noise = np.where(np.asarray(ratio) > 0, values["C"] * saturated ** values["g"] / parameters ** values["a2"], 0.0)
    return values["E"] + values["A"] / parameters ** values["a"] + values["B"] / examples ** values["b"] + noise


def surface_of(models=PUBLISHED_MODELS, steps=None, batch_size=1024, length=512, draws=3, measured_steps=128_000.0):
    """The surface that a perfect fit would find."""
    steps = np.array(1000 * 2.0 ** np.arange(14)) if steps is None else np.asarray(steps, float)
    parameters = np.array(list(models.values()))
    ratios = 2.0 ** np.arange(-23, -5)
    grid = parameters[:, None, None], batch_size * steps[:, None], ratios
    loss = true_loss(*grid)
    noiseless = true_loss(parameters[:, None], batch_size * steps, 0.0)
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


def measurements_of(models=SMALL_MODELS, ratios=(0.0, 2**-14, 2**-11, 2**-8), steps=512, block=32, seeds=(0, 1)):
    """What trainings of a small grid measure: a parabola between the rates, and a little noise."""
    random = np.random.default_rng(0)
    rows = []
    for (name, parameters), ratio, rate, seed in itertools.product(models.items(), ratios, RATES, seeds):
        for step in range(block, steps + 1, block):
            off = np.log2(rate) + 8.2
            loss = true_loss(parameters, 32.0 * step, ratio) * (1 + 0.01 * off**2) * (1 + 0.001 * random.normal())
            rows.append(
                (name, parameters, 0.8 * parameters, rate, ratio, 32, 32, steps, seed, step, loss, 0.001 * loss)
            )
    names = (
        "model parameters non_embedding_parameters learning_rate noise_batch_ratio batch_size length steps seed step"
    )
    names = (*names.split(), "loss", "loss_error")
    columns = dict(zip(names, zip(*rows, strict=True), strict=True))
    return make_measurements(**columns, gradient_noise_scale=np.full(len(rows), 100.0))


def fitted_form(name, **coefficients):
    """A law as if it had been fitted, the last coefficient not identified."""
    intervals = {one: (0.9 * value, 1.1 * value) for one, value in coefficients.items()}
    last = list(coefficients)[-1]
    return FittedForm(name, coefficients, intervals, 0.9, {last: "made up"}, 12, 6, 0.01, 8, 7)
