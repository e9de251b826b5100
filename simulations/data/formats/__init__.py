"""Data formats of other frameworks, which sources read and exports write."""
