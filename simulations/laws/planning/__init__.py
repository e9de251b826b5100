"""The best training of a budget by fitted laws, central or federated."""
