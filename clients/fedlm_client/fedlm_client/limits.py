"""When a device trains, and what its owner lets a server have it do."""

from collections.abc import Callable
from dataclasses import dataclass, fields

from .errors import ClientError

LARGEST_DOWNLOAD = 1 << 30
"""Bytes of a model or a tokenizer, where a device's owner says nothing."""


@dataclass(frozen=True)
class Conditions:
    """When a device trains. Each hook is asked before a check-in and before each local step; all must say yes.

    Attributes:
      idle: nobody uses the device.
      charging: it need not spare its battery.
      unmetered: its network costs nothing by the byte.
    """

    idle: Callable[[], bool] = lambda: True
    charging: Callable[[], bool] = lambda: True
    unmetered: Callable[[], bool] = lambda: True

    def met(self) -> bool:
        """Say whether the device may train now."""
        return self.idle() and self.charging() and self.unmetered()


class _Positive:
    def __post_init__(self) -> None:
        for field in fields(self):  # type: ignore[arg-type]
            if not (value := getattr(self, field.name)) > 0 and type(value) is not bool:
                raise ClientError(f"{field.name} is {value}, but must be positive")


@dataclass(frozen=True)
class Limits(_Positive):
    """What a client lets a server have it do, and how patient it is.

    Attributes:
      largest_download: bytes of the parameters or a tokenizer.
      max_batches: local steps in a round, whatever the server asks for.
      max_training_seconds: of a round's training.
      first_backoff: seconds, about the first wait after a failure; each further one doubles it.
      longest_backoff: seconds, about the longest.
      recheck_seconds: between looks at conditions that are not met.
      keep_model: whether the latest model stays in memory between rounds, and need not be downloaded again where the
        same one is offered again.
    """

    largest_download: int = LARGEST_DOWNLOAD
    max_batches: int = 10_000
    max_training_seconds: float = 3600.0
    first_backoff: float = 0.5
    longest_backoff: float = 60.0
    recheck_seconds: float = 30.0
    keep_model: bool = True


@dataclass(frozen=True)
class PlanLimits(_Positive):
    """Bounds on plans.

    Attributes:
      memory_bytes: of the process that trains.
      load_seconds: of a plan's model.
      call_seconds: of one call of the model, as a local step is.
      plan_bytes: of a plan's model, and of its manifest.
    """

    memory_bytes: int = 4 << 30
    load_seconds: float = 600.0
    call_seconds: float = 60.0
    plan_bytes: int = 8 << 20
