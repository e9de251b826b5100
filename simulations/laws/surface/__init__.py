"""The loss by model size, steps and noise: fitted to a grid, and interpolated."""
