"""Where text comes from: one module for each form that people have it in."""
