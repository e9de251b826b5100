"""Parameters and configurations as Hugging Face's transformers has them."""
