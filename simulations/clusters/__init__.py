"""Cells of experiments on the machines of a cluster."""
