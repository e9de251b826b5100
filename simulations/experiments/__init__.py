"""Simulated runs and comparisons of them."""
