"""Samplers whose cohorts keep a promise about participation: what they enforce is what is accounted."""

from dataclasses import dataclass, field

import numpy as np

from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.privacy.participation.limits import BoundedParticipation, EpochParticipation
from fedlm.fl_core.privacy.participation.sampling import PoissonParticipation
from fedlm.fl_core.randomness import host_rng
from fedlm.fl_core.rounds.cohorts import SeededSampler


@dataclass(frozen=True)
class PoissonSampler(SeededSampler):
    """Every client takes part in every round independently with probability `cohort_size / num_clients`.

    Cohorts have `cohort_size` clients on average only; one may be empty.
    """

    @property
    def participation(self) -> PoissonParticipation:
        return PoissonParticipation(self.cohort_size / self.num_clients)

    def sample(self, round_number: int) -> np.ndarray:
        rng = host_rng(self.seed, "cohort", round_number)
        return np.flatnonzero(rng.random(self.num_clients) < self.participation.sampling_probability)


class ParticipationLimiter:
    """Who has taken part, and when: lets nobody take part more often, or sooner again, than was promised."""

    def __init__(self, num_clients: int, bound: BoundedParticipation):
        self.bound = bound
        self._last = np.full(num_clients, -(1 << 62), np.int64)
        self._count = np.zeros(num_clients, np.int64)

    def eligible(self, round_number: int) -> np.ndarray:
        """Name the clients, as bool [clients], that may take part in a round not below any admitted so far."""
        rested = round_number - self._last >= self.bound.min_separation
        most = self.bound.max_participations
        return rested if most is None else rested & (self._count < most)

    def admit(self, round_number: int, clients: np.ndarray) -> None:
        """Record that distinct clients take part in a round.

        Raises:
          ValueError: one of them may not; nothing is recorded.
        """
        refused = clients[~self.eligible(round_number)[clients]]
        if len(refused) or len(np.unique(clients)) != len(clients):
            raise ValueError(
                f"clients {refused[:5].tolist()} may not take part in round {round_number}, or are named twice"
            )
        self._last[clients] = round_number
        self._count[clients] += 1

    def state(self) -> dict[str, np.ndarray]:
        """Give what has to be kept to go on after an interruption: last round and number of rounds, int64 [clients]."""
        return {"last": self._last.copy(), "count": self._count.copy()}

    @classmethod
    def from_state(cls, state: dict[str, np.ndarray], bound: BoundedParticipation) -> "ParticipationLimiter":
        """Undo `state`."""
        limiter = cls(len(state["last"]), bound)
        limiter._last, limiter._count = state["last"].copy(), state["count"].copy()
        return limiter


@dataclass(frozen=True, eq=False)
class MinSeparationSampler(SeededSampler):
    """Clients that may take part again, uniformly without replacement within a round.

    Where fewer may than a cohort has, all of them take part. A cohort is a function of (seed, round), but is found by
    drawing all cohorts before it; asking in order costs one draw each.
    """

    participation: BoundedParticipation
    _replay: dict = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        needed = self.cohort_size * self.participation.min_separation
        if not self.cohort_size >= 1 or needed > self.num_clients:
            raise ConfigurationError(
                f"{setting('cohort_size')} {self.cohort_size} times {setting('min_separation')} "
                f"{self.participation.min_separation} is {needed}, but must lie between 1 and the number of training "
                f"clients, {self.num_clients}: no client may come again before so many rounds are over. Change one "
                "of the two"
            )

    def check_rounds(self, rounds: int) -> None:
        """Make sure that all cohorts of a run can be full.

        Raises:
          ConfigurationError: clients may not take part often enough for that.
        """
        most = self.participation.max_participations
        if most is not None and rounds * self.cohort_size > self.num_clients * most:
            raise ConfigurationError(
                f"{rounds} rounds of {self.cohort_size} clients need {rounds * self.cohort_size} participations, but "
                f"{self.num_clients} training clients may take part {'once' if most == 1 else f'{most} times'} each "
                f"({setting('max_participations')}); allow {-(-rounds * self.cohort_size // self.num_clients)} times, "
                "fewer rounds or smaller cohorts"
            )

    def sample(self, round_number: int) -> np.ndarray:
        replay = self._replay
        if replay.get("round") == round_number:
            return replay["cohort"]
        if "limiter" not in replay or replay["round"] > round_number:
            replay.update(limiter=ParticipationLimiter(self.num_clients, self.participation), round=-1)
        for number in range(replay["round"] + 1, round_number + 1):
            rng = host_rng(self.seed, "cohort", number)
            eligible = np.flatnonzero(replay["limiter"].eligible(number))
            cohort = rng.choice(eligible, min(self.cohort_size, len(eligible)), replace=False)
            replay["limiter"].admit(number, cohort)
            replay.update(round=number, cohort=cohort)
        return replay["cohort"]


@dataclass(frozen=True)
class ShuffledEpochSampler(SeededSampler):
    """All clients in a random order, then all of them in another: each takes part at most once an epoch.

    An epoch has as many full cohorts as there are; the clients that are left over in one sit it out.
    """

    @property
    def participation(self) -> EpochParticipation:
        return EpochParticipation(self.num_clients // self.cohort_size)

    def sample(self, round_number: int) -> np.ndarray:
        epoch, place = divmod(round_number, self.participation.rounds_per_epoch)
        order = host_rng(self.seed, "epoch", epoch).permutation(self.num_clients)
        return order[place * self.cohort_size : (place + 1) * self.cohort_size]
