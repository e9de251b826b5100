"""What is measured, side by side with peers; each module is one command with committed results."""
