"""What clients do with their gradients, by name."""
