"""The server of a deployment: whom it selects, what it sends, what it accepts."""
