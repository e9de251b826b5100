"""Discrete Gaussian noise of each client (Kairouz, Liu and Steinke 2021)."""

import math

import numpy as np

from fedlm.fedlm_client.distributed_noise.bounds import LEAST_DEVIATION
from fedlm.fedlm_client.distributed_noise.lattice import Lattice
from fedlm.fl_core.privacy.accounting.distributed_noise import ORDERS, discrete_gaussian_divergences
from fedlm.fl_core.privacy.mechanisms.skellam import Distributed, Skellam


class DiscreteGaussian(Distributed):
    """Integers by the density of a Gaussian; sums of them are only nearly such noise."""

    name = "discrete_gaussian"
    kind = "discrete_gaussian"
    label = "of each client, discrete Gaussian"
    summary = "discrete Gaussian noise of each client, fresh in every round (distributed DP)"
    help = Skellam.help

    def divergences(self, lattice: Lattice, survivors: int) -> np.ndarray:
        deviation = math.sqrt(lattice.variance)
        if deviation < LEAST_DEVIATION:
            return np.full(len(ORDERS), math.inf)
        return discrete_gaussian_divergences(lattice.sensitivity(), survivors, deviation, lattice.dimension)


MECHANISM = DiscreteGaussian()
