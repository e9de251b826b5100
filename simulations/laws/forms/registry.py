"""The parametric scaling laws by name, which is that of their file: a new one is a file and a line."""

from importlib import import_module

from fedlm.simulations.laws.forms.form import Form

_FILES = (
    "chinchilla",
    "mckenna_l1",
    "mckenna_l2",
    "kaplan_parameters",
    "kaplan_data",
    "kaplan_compute",
    "kaplan_least_compute",
    "kaplan_parameters_and_data",
    "kaplan_parameters_and_steps",
    "kaplan_critical_batch",
    "steps",
    "steps_within_run",
    "learning_rate",
)

FORMS: dict[str, Form] = {file: import_module(f"{__package__}.{file}").FORM for file in _FILES}
"""Example:
  >>> FORMS["chinchilla"].names
  ('E', 'A', 'alpha', 'B', 'beta')
"""

WHOLE_GRID = tuple(name for name, form in FORMS.items() if not form.same)
"""The names of the laws of many cells at once; the others are of one, see `cells.fit_cells`."""
