"""What operators see of a server that runs: metrics, and an overview as a page and as JSON."""
