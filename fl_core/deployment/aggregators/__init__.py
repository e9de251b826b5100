"""Several server processes that share the clients of one run."""
