"""The noise mechanisms, a module each."""
