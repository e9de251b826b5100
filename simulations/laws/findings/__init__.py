"""Findings of the paper on private scaling laws, each tested on given laws as far as their grid reaches."""
