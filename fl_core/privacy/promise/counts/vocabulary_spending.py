"""How much noise makes a vocabulary private, and what it adds to all that is released later about the same people.

The release is a Gaussian mechanism on the counts of all words that others have. With a probability of at most
`threshold_delta` it releases more: a word that nobody else has (Gopi et al. 2020, "Differentially private set union";
Wilson et al. 2020, "Differentially private SQL with bounded user contribution"). Let E be that such a word reaches the
threshold. E is independent of the noise of the other counts. Let T be any outputs, and R the release of the other
words' counts alone. Then P[M(with) in T] <= P[E] + (1 - P[E]) P[R(with) in T], and P[M(without) in T] <= P[E] +
(1 - P[E]) (delta + e^epsilon P[R(with) in T]). Both are the bounds of the Gaussian mechanism composed with one that is
(0, P[E])-differentially private.
"""

import math
from statistics import NormalDist

from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.privacy.accounting.delta import check_delta
from fedlm.fl_core.privacy.accounting.gaussian_mechanism import gaussian_noise_multiplier
from fedlm.fl_core.privacy.accounting.release_events import Event, GaussianEvent, StatedEvent
from fedlm.fl_core.privacy.origins.private_words import COUNT_NORM, word_weight
from fedlm.fl_core.privacy.origins.vocabulary_origin import PrivateVocabulary, VocabularyOrigin
from fedlm.fl_core.privacy.promise.guarantee import gaussian_epsilon

_SLACK = 1e-9  # relative, by which noise and threshold are larger than 64-bit floating point says that they need be
_MOST_EPSILON = 100.0
_WHOLE_CLIENTS = ("client", "user")


def plan_vocabulary(epsilon: float, delta: float, words_per_client: int) -> PrivateVocabulary:
    """Find the least noise and threshold for a guarantee; half of delta goes to each.

    Raises:
      ConfigurationError: a number is out of range.
    """
    check_epsilon(epsilon, "vocabulary_epsilon")
    check_delta(delta, "vocabulary_delta")
    if words_per_client < 1:
        raise ConfigurationError(
            f"{setting('vocabulary_words_per_client')} is {words_per_client}, but must be at least 1"
        )
    half = delta / 2
    deviation = least_deviation(epsilon, half)
    return PrivateVocabulary(
        epsilon=epsilon,
        delta=delta,
        noise_multiplier=deviation / COUNT_NORM,
        threshold=least_threshold(deviation, half, words_per_client) / COUNT_NORM,
        threshold_delta=half,
        words_per_client=words_per_client,
    )


def check_epsilon(epsilon: float, name: str) -> None:
    """Refuse an epsilon of counts, by the name of its setting. Raises ConfigurationError."""
    if not 0 < epsilon <= _MOST_EPSILON:
        raise ConfigurationError(f"{setting(name)} is {epsilon}, but must be positive, and {_MOST_EPSILON:g} at most")


def least_deviation(epsilon: float, delta: float) -> int:
    """Find the least standard deviation of noise, in whole numbers, for counts that a client adds `COUNT_NORM` to."""
    deviation = math.ceil(gaussian_noise_multiplier(epsilon, delta) * COUNT_NORM)
    while gaussian_epsilon(deviation / COUNT_NORM, 1 + _SLACK, delta) > epsilon:
        deviation += 1 + deviation // 1_000_000
    return deviation


def least_threshold(deviation: int, delta: float, words_per_client: int) -> int:
    """Find a count that words which only one client has reach with probability delta at most, all of them together.

    A client with t words adds `word_weight(t)` to each, and rounded noise reaches n where noise reaches n - 1/2.
    """
    normal = NormalDist()
    # The tail's quantile changes so little between neighbouring t that to compute each is not worth leaving out.
    return max(
        math.ceil(word_weight(t) + 0.5 - (1 + _SLACK) * deviation * normal.inv_cdf(delta / t))
        for t in range(1, words_per_client + 1)
    )


def least_numbers(private: PrivateVocabulary) -> dict[str, float]:
    """Give the epsilon that a private vocabulary's noise keeps at what the threshold leaves of delta, and the least
    threshold that keeps threshold_delta."""
    deviation, delta = private.noise_multiplier * COUNT_NORM, private.threshold_delta
    return {
        "epsilon": gaussian_epsilon(private.noise_multiplier, 1.0, private.delta - delta),
        "threshold": least_threshold(math.floor(deviation), delta, private.words_per_client) / COUNT_NORM,
    }


def vocabulary_events(origin: VocabularyOrigin, unit: str) -> tuple[Event, ...]:
    """List what a vocabulary adds to all other releases about a unit of privacy, whichever the adjacency.

    A client that takes part with nothing has no words, so it is as if it were not there. If the unit is a part of a
    client's text, such as an example, the client's counts differ without it. Two vectors without negative entries, each
    no longer than a client's, are at most sqrt(2) times that length apart, and either may have words that nobody else
    has. The same holds if the vocabulary comes from another data set, where a client of this one may have been a part
    of a client. Nothing is counted for a unit that is not covered.
    """
    private = origin.private
    if private is None or not origin.stated_for(unit).covered:
        return ()
    if is_whole_client(unit) and not origin.of_another:
        return GaussianEvent(private.noise_multiplier), StatedEvent(0.0, private.threshold_delta)
    return GaussianEvent(private.noise_multiplier / math.sqrt(2)), StatedEvent(0.0, private.threshold_delta, 2)


def is_whole_client(unit: str) -> bool:
    """Say whether a unit of privacy is all text of a client of the data set."""
    return unit.split(":")[0] in _WHOLE_CLIENTS
