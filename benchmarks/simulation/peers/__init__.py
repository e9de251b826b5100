"""One program for each way to simulate a federated round; `benchmarks.simulation.against_peers` times them."""
