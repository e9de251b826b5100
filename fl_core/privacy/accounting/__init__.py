"""Privacy losses and their sums: epsilon and delta of any composition, between bounds."""
