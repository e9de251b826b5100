"""What lies in the folder of a run: its lock, its rights, checkpoints, metrics, and where other files are."""
