"""Many runs from one record of settings: their execution, and the private choice among them."""
