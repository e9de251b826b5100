"""Where a run stands that begins or goes on: light, since runs without privacy need it too."""

from typing import NamedTuple


class Standing(NamedTuple):
    """Where a run stands; JSON-able, and the same in all processes. Its secrets travel over the links that gradients
    take. A step is a round of federated training."""

    checkpoint: int  # steps that the checkpoint to start from has seen; 0 to start afresh
    first: int  # the step that runs next
    end: int  # one more than the last step that may run
    noise_from: int | None = None  # the step with which the current noise began; None without privacy
    secret: str = ""  # of the current noise, in hex
    draw_seed: str | None = None  # of who takes part in a step, in hex; None where that follows from the run's seed

    @property
    def goes_on(self) -> bool:
        """Whether steps are left."""
        return self.first < self.end

    @property
    def fresh_noise(self) -> bool:
        """Whether noise begins anew, so that the checkpoint's state of it is not to be used."""
        return self.noise_from == self.first
