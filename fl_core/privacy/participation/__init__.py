"""What is promised about how often, and how close together, one client takes part: accounting relies on nothing
else."""
