"""Parametric scaling laws: equations of the loss, and how they are fitted."""
