"""The private choice of the best of several runs, and what it spends."""
