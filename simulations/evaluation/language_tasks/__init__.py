"""Scores of a run's model on the tasks of lm-evaluation-harness (Gao et al. 2024), which is an optional dependency."""
