"""Our models, stores and mechanisms inside other frameworks, and theirs as ours; docs/interop.md shows each.

A module here imports the framework that it is named after, which fedlm does not install. FedJAX and TensorFlow
Federated need versions of JAX and NumPy that are older than ours: models, local training and stores run with those too.
"""
