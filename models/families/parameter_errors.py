"""Constants of models with re-attention: what is known of the noise in their parameters."""

import dataclasses
import hashlib
import json
import math
from dataclasses import dataclass

import numpy as np

from fedlm.models.errors import ConfigurationError, setting
from fedlm.models.families import moments


@dataclass(frozen=True)
class ParameterErrors:
    """What is known of the noise in parameters before training.

    Attributes:
      noise_batch_ratio: standard deviation of the noise on a step's mean, in clip norms; 0 for no noise.
      relevance: of each token id, the probability that it occurs in a unit whose gradient is clipped, above 0 and at
        most 1.

    Example:
      >>> ParameterErrors(0.01, (1.0, 0.5)).token_variance().tolist()
      [9.999999747378752e-05, 0.00039999998989515007]
    """

    noise_batch_ratio: float
    relevance: tuple[float, ...]

    def __post_init__(self) -> None:
        if not (self.noise_batch_ratio >= 0 and math.isfinite(self.noise_batch_ratio)):
            raise ConfigurationError(
                f"{setting('noise_batch_ratio')} is {self.noise_batch_ratio}, but must be at least 0 and finite"
            )
        for token, value in enumerate(self.relevance):
            if not 0 < value <= 1:
                raise ConfigurationError(
                    f"the relevance of token {token} is {value}, but must be above 0, and 1 at most"
                )

    @property
    def variance(self) -> float:
        """Of the error of parameters that are relevant to every unit."""
        return self.noise_batch_ratio**2

    def token_variance(self) -> np.ndarray:
        """Compute the variance of the error of each token's embedding, float32 [vocabulary]."""
        error = moments.effective_error(self.noise_batch_ratio, np.asarray(self.relevance, np.float64))  # type: ignore[arg-type]
        return np.square(error).astype(np.float32)

    def permuted(self, seed: int) -> "ParameterErrors":
        """Exchange the relevances among the tokens at random: a correction of the same sizes that knows nothing."""
        order = np.random.default_rng(seed).permutation(len(self.relevance))
        return dataclasses.replace(self, relevance=tuple(self.relevance[token] for token in order))

    def fingerprint(self) -> str:
        """Compute the SHA-256 by which a model with these constants is known."""
        numbers = [float(self.noise_batch_ratio).hex(), *(float(value).hex() for value in self.relevance)]
        return hashlib.sha256(json.dumps(numbers).encode()).hexdigest()
