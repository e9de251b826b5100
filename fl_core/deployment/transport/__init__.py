"""What carries the messages: HTTP."""
