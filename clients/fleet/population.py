"""A model of people's devices: when they are there, whether they go away, how fast they and their links are, and how
much text is on them. Everything is a function of the seed, the client's number and the time, and of nothing else.

The defaults follow published numbers of a large deployment: four times as many devices at night as by day, and at most
a tenth that drop out (Bonawitz et al. 2019, "Towards federated learning at scale: system design", sections 2.3 and 9).
"""

import math
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import numpy as np

from fedlm.fl_core.composed_settings import check_value_types
from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.idle_settings import OnlyWith
from fedlm.fl_core.number_ranges import AtLeastOne, NotNegative, Positive, PositiveOrInfinite, Seed, Share

_TRAITS, _PRESENCE, _DROPPING, _EXAMPLES = range(4)
_PEAK = 2 / 24
_TIME_ZONES = 3 / 24
_LINK_SPREAD = 1.0  # standard deviation of the natural logarithm of links' speeds
_EXAMPLES_TAIL = 1.2  # exponent of the Pareto distribution of numbers of examples


class Traits(NamedTuple):
    """What stays the same of a device.

    Attributes:
      shift: its time zone, in days ahead of the clock.
      link: bytes a second, in either direction.
      speed: examples a second that it trains on.
    """

    shift: float
    link: float
    speed: float


class Dropout(NamedTuple):
    """How a selected device goes away.

    Attributes:
      during: what is cut off.
      share: of that which still passes, from 0 to 1.
      away: seconds until it is back.
    """

    during: Literal["download", "upload"]
    share: float
    away: float


@dataclass(frozen=True)
class Population:
    """The population that devices are drawn from."""

    seed: Seed = 0
    """Another seed makes other devices."""
    availability: Share = 0.5
    """Share of the time that a device is idle, charging and on a free network, over whole days."""
    diurnal: Share = 0.6
    """How much availability follows the day: by this share more of it at two at night, and less at two in the
    afternoon; 0 for not at all."""
    day_seconds: Positive = 86_400.0
    """Seconds of a day. A shorter day shows in minutes what days would."""
    stay_seconds: Positive = 900.0
    """Seconds for which a device stays available, or away."""
    dropout: Share = 0.08
    """Share of selected devices that go away before they report."""
    away_seconds: Annotated[Positive, OnlyWith("dropout")] = 300.0
    """Mean seconds for which these stay away."""
    link_bytes: PositiveOrInfinite = 1e6
    """Bytes a second of the middle device's link; infinite for no limit."""
    speeds: tuple[Positive, ...] = (200.0, 50.0, 10.0)
    """Examples a second that each class of devices trains on, whatever this machine does; infinite for no limit."""
    speed_shares: tuple[NotNegative, ...] = (0.3, 0.5, 0.2)
    """Share of the devices in each class."""
    examples: AtLeastOne | None = None
    """Examples on the middle device; a device has more than m times as many with probability m to the minus 1.2,
    halved. If not given, those that the data has."""

    def __post_init__(self) -> None:
        check_value_types(self)
        at_night = self.availability * (1 + self.diurnal)
        if at_night > 1:
            raise ConfigurationError(
                f"availability {self.availability} with diurnal {self.diurnal} makes {at_night:g} at night, but must "
                "make 1 at most"
            )
        if len(self.speeds) != len(self.speed_shares):
            raise ConfigurationError(f"speeds and {setting('speed_shares')} must be equally many")
        if not math.isclose(sum(self.speed_shares), 1, abs_tol=1e-6):
            raise ConfigurationError(f"{setting('speed_shares')} are {self.speed_shares}, but must sum to 1")

    def traits(self, client: int) -> Traits:
        """Draw what stays the same of a device."""
        rng = self._rng(_TRAITS, client)
        shift = rng.uniform(-_TIME_ZONES, _TIME_ZONES)
        link = self.link_bytes * math.exp(_LINK_SPREAD * rng.standard_normal())
        return Traits(shift, link, float(rng.choice(self.speeds, p=self.speed_shares)))

    def expected_availability(self, time: float, shift: float) -> float:
        """Say how likely a device is there, from 0 to 1.

        Args:
          time: in seconds; a day begins at each multiple of `day_seconds`, on the clock of a device without shift.
          shift: see `Traits`.
        """
        of_day = time / self.day_seconds + shift
        return self.availability * (1 + self.diurnal * math.cos(2 * math.pi * (of_day - _PEAK)))

    def is_available(self, client: int, time: float, shift: float) -> bool:
        """Say whether a device is there, at a time as in `expected_availability`; the same for `stay_seconds`."""
        slot = math.floor(time / self.stay_seconds)
        expected = self.expected_availability((slot + 0.5) * self.stay_seconds, shift)
        return self._rng(_PRESENCE, client, slot).random() < expected

    def dropout_of(self, client: int, participation: int) -> Dropout | None:
        """Draw whether, and how, a device goes away that was selected so often before; None where it stays."""
        rng = self._rng(_DROPPING, client, participation)
        if rng.random() >= self.dropout:
            return None
        during: Literal["download", "upload"] = "download" if rng.random() < 0.5 else "upload"
        return Dropout(during, rng.random(), rng.exponential(self.away_seconds))

    def examples_of(self, client: int) -> int | None:
        """Draw how many examples a device has, at least 1; None where the data decides."""
        if self.examples is None:
            return None
        # A Pareto variable above x_m has the median x_m 2^(1 / tail).
        pareto = (2 * (1 - self._rng(_EXAMPLES, client).random())) ** (-1 / _EXAMPLES_TAIL)
        return max(1, round(self.examples * min(pareto, 1e6)))

    def _rng(self, *names: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, *names])
