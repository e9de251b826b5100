"""The capabilities of simulated runs: a new one is a file and a line."""

from fedlm.fl_core.runs.capabilities.adapters import Adapters
from fedlm.fl_core.runs.capabilities.bounded_norms import BoundedNorms
from fedlm.fl_core.runs.capabilities.budgeted import Budgeted
from fedlm.fl_core.runs.capabilities.interface import Capability
from fedlm.fl_core.runs.capabilities.reattention import Reattention
from fedlm.fl_core.runs.capabilities.warm_start import WarmStart
from fedlm.simulations.evaluation.canaries import Audit

CAPABILITIES: tuple[type[Capability], ...] = (Audit, Budgeted, Adapters, WarmStart, Reattention, BoundedNorms)
"""In the order in which they are read. A program brings others by object."""
