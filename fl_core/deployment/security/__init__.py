"""Who may talk to whom: keys, certificates, enrolment, operators."""

from fedlm.fl_core.extras import extra

with extra("deploy"):
    import cryptography as cryptography
