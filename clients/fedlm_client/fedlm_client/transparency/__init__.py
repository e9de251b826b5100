"""What a device checks of the server's log of plans, statements and releases, and what it can show of it."""
