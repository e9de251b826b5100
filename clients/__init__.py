"""What runs on a device: its examples, its local training and what it sends to the server."""
