"""Pictures of scaling laws, each of a table of numbers that is computed first and can be kept beside it."""
