"""The layers that models are built from."""
