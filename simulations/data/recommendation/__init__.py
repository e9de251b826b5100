"""Data of recommendation: one sequence of items a user, the last of which are held out."""
