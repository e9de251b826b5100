"""Stack Exchange's dumps."""
