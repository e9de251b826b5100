"""Speed of simulated rounds."""
