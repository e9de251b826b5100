"""The parametric scaling laws by name: a new one is an entry here, and its variables and rows are functions of `rows`.

Coefficients have the paper's letters and variables whole names, since the letters of papers clash: N is all parameters
in Hoffmann et al., those outside of embeddings in Kaplan et al., and training examples in McKenna et al.
"""

import dataclasses
from typing import Any

from fedlm.simulations.laws.forms import rows
from fedlm.simulations.laws.forms.form import Coefficient, Form, amplitude, exponent, reference

_KAPLAN, _MCKENNA = "Kaplan et al. 2020, arXiv 2001.08361", "McKenna et al. 2025, arXiv 2501.18914"

_MCKENNA_L1 = Form(
    name="mckenna_l1",
    citation=f"{_MCKENNA}, appendix E, equation 1",
    equation=lambda c, x: (
        c["E"]
        + c["A"] / x["parameters"] ** c["a"]
        + c["B"] / x["training_examples"] ** c["b"]
        + c["C"] * x["noise_batch_ratio"] ** c["g"]
    ),
    text="L = E + A / M^a + B / N^b + C s^g",
    coefficients=(
        amplitude("E", "loss that nothing removes"),
        amplitude("A", "size of the term of parameters", "a"),
        exponent("a", "parameters"),
        amplitude("B", "size of the term of examples", "b"),
        exponent("b", "training_examples"),
        amplitude("C", "size of the term of noise", "g"),
        exponent("g", "noise_batch_ratio"),
    ),
    takes=("parameters", "training_examples", "noise_batch_ratio"),
    rows=rows.end_with_noise,
)


def _power_law(*, letter: str, scale: str, variable: str, unit: str, **others: Any) -> Form:
    """Return a law of one variable: (scale / variable) to an exponent."""
    slope = f"alpha_{letter}"
    return Form(
        equation=lambda c, x: (c[scale] / x[variable]) ** c[slope],
        text=f"L({letter}) = ({scale} / {letter})^{slope}",
        coefficients=(reference(scale, variable, f"{unit} at a loss of 1", slope), exponent(slope, variable)),
        takes=(variable,),
        **others,
    )


