"""What is counted in the text of a run's people beside its trainings, and what that spends of their privacy."""
