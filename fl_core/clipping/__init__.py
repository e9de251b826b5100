"""Per-example gradient clipping for central training."""
