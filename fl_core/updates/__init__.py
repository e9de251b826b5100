"""Updates on their way: compression, and the bytes of a message."""
