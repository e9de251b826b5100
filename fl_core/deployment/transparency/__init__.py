"""The server's log of what devices are told: plans, statements and releases, as a Merkle tree with signed heads."""
