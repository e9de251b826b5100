"""What a trained model is worth, to whom, and what it has memorised."""
