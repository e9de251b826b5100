"""Grids of trainings: their settings, how they are run, and what they measure."""
