"""Sums of integers with noise of every client: what a client does with its update before it leaves the device, and the
way back on the server. NumPy alone; simulations, clients with JAX and clients of plans run this same code."""
