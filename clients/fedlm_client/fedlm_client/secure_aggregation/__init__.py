"""A client's part in secure aggregation: it masks its integers, so that a server learns the sum of a cohort alone.

SecAgg+ (Bell et al. 2020, "Secure single-server aggregation with (poly)logarithmic overhead").
"""
