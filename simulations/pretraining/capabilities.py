"""The capabilities of central trainings: a new one is a file and a line."""

from fedlm.fl_core.runs.capabilities.adapters import Adapters
from fedlm.fl_core.runs.capabilities.budgeted import Budgeted
from fedlm.fl_core.runs.capabilities.interface import Capability
from fedlm.fl_core.runs.capabilities.reattention import Reattention
from fedlm.fl_core.runs.capabilities.warm_start import WarmStart
from fedlm.simulations.pretraining.inserted_canaries import Canaries

CAPABILITIES: tuple[type[Capability], ...] = (Canaries, Budgeted, Adapters, WarmStart, Reattention)
"""In the order in which they are read."""
