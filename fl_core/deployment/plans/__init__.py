"""Plans: what a client trains, as programs that need none of our code; see docs/protocol.md."""

from fedlm.fl_core.extras import extra

with extra("deploy"):
    import cryptography as cryptography
