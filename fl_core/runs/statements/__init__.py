"""What a released model says of its privacy, and how others check it."""
