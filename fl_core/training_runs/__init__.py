"""What a run keeps on disk: its folder and lock, its record of rounds, and its private releases."""
