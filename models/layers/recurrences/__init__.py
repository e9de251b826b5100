"""Recurrences over time: of CIFG, gated, and with layer norms."""
