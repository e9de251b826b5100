"""Text that models write: tokens drawn one after another, from text to text."""