_ALL = (
    Form(
        name="chinchilla",
        citation="Hoffmann et al. 2022, arXiv 2203.15556, equation 2; in appendix E of McKenna et al. 2025",
        equation=lambda c, x: c["E"] + c["A"] / x["parameters"] ** c["alpha"] + c["B"] / x["tokens"] ** c["beta"],
        text="L = E + A / N^alpha + B / D^beta",
        coefficients=(
            amplitude("E", "loss that nothing removes"),
            amplitude("A", "size of the term of parameters", "alpha"),
            exponent("alpha", "parameters"),
            amplitude("B", "size of the term of tokens", "beta"),
            exponent("beta", "tokens"),
        ),
        takes=("parameters", "tokens"),
        # Blocks before the last overestimate what a schedule that ends there would reach, which biases beta (Hoffmann
        # et al., section 3.1). They are kept because grids have few schedule lengths.
        rows=rows.course,
    ),
    _MCKENNA_L1,
    dataclasses.replace(
        _MCKENNA_L1,
        name="mckenna_l2",
        citation=f"{_MCKENNA}, appendix E, equations 2 and 3",
        equation=lambda c, x: (
            c["E"]
            + c["A"] / x["parameters"] ** c["a"]
            + c["B"] / x["training_examples"] ** c["b"]
            + c["C"] * x["saturating_noise"] ** c["g"] / x["parameters"] ** c["a2"]
        ),
        text="L = E + A / M^a + B / N^b + C s'^g / M^a2,  s' = sigmoid((ln s + 8) / 1.6)",
        coefficients=(
            *_MCKENNA_L1.coefficients[:-1],
            exponent("g", "saturating_noise"),
            Coefficient(
                "a2",
                "exponent of parameters in the term of noise",
                "exponent",
                -2,
                2,
                (-0.5, 0.5),
                positive=False,
                variable="parameters",
                widest=0.4,
            ),
        ),
        takes=("parameters", "training_examples", "saturating_noise"),
    ),
    _power_law(
        name="kaplan_parameters",
        citation=f"{_KAPLAN}, equation 1.1",
        letter="N",
        scale="N_c",
        variable="non_embedding_parameters",
        unit="parameters",
        rows=rows.longest_ends_without_noise,
    ),
    _power_law(
        name="kaplan_data",
        citation=f"{_KAPLAN}, equation 1.2",
        letter="D",
        scale="D_c",
        variable="data_tokens",
        unit="tokens",
        rows=rows.stopped_early_of_largest,
        target=rows.unseen_loss,
    ),
    _power_law(
        name="kaplan_compute",
        citation=f"{_KAPLAN}, section 3.3",
        letter="C",
        scale="C_c",
        variable="compute",
        unit="PF-days",
        rows=rows.best_of_compute,
    ),
    _power_law(
        name="kaplan_least_compute",
        citation=f"{_KAPLAN}, equations 1.3 and 5.5",
        letter="C_min",
        scale="C_c_min",
        variable="least_compute",
        unit="PF-days",
        rows=rows.best_of_least_compute,
    ),
    Form(
        name="kaplan_parameters_and_data",
        citation=f"{_KAPLAN}, equation 1.5",
        equation=lambda c, x: (
            ((c["N_c"] / x["non_embedding_parameters"]) ** (c["alpha_N"] / c["alpha_D"]) + c["D_c"] / x["data_tokens"])
            ** c["alpha_D"]
        ),
        text="L(N, D) = ((N_c / N)^(alpha_N / alpha_D) + D_c / D)^alpha_D",
        coefficients=(
            reference("N_c", "non_embedding_parameters", "parameters at a loss of 1, data being endless", "alpha_N"),
            dataclasses.replace(exponent("alpha_N", "non_embedding_parameters"), stands_with="alpha_D"),
            reference("D_c", "data_tokens", "tokens at a loss of 1, models being endless", "alpha_D"),
            exponent("alpha_D", "data_tokens"),
        ),
        takes=("non_embedding_parameters", "data_tokens"),
        rows=rows.stopped_early,
        target=rows.unseen_loss,
    ),
    Form(
        name="kaplan_parameters_and_steps",
        citation=f"{_KAPLAN}, equation 1.6",
        equation=lambda c, x: (
            (c["N_c"] / x["non_embedding_parameters"]) ** c["alpha_N"] + (c["S_c"] / x["least_steps"]) ** c["alpha_S"]
        ),
        text="L(N, S_min) = (N_c / N)^alpha_N + (S_c / S_min)^alpha_S",
        coefficients=(
            reference("N_c", "non_embedding_parameters", "parameters at a loss of 1, steps being endless", "alpha_N"),
            exponent("alpha_N", "non_embedding_parameters"),
            reference("S_c", "least_steps", "steps at which their part of the loss is 1", "alpha_S"),
            exponent("alpha_S", "least_steps"),
        ),
        takes=("non_embedding_parameters", "least_steps"),
        rows=rows.course_with_noise_scale,
    ),
    Form(
        name="kaplan_critical_batch",
        citation=f"{_KAPLAN}, equation 1.4",
        equation=lambda c, x: c["B_star"] / x["loss"] ** (1 / c["alpha_B"]),
        text="B_crit(L) = B_star / L^(1 / alpha_B)",
        coefficients=(
            amplitude("B_star", "tokens of the critical batch at a loss of 1", "alpha_B"),
            exponent("alpha_B", "loss", "inverse exponent of the loss"),
        ),
        takes=("loss",),
        rows=rows.course_with_noise_scale,
        target=rows.critical_batch,  # which stands for the gradient noise scale, as in McCandlish et al. 2018
        least_spread=1.1,
    ),
)

FORMS: dict[str, Form] = {form.name: form for form in _ALL}
"""Example:
  >>> FORMS["chinchilla"].names
  ('E', 'A', 'alpha', 'B', 'beta')
"""
