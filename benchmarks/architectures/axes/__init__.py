"""How the gap between scale-invariant models and their twins moves along each axis of the setting."""
