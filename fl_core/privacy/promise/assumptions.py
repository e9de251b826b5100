"""What must hold for a plan's guarantee to be true, and between which data sets it holds, in words."""

from fedlm.fl_core.privacy.mechanisms.registry import MECHANISMS
from fedlm.fl_core.privacy.mechanisms.skellam import sizes_of
from fedlm.fl_core.privacy.participation.sampling import ExamplesParticipation
from fedlm.fl_core.privacy.promise.plan import ONE_DOCUMENT, PrivacyPlan

_ANSWERS = "whether and when a client answers, and who takes part in its place, does not depend on its data"
_ONE_CLIENT = "one person is one client, and no other client has that person's data"


def assumptions(plan: PrivacyPlan) -> tuple[str, ...]:
    """List what must hold for a plan's guarantee to be true, one sentence each."""
    unit, time = names_of(plan.unit)
    by_examples = isinstance(plan.participation, ExamplesParticipation)
    distributed = MECHANISMS[plan.mechanism].distributed
    if distributed:
        clipped = (
            "each client clips its update, checks its length in integers and adds its share of the noise, all clients "
            "weigh the same, and the sum"
        )
    elif unit == "client":
        clipped = "each client's update is clipped on the server, all clients weigh the same, and the sum"
    else:
        clipped = f"the gradient of each {'example' if by_examples else unit} is clipped, and the noised sum"
    rounding = (
        "rounding in 32-bit floating point moves a sum of gradients by at most 2^-12 of the clip norm, and clipping "
        "leaves room for that"
    )
    answering = unit == "client" and not plan.participation.sampled
    return (
        plan.participation.in_words(unit, time),
        *plan.participation.relies_on,
        *((_ANSWERS,) if answering else ()),
        f"{clipped} is divided by a number fixed beforehand",
        f"only models made of noised sums are published; measurements of single {time}s are not",
        *(
            _of_shares(plan)
            if distributed
            else (
                f"{_generators(plan)}; noise is computed in 64-bit floating point; the sum is exact, and sum and noise "
                "are rounded together to a grid",
            )
        ),
        *(() if unit == "client" else (rounding,)),
        *((_ONE_CLIENT,) if unit == "client" and not plan.unit.startswith(ONE_DOCUMENT) else ()),
        "the run goes on in one place alone, and no older copy of its folder is put back, whole or in parts",
        "its settings, and when it ended, were chosen without looking at the data or at measurements of it; a choice "
        "by other runs on the same data is not accounted for",
    )


def _of_shares(plan: PrivacyPlan) -> tuple[str, ...]:
    return (
        f"at least {sizes_of(plan).survivors} clients of a round add their noise and tell it nobody; a round with "
        "fewer is given up",
        "nobody can tell the generator of a client's noise (that of its operating system; in a simulation SHAKE-256 of "
        "the run's secret) from chance; noise and sums are whole numbers, and how far tables of noise are from it is "
        "part of delta",
    )


def against_server(plan: PrivacyPlan) -> str | None:
    """Say what noise that clients add does against whoever runs the server; None where the server adds it."""
    if not MECHANISMS[plan.mechanism].distributed:
        return None
    return (
        "with secure aggregation, the same epsilon and delta against one that is curious but follows the protocol and "
        "enrols no invented clients, if none of its clients works with it (without it nothing is promised: the server "
        "sees what each client sends)"
    )


def _generators(plan: PrivacyPlan) -> str:
    if not plan.participation.sampled:
        return "the seed of the noise stays secret, and nobody can tell its generator (ChaCha20) from chance"
    others = "Philox for who takes part" + (
        "" if names_of(plan.unit)[0] == "client" else ", SplitMix64 for masks and dropout"
    )
    return (
        "the seed of the noise and of who takes part stays secret, and nobody can tell its generators (ChaCha20 for "
        f"noise, {others}) from chance"
    )


def adjacency_in_words(plan: PrivacyPlan) -> str:
    """Say which data sets are neighbours."""
    unit, _ = names_of(plan.unit)
    if plan.adjacency == "add_or_remove":
        return f"add-or-remove: one {unit} is added to the {unit}s, or removed from them"
    if unit == "client":
        return "zero-out: one client adds zero to every sum and to every count, everything else stays"
    return f"zero-out: one {unit}'s gradient is replaced by zero, everything else stays"


def names_of(unit: str) -> tuple[str, str]:
    """The unit's noun, and what its updates are summed over at once."""
    noun = unit.split(":")[0]
    return noun, "round" if noun == "client" else "step"
