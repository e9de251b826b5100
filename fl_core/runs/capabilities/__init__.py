"""What a run may have beside what every run has: a file for each capability."""
