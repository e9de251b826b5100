"""What a run of any kind keeps on disk, and how it goes on: folder, lock, checkpoints, metrics, releases."""
