"""Measurements of a known law, with noise, as trainings of a grid would give them."""

from dataclasses import dataclass

import numpy as np

from fedlm.simulations.laws.measurements import make_measurements


@dataclass(frozen=True)
class Truth:
    """Form (3) of McKenna et al. 2025, appendix E, E + A/M^a + B/N^b + C s'^g / M^a2 with N = steps x batch size.

    The learning rate multiplies it by 1 + `curvature` x (log2 of the rate - log2 of the best one)^2, see `best_rate`.
    """

    limit: float = 1.1
    by_parameters: float = 900.0
    by_examples: float = 6.0
    by_noise: float = 4.0
    a: float = 0.47
    b: float = 0.12
    g: float = 0.95
    a2: float = -0.03
    curvature: float = 0.02
    batch_size: int = 1024

    def loss(self, parameters, steps, ratio, learning_rate=None):
        noise = np.where(np.asarray(ratio) > 0, 1 / (1 + np.exp(-(np.log(np.maximum(ratio, 1e-300)) + 8) / 1.6)), 0.0)
        loss = (
            self.limit
            + self.by_parameters / np.asarray(parameters, float) ** self.a
            + self.by_examples / (np.asarray(steps, float) * self.batch_size) ** self.b
            + self.by_noise * noise**self.g / np.asarray(parameters, float) ** self.a2
        )
        if learning_rate is None:
            return loss
        return loss * (1 + self.curvature * np.log2(learning_rate / self.best_rate(ratio)) ** 2)

    def best_rate(self, ratio):
        """One of the three measured rates for every ratio, so that their minimum is the law's."""
        return 2.0 ** np.select([np.asarray(ratio) >= 2.0**-10, np.asarray(ratio) >= 2.0**-16], [-9, -8], -7)


@dataclass(frozen=True)
class Grid:
    """Which trainings there are, and how their losses scatter."""

    parameters: tuple[float, ...]
    ratios: tuple[float, ...]
    steps: int
    block: int
    seeds: int = 1
    learning_rates: tuple[float, ...] = (2.0**-7, 2.0**-8, 2.0**-9)
    example_spread: float = 1.0  # standard deviation of an example's loss; a block's mean has its share
    seed_spread: float = 0.0  # relative, of a training as a whole
    glitches: float = 0.0  # share of blocks that a spike of up to a tenth lifts
    batch_size: int = 1024
    length: int = 512

    def measure(self, truth, seed=0):
        random = np.random.default_rng(seed)
        steps = np.arange(self.block, self.steps + 1, self.block)
        axes = (range(len(self.parameters)), self.learning_rates, self.ratios, range(self.seeds), steps)
        model, rate, ratio, run, step = (part.ravel() for part in np.meshgrid(*axes, indexing="ij"))
        parameters = np.array(self.parameters)[model.astype(int)]
        loss = truth.loss(parameters, step, ratio, rate)
        error = self.example_spread / np.sqrt(self.block * self.batch_size)
        shape = (len(model) // len(steps), 1)
        loss = loss * np.repeat(1 + self.seed_spread * random.standard_normal(shape), len(steps), axis=1).ravel()
        loss = loss + error * random.standard_normal(len(loss))
        loss = loss * (1 + (random.random(len(loss)) < self.glitches) * random.uniform(0.02, 0.1, len(loss)))
        return make_measurements(
            model=np.array([f"model{number}" for number in range(len(self.parameters))], object)[model.astype(int)],
            parameters=np.round(parameters),
            non_embedding_parameters=np.round(parameters * 0.8),
            learning_rate=rate,
            noise_batch_ratio=ratio,
            batch_size=self.batch_size,
            length=self.length,
            steps=self.steps,
            seed=run,
            step=step,
            loss=loss,
            loss_error=error,
            gradient_noise_scale=np.nan,
        )


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
PUBLISHED = Grid(
    parameters=(4.5e6, 11.4e6, 29e6, 41e6, 109e6, 335e6, 778e6),
    ratios=(0.0, *(2.0**-power for power in range(23, 5, -1))),
    steps=128_000,
    block=100,
    seed_spread=0.0,
    glitches=0.005,
)
