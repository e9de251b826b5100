"""How fast text is generated, beside transformers."""
