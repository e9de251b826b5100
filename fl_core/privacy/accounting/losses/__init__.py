"""Privacy losses of single releases and their sums, on grids, between bounds."""
