"""Models of other programs as runs, and models of runs as other programs read them."""
