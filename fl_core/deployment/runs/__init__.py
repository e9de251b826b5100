"""Runs that a process of the server holds: one, or a queue of them."""
