"""Plans: what a client trains, as programs that need none of our code; see docs/protocol.md."""
