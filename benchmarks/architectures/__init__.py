"""Which choices make the models train as the papers say, and the comparison of the architectures."""
