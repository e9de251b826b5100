"""Epsilon of sampling that no closed form tells: a person's bins, and a min-separation, by Monte Carlo."""
