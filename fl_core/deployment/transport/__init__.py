"""What carries the messages: HTTP."""

from fedlm.fl_core.extras import extra

with extra("deploy"):
    import h11 as h11
