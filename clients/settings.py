"""What the owner of a device allows, and what a client may take."""

from collections.abc import Callable
from dataclasses import dataclass

from fedlm.fl_core.errors import ConfigurationError, setting

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


@dataclass(frozen=True)
class ClientLimits:
    """What a client lets a server have it do, and how patient it is.

    Attributes:
      models: names of the models that it trains; any registered one where empty. One of your own, `module:entry`, must
        be named here.
      algorithms: names of the client algorithms that it trains with; any registered one where empty. One of your own,
        `module:NAME`, must be named here.
      max_batches: local steps in a round, whatever the server asks for.
      max_training_seconds: of a round's training.
      largest_download: bytes.
      keep_model: whether the latest model stays in memory between rounds, and need not be downloaded again where the
        same one is offered again.
      first_backoff: seconds, about the first wait after a failure; each further one doubles it.
      longest_backoff: seconds, about the longest.
      recheck_seconds: between looks at conditions that are not met.
    """

    models: tuple[str, ...] = ()
    algorithms: tuple[str, ...] = ()
    max_batches: int = 10_000
    max_training_seconds: float = 3600.0
    largest_download: int = LARGEST_DOWNLOAD
    keep_model: bool = True
    first_backoff: float = 0.5
    longest_backoff: float = 60.0
    recheck_seconds: float = 30.0

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            if name not in ("models", "algorithms", "keep_model") and not getattr(self, name) > 0:
                raise ConfigurationError(f"{setting(name)} is {getattr(self, name)}, but must be positive")
