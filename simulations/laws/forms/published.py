"""Coefficients that papers published, by name: laws to be used without fitting anything."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedlm.models.errors import ConfigurationError
from fedlm.simulations.laws.forms.registry import FORMS

_KAPLAN = "Kaplan et al. 2020, arXiv 2001.08361"
_KAPLAN_SETTING = (
    "nats per token of WebText2 with 50,257 words and a context of 1024; non-embedding parameters; PF-days of 8.64e19"
)
_MCKENNA = "McKenna et al. 2025, arXiv 2501.18914, appendix E"
_MCKENNA_SETTING = "BERT models by masked words; all parameters; training examples; E, A, B and C are not published"


@dataclass(frozen=True)
class PublishedLaw:
    """Coefficients of a form, as a paper gives them.

    Attributes:
      form: the law's name in the registry.
      values: by name; those that were not published are missing.
      citation: where they are.
      setting: what they hold of.
    """

    form: str
    values: Mapping[str, float]
    citation: str
    setting: str

    @property
    def missing(self) -> tuple[str, ...]:
        """The coefficients that were not published."""
        return tuple(name for name in FORMS[self.form].names if name not in self.values)

    def predict(self, data: Mapping[str, ArrayLike]) -> NDArray[np.float64]:
        """Evaluate the law. Raises ConfigurationError where a coefficient was not published."""
        if self.missing:
            raise ConfigurationError(
                f"{self.form}: {self.citation} publishes {', '.join(self.values)} but not {', '.join(self.missing)}: "
                "the law has no value. Fit the form to measurements with `fedlm laws fit`."
            )
        return FORMS[self.form].predict(self.values, data)


PUBLISHED: dict[str, PublishedLaw] = {
    "kaplan2020_parameters": PublishedLaw(
        "kaplan_parameters", {"N_c": 8.8e13, "alpha_N": 0.076}, f"{_KAPLAN}, equation 1.1", _KAPLAN_SETTING
    ),
    "kaplan2020_data": PublishedLaw(
        "kaplan_data", {"D_c": 5.4e13, "alpha_D": 0.095}, f"{_KAPLAN}, equation 1.2", _KAPLAN_SETTING
    ),
    "kaplan2020_compute": PublishedLaw(
        "kaplan_compute",
        {"C_c": 2e7, "alpha_C": 0.057},
        f"{_KAPLAN}, section 3.3; C_c is rounded, to 1.6e7 elsewhere in the paper",
        f"{_KAPLAN_SETTING}; batches of 2^19 tokens",
    ),
    "kaplan2020_least_compute": PublishedLaw(
        "kaplan_least_compute",
        {"C_c_min": 3.1e8, "alpha_C_min": 0.050},
        f"{_KAPLAN}, equation 1.3",
        _KAPLAN_SETTING,
    ),
    "kaplan2020_parameters_and_data": PublishedLaw(
        "kaplan_parameters_and_data",
        {"N_c": 6.4e13, "alpha_N": 0.076, "D_c": 1.8e13, "alpha_D": 0.103},
        f"{_KAPLAN}, table 2",
        f"{_KAPLAN_SETTING}; another fit than those of each alone",
    ),
    "kaplan2020_parameters_and_steps": PublishedLaw(
        "kaplan_parameters_and_steps",
        {"N_c": 6.5e13, "alpha_N": 0.077, "S_c": 2.1e3, "alpha_S": 0.76},
        f"{_KAPLAN}, table 3",
        f"{_KAPLAN_SETTING}; another fit than that of parameters alone",
    ),
    "kaplan2020_critical_batch": PublishedLaw(
        "kaplan_critical_batch", {"B_star": 2e8, "alpha_B": 0.21}, f"{_KAPLAN}, equation 1.4", _KAPLAN_SETTING
    ),
    "chinchilla": PublishedLaw(
        "chinchilla",
        {"E": 1.69, "A": 406.4, "alpha": 0.34, "B": 410.7, "beta": 0.28},
        "Hoffmann et al. 2022, arXiv 2203.15556, equation 10",
        "nats per token of MassiveText; all parameters",
    ),
    "mckenna2025_l1": PublishedLaw(
        "mckenna_l1", {"a": 0.71, "b": 12.87, "g": 0.19}, f"{_MCKENNA}, equation 1", _MCKENNA_SETTING
    ),
    "mckenna2025_l2": PublishedLaw(
        "mckenna_l2",
        {"a": 0.47, "b": 0.12, "g": 0.95, "a2": -0.07},
        f"{_MCKENNA}, equation 3",
        _MCKENNA_SETTING,
    ),
}
"""Example:
  >>> float(PUBLISHED["kaplan2020_parameters"].predict({"non_embedding_parameters": 8.8e13}))
  1.0
"""
