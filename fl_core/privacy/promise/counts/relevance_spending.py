"""How much noise makes the relevances of tokens private, and what they add to all that is released about their people.

The release is one Gaussian mechanism. A client's contribution to all counts has an L2 norm of at most 1, in units of
`COUNT_NORM`. So one more client, or one that contributes nothing, moves their sum by at most 1.
"""

import math
from collections.abc import Iterable

from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.privacy.accounting.delta import check_delta
from fedlm.fl_core.privacy.accounting.release_events import Event, GaussianEvent
from fedlm.fl_core.privacy.origins.private_words import COUNT_NORM
from fedlm.fl_core.privacy.origins.relevance_origin import PrivateRelevance, RelevanceOrigin
from fedlm.fl_core.privacy.origins.vocabulary_origin import PACKED, may_be_of_several
from fedlm.fl_core.privacy.promise.counts.vocabulary_spending import check_epsilon, is_whole_client, least_deviation
from fedlm.fl_core.privacy.promise.guarantee import gaussian_epsilon

_OF_SEVERAL = (
    f"the relevances of tokens were counted with privacy for each client, but {PACKED} may hold data of several "
    "clients; train with packing none, or with unit user"
)


def plan_relevance(epsilon: float, delta: float, tokens_per_unit: int) -> PrivateRelevance:
    """Find the least noise for a guarantee.

    Raises:
      ConfigurationError: a number is out of range.
    """
    check_epsilon(epsilon, "epsilon")
    check_delta(delta)
    if tokens_per_unit < 1:
        raise ConfigurationError(f"{setting('tokens_per_unit')} is {tokens_per_unit}, but must be at least 1")
    return PrivateRelevance(epsilon, delta, least_deviation(epsilon, delta) / COUNT_NORM, tokens_per_unit)


def least_numbers(private: PrivateRelevance) -> dict[str, float]:
    """Give the epsilon that the noise of private relevances keeps at their delta."""
    return {"epsilon": gaussian_epsilon(private.noise_multiplier, 1.0, private.delta)}


def not_hidden(origins: Iterable[RelevanceOrigin | None], unit: str) -> list[str]:
    """Say why relevances that are private for each client are not so for a unit of privacy; nothing where they are."""
    counted = any(origin is not None and origin.private is not None for origin in origins)
    return [_OF_SEVERAL] if counted and may_be_of_several(unit) else []


def relevance_events(origins: Iterable[RelevanceOrigin | None], unit: str) -> list[Event]:
    """List what relevances add to all other releases about a unit of privacy, whichever the adjacency; each count once.

    If the unit is a part of a client's text, the client's shares differ without it. Two vectors without negative
    entries, each of norm at most 1, are at most sqrt(2) apart.
    """
    counts = {origin.sha256: origin.private for origin in origins if origin is not None and origin.private is not None}
    sensitivity = 1.0 if is_whole_client(unit) else math.sqrt(2)
    return [GaussianEvent(private.noise_multiplier / sensitivity) for private in counts.values()]
