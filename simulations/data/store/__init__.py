"""Token sequences by client, on disk."""
