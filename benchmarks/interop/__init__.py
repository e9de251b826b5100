"""How near other frameworks come to us, number for number, on our models and stores; `parity` writes the table."""
