"""The sub-commands of `fedlm`, a module each."""
