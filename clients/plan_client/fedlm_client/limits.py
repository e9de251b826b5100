"""What the owner of a device lets a server have it do."""

from dataclasses import dataclass, fields

from fedlm_client.errors import ClientError


@dataclass(frozen=True)
class Limits:
    """Bounds on plans and rounds.

    Attributes:
      memory_bytes: of the process that trains.
      load_seconds: of a plan's model.
      call_seconds: of one call of the model, as a local step is.
      plan_bytes: of a plan's model, and of its manifest.
      largest_download: bytes of the parameters or a tokenizer.
      max_batches: local steps in a round, whatever the plan says.
      max_training_seconds: of a round's training.
      first_backoff: seconds, about the first wait after a failure; each further one doubles it.
      longest_backoff: seconds, about the longest.
    """

    memory_bytes: int = 4 << 30
    load_seconds: float = 600.0
    call_seconds: float = 60.0
    plan_bytes: int = 8 << 20
    largest_download: int = 1 << 30
    max_batches: int = 10_000
    max_training_seconds: float = 3600.0
    first_backoff: float = 0.5
    longest_backoff: float = 60.0

    def __post_init__(self) -> None:
        for field in fields(self):
            if not getattr(self, field.name) > 0:
                raise ClientError(f"{field.name} is {getattr(self, field.name)}, but must be positive")
