"""The settings of a private run."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, get_args

from typing_extensions import Doc

from fedlm.fl_core.composed_settings import check_value_types
from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.idle_settings import IdleSettingsError, OnlyWith
from fedlm.fl_core.number_ranges import Count, Inside, Positive
from fedlm.fl_core.privacy.accounting.delta import Delta
from fedlm.fl_core.privacy.mechanisms.registry import MECHANISMS
from fedlm.fl_core.privacy.promise.plan import independent_mechanisms

if TYPE_CHECKING:
    PrivacyName = str

    @dataclass(frozen=True, kw_only=True)
    class _MechanismSettings:
        """Only a mechanism's own file knows its settings by name."""
else:
    PrivacyName = Literal[("none", *MECHANISMS)]
    # The first mechanism's come first: dataclasses take fields from the last base on.
    _OF_MECHANISMS = dict.fromkeys(mechanism.settings for mechanism in reversed(MECHANISMS.values()))
    _MechanismSettings = dataclass(frozen=True, kw_only=True)(type("_MechanismSettings", tuple(_OF_MECHANISMS), {}))

PRIVACY_FOLDER = "privacy"
"""In the folder of a private run: its ledger and the secret of its noise."""
PRIVATE_SAMPLERS = ("poisson", "min_separation", "shuffled_epochs")
TARGETS = ("noise_multiplier", "target_epsilon", "target_rho")


def _names_of(*mechanisms: str) -> list[str]:
    """The settings that only some of the mechanisms have, of any of these."""
    return [field.name for name in mechanisms if name != "none" for field in fields(MECHANISMS[name].settings)]


def _privacy_help() -> str:
    alike = itertools.groupby(MECHANISMS.values(), key=lambda mechanism: mechanism.help)
    kinds = [f"{', '.join(mechanism.name for mechanism in group)}: {text}." for text, group in alike]
    return (
        "Noise that makes the released models differentially private, hiding each client's presence. Of data that "
        "were imported without users, a client is a document. "
        f"{' '.join(kinds)} Needs update-clip-norm, a cohort-sampler that bounds participation (poisson, "
        "min_separation or shuffled_epochs), and one of noise-multiplier, target-epsilon and target-rho."
    )


@dataclass(frozen=True, kw_only=True)
class _NoiseSettings:
    privacy: Annotated[PrivacyName, Doc(_privacy_help())] = "none"
    noise_multiplier: Positive | None = None
    """Standard deviation of one draw of noise (of a tree's node, or a matrix mechanism's input), in clip norms."""
    target_epsilon: Positive | None = None
    """Choose the noise so that the whole run is (this, delta)-differentially private."""
    target_rho: Positive | None = None
    """Choose the noise so that the whole run has this rho of zero-concentrated differential privacy."""
    delta: Delta | None = None
    """Delta at which epsilon is stated. If not given, the number of training clients to the power -1.1."""
    report_goal: Count | None = None
    """What a round's noised sum is divided by, however many clients reported. If not given, cohort-size."""


@dataclass(frozen=True, kw_only=True)
class _ClippingSettings:
    clip_quantile: Inside | None = None
    """Move the clip norm towards this quantile of the updates' norms, beginning with update-clip-norm (Andrew et al.
    2021). Only with gaussian, or with a tree that restarts."""
    clip_quantile_rate: Annotated[Positive, OnlyWith("clip_quantile")] = 0.2
    """How fast the clip norm moves, in logarithms a round or a tree."""
    clip_count_noise: Annotated[Positive | None, OnlyWith("clip_quantile")] = None
    """Standard deviation of the noise on the count of clipped updates, in clients. If not given, report-goal / 20, but
    at least the noise multiplier."""
    noise_seed: Literal["entropy", "experiment"] = "entropy"
    """Where the noise comes from. entropy: nobody can compute it again; the ledger's folder keeps its secret.
    experiment: it follows from the seed, so the run is repeatable, is NOT PRIVATE, and says so."""


