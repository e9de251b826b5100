"""Who may talk to whom: keys, certificates, enrolment, operators."""
