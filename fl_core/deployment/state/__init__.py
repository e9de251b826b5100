"""What a server remembers, in a database."""
