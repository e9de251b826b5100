"""Scaling laws: grids of trainings, what they measured, what is fitted to it and planned by it."""
