"""What runs on a device that has JAX and fedlm's models: training, and how it gets its credentials."""
