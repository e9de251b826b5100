"""Private recommendation after DPFormer (arXiv 2305.17633), with the controls that it lacks."""
