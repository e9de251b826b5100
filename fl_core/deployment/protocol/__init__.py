"""What clients and server say to each other, whatever carries it."""
