"""What travels between a device and its server, and how."""
