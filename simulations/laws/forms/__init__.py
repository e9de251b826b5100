"""Parametric scaling laws: equations of the loss, a file each, and how they are fitted."""
