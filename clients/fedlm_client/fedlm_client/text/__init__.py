"""A device's own text, and what is made of it."""