@dataclass(frozen=True, kw_only=True)
class PrivacySettings(_ClippingSettings, _MechanismSettings, _NoiseSettings):
    """Differential privacy of each client, and how it is paid for."""

    def __post_init__(self) -> None:
        check_value_types(self)

    @property
    def is_private(self) -> bool:
        """Whether noise is added at all."""
        return self.privacy != "none"

    @property
    def is_distributed(self) -> bool:
        """Whether each client adds a share of the noise."""
        return self.is_private and MECHANISMS[self.privacy].distributed

    def check_privacy(self, sampler: str, clip_norm: float | None, weighting: str, states_epsilon: bool) -> None:
        """Refuse settings that break a guarantee, or do nothing.

        Args:
          sampler: how cohorts are drawn.
          clip_norm: of updates, on the server.
          weighting: of clients.
          states_epsilon: whether one will be stated, at delta, of runs without privacy too.

        Raises:
          ConfigurationError: there is one.
        """
        if self.privacy not in get_args(PrivacyName):
            raise ConfigurationError(
                f"{setting('privacy')} is {self.privacy!r}, but must be one of {get_args(PrivacyName)}"
            )
        if self.privacy == "none":
            kept = ("privacy", "delta") if states_epsilon else ("privacy",)
            self._refuse_without_effect(
                [field.name for field in fields(self) if field.name not in kept],
                f"without {setting('privacy')}",
            )
            return
        self._refuse_settings_of_others([self.privacy], f"with the privacy mechanism {self.privacy}")
        if broken := list(self._broken(sampler, clip_norm, weighting)):
            raise ConfigurationError("\n".join(broken))

    def _broken(self, sampler: str, clip_norm: float | None, weighting: str) -> Iterator[str]:
        """Say of each setting that breaks the guarantee, or that it lacks, how."""
        if sampler not in PRIVATE_SAMPLERS:
            yield (
                f"{setting('cohort_sampler')} is {sampler}, for which there is no sound analysis: it does not bound "
                "how often a client takes part, and does not draw every client independently. Give one of "
                f"{', '.join(PRIVATE_SAMPLERS)}"
            )
        if clip_norm is None:
            yield (
                f"{setting('privacy')} needs {setting('update_clip_norm')}: without it one client could move the sum "
                "at will"
            )
        if weighting == "examples":
            yield (
                f"{setting('weighting')} is examples, but with privacy all clients must weigh the same, since a client "
                f"could claim any number of examples; give {setting('weighting')} uniform, or leave it out"
            )
        if sampler == "poisson" and not MECHANISMS[self.privacy].independent_rounds:
            yield (
                f"{setting('privacy')} is {self.privacy} and {setting('cohort_sampler')} is poisson, but there is no "
                f"sound analysis of the two together. Give {setting('privacy')} "
                f"{' or '.join(independent_mechanisms())}, or {setting('cohort_sampler')} min_separation or "
                "shuffled_epochs"
            )
        given = [name for name in TARGETS if getattr(self, name) is not None]
        if len(given) != 1:
            yield (
                f"{setting('privacy')} needs exactly one of {setting('noise_multiplier')}, {setting('target_epsilon')} "
                f"and {setting('target_rho')}, but {' and '.join(map(setting, given)) or 'none'} is given"
            )

    def with_mechanism(self, mechanism: PrivacyName, epsilon: float | None) -> Self:
        """Take another mechanism, and leave out the settings of mechanisms that this is not.

        The epsilon is to be reached in place of what these settings ask for; None to keep that.
        """
        others = set(_names_of(*MECHANISMS)) - set(_names_of(mechanism))
        kept = {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in others}
        target = {} if epsilon is None else {"target_epsilon": epsilon}
        return type(self)(**kept | {"privacy": mechanism} | target)

    def check_mechanisms(self, mechanisms: Sequence[PrivacyName], epsilons: Sequence[float]) -> None:
        """Refuse mechanisms and epsilons to compare that do not fit these settings, or each other.

        Raises:
          ConfigurationError: they do not fit.
        """
        private = tuple(MECHANISMS)
        for name, values in (("mechanisms", mechanisms), ("epsilons", epsilons)):
            if len(set(values)) != len(values):
                raise ConfigurationError(f"{setting(name)} is {values}, but must name each value only once")
        for mechanism in mechanisms:
            if mechanism not in private:
                hint = "; give epsilons with inf among them to compare with runs without noise"
                raise ConfigurationError(
                    f"{setting('mechanisms')} has {mechanism!r}, but each must be one of "
                    f"{private}{hint * (mechanism == 'none')}"
                )
        if mechanisms and self.privacy != "none":
            raise IdleSettingsError(
                f"{setting('privacy')} is {self.privacy}, which does nothing beside mechanisms {mechanisms}; leave one "
                "of them out",
                ["privacy"],
            )
        if not mechanisms and self.privacy == "none":
            raise ConfigurationError(
                f"{setting('epsilons')} is {epsilons}, but {setting('privacy')} is none; give {setting('privacy')} or "
                f"{setting('mechanisms')}, one of {private}"
            )
        if epsilons:
            self._refuse_without_effect(TARGETS, "beside epsilons")
        compared = mechanisms or (self.privacy,)
        self._refuse_settings_of_others(compared, f"with the mechanisms {', '.join(compared)}")
        if epsilons and all(map(math.isinf, epsilons)):
            of_noise = [field.name for field in fields(self) if field.name not in ("privacy", "delta")]
            self._refuse_without_effect(of_noise, "where epsilons is inf alone, since no run has noise")
        if self.clip_quantile is not None and math.inf in epsilons:
            raise ConfigurationError(
                f"{setting('clip_quantile')} is {self.clip_quantile}, but epsilons has inf. The clip norm of runs "
                "without noise does not move, so the runs could not be compared. Leave one of the two out"
            )

    def _refuse_settings_of_others(self, mechanisms: Sequence[PrivacyName], why: str) -> None:
        own = _names_of(*mechanisms)
        self._refuse_without_effect([name for name in _names_of(*MECHANISMS) if name not in own], why)

    def _refuse_without_effect(self, names: Sequence[str], why: str) -> None:
        defaults: dict[str, Any] = {field.name: field.default for field in fields(self)}
        for name in names:
            if getattr(self, name) != defaults[name]:
                raise IdleSettingsError(
                    f"{setting(name)} is {getattr(self, name)}, which does nothing {why}; leave it out", [name]
                )
