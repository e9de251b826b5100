"""What clipping the gradients of single examples costs."""
