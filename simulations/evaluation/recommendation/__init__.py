"""Scoring recommendations: where held-out items stand among the others."""
