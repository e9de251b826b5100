"""Simulated rounds on the devices at hand."""
