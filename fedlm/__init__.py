"""The front door: the `fedlm` command."""
