"""Where noise comes from, and how it is added to sums."""
