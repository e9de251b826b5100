"""The capabilities of deployments: a new one is a file and a line."""

from fedlm.fl_core.runs.capabilities.bounded_norms import BoundedNorms
from fedlm.fl_core.runs.capabilities.interface import Capability
from fedlm.fl_core.runs.capabilities.warm_start import WarmStart

CAPABILITIES: tuple[type[Capability], ...] = (WarmStart, BoundedNorms)
"""In the order in which they are read."""
