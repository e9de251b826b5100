"""The server's part in secure aggregation: it puts members together, adds masked vectors and removes the masks' sum.

What a client does, checks and refuses is in `fedlm.fedlm_client.secure_aggregation`.
"""
