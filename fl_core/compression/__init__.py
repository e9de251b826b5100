"""How updates are made small before they travel."""
