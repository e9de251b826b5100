"""What a private run promises: its plan, how often a client takes part, and the epsilon that follows."""
