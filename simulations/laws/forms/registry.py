"""The parametric scaling laws by name, which is that of their file: a new one is a file and a line."""

from importlib import import_module

from fedlm.simulations.laws.forms.form import Form

_FILES = (
    "chinchilla",
    "mckenna_l1",
    "mckenna_l2",
)

FORMS: dict[str, Form] = {file: import_module(f"{__package__}.{file}").FORM for file in _FILES}
"""Example:
  >>> FORMS["chinchilla"].names
  ('E', 'A', 'alpha', 'B', 'beta')
"""
