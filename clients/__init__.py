"""What runs on a device: its examples, its local training and what it sends to the server."""

from fedlm.fl_core.extras import extra

with extra("deploy"):
    import cryptography as cryptography
    import h11 as h11
