"""English of the Python standard library, one module a client."""
