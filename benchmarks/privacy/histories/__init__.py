"""Random histories of what an operator does, beside a tally of whose data entered which release with which noise."""
