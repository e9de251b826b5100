"""The life of a device in a deployment of fedlm, from check-in and download to upload and back-off.

Distributed by itself, it is the client of plans, models of LiteRT that a server sends. fedlm holds it too, as
`fedlm.fedlm_client`, and brings what trains its own models. It imports neither JAX nor the rest of fedlm, and itself by
relative names, so that it has either name.
"""
