"""What is trained, as data: the axes, from the preset `small` towards the published setting, one thing at a time."""

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

BATCH_SIZE = 10
LENGTH = 20
EVALUATE_EVERY = 5
"""Rounds from one score on held-out clients to the next; all numbers of rounds are multiples of it."""
SEEDS = (0, 1, 2)
"""Of the points that do not name others; the first is the one that rates are selected with."""
SHARE = 1 / 3
"""After which share of the rounds one client rate goes on, for each server rate.

Server rates are not selected so: the higher ones are ahead at first, whether they are in the end or not."""
CLIENT_RATES = (0.1, 0.5, 1.0, 2.0)
SERVER_RATES = (0.003, 0.01, 0.03)


class DataSource(NamedTuple):
    """A text and how it is imported.

    Attributes:
      text: which.
      vocabulary: tokens, but for the made-up text, which has the words that it has.
      min_examples: clients with fewer sentences are left out.
    """

    text: Literal["stackexchange", "stdlib", "synthetic"]
    vocabulary: int = 4096
    min_examples: int = 1


DATA = {
    "stackexchange": DataSource("stackexchange"),
    "stackexchange_1024": DataSource("stackexchange", 1024),
    "stackexchange_16384": DataSource("stackexchange", 16_384),
    "stackexchange_large_clients": DataSource("stackexchange", min_examples=50),
    "stdlib": DataSource("stdlib"),
    "synthetic": DataSource("synthetic"),
}


@dataclass(frozen=True)
class Setting:
    """All that a training has beside its model, rates, rounds and seed; the defaults are those of the preset `small`.

    Attributes:
      data: name in `DATA`.
      size: of the model: how its name ends.
      cohort: clients of a round.
      max_batches: local steps of a client at most.
      epochs: passes of a client over its sentences.
      clip: norm that local gradients are clipped to; None for no clipping.
      epsilon: of FedAdam.
      privacy: epsilon of DP-FTRL, in place of FedAdam, for the number of rounds that there are; None without.
    """

    data: str = "stackexchange"
    size: str = "tiny"
    cohort: int = 20
    max_batches: int = 120
    epochs: int = 1
    clip: float | None = 1.0
    epsilon: float = 1e-8
    privacy: float | None = None

    @property
    def name(self) -> str:
        """Name it as a folder: what differs from the defaults."""
        changed = [
            f"{field.name}-{getattr(self, field.name)}"
            for field in dataclasses.fields(self)
            if getattr(self, field.name) != field.default
        ]
        return "_".join(changed) or "small"


@dataclass(frozen=True)
class Run:
    """A training, however many rounds it has had."""

    setting: Setting
    model: str
    client_rate: float
    server_rate: float
    seed: int

    @property
    def name(self) -> str:
        """Name its folder, a path of two."""
        rates = f"client-{self.client_rate:g}_server-{self.server_rate:g}_seed-{self.seed}"
        return f"{self.setting.name}/{self.model}_{rates}"

    def as_json(self) -> dict[str, Any]:
        """Make a record of it."""
        return dataclasses.asdict(self)

    @classmethod
    def of_json(cls, record: dict[str, Any]) -> "Run":
        """Read what `as_json` made, and maybe more beside it."""
        fields = {field.name: record[field.name] for field in dataclasses.fields(cls)}
        return cls(**fields | {"setting": Setting(**fields["setting"])})


@dataclass(frozen=True)
class Point:
    """A place on an axis, at which each model's rates are selected again.

    Attributes:
      value: where on the axis; a name where it has no numbers.
      setting: of its trainings.
      rounds: of its trainings, a multiple of `EVALUATE_EVERY`.
      client_rates: to select from.
      server_rates: to select from.
      seeds: the first is the one that rates are selected with.
    """

    value: float | str
    setting: Setting = Setting()
    rounds: int = 60
    client_rates: tuple[float, ...] = CLIENT_RATES
    server_rates: tuple[float, ...] = SERVER_RATES
    seeds: tuple[int, ...] = SEEDS

    def rungs(self) -> list[tuple[int, int]]:
        """List after how many rounds how many client rates have come so far, for each server rate."""
        clients = len(self.client_rates)
        if clients == 1 or self.setting.privacy is not None:
            # Noise is for a number of rounds: a private training cannot go on.
            return [(self.rounds, clients)]
        # A share of the rounds that ends with a score.
        return [(max(1, round(SHARE * self.rounds / EVALUATE_EVERY)) * EVALUATE_EVERY, clients), (self.rounds, 1)]


def value_words(value: float | str) -> str:
    """Say where on an axis something is."""
    if isinstance(value, str):
        return value
    if value >= 1e5:
        return f"{value / 1e6:g} M"
    return f"{value:,.0f}" if value >= 100 else f"{value:g}"


@dataclass(frozen=True)
class Axis:
    """An axis: what is varied, and where on it the published setting lies.

    Attributes:
      title: in tables and plots.
      points: in the order in which they are trained.
      models: names of models without their sizes.
      published: the value in Ro et al. 2024, table 2; None where there is none to extrapolate to.
    """

    title: str
    points: tuple[Point, ...]
    models: tuple[str, ...]
    published: float | None = None


CIFGS = ("cifg", "si_cifg")
TRANSFORMERS = ("transformer", "si_transformer", "transformer_rms_norm", "si_transformer_rms_norm")
PAIRS = (
    ("si_cifg", "cifg"),
    ("si_cifg_published", "cifg"),
    ("si_cifg_unit_rms", "cifg"),
    ("si_cifg", "si_cifg_unit_rms"),
    ("si_cifg", "cifg_rms_norm"),
    ("si_cifg", "cifg_layer_norm"),
    ("cifg_layer_norm", "cifg"),
    ("si_transformer", "transformer"),
    ("si_transformer_rms_norm", "transformer_rms_norm"),
)
"""Scale-invariant models, and a control, and the ones that they are compared with: most often standard ones."""
CONTROLS = ("cifg", "si_cifg", "si_cifg_unit_rms", "cifg_unit_rms", "cifg_rms_norm", "cifg_layer_norm")
PARAMETERS = {"tiny": 0.4e6, "1m": 1e6, "4m": 4.2e6}
PUBLISHED_GAP = {"si_cifg": 33.6 / 35.5 - 1, "si_transformer": 33.7 / 34.6 - 1}
"""Test perplexities of Ro et al. 2024, table 2, at 19 to 21 M parameters, 500 clients and 3,000 rounds, relative."""


def published_gap(model: str, twin: str) -> float | None:
    """Give the published relative gap of a scale-invariant model, whatever its output's norm, to its standard twin;
    None where one of them is a control, which was not published."""
    return next((gap for name, gap in PUBLISHED_GAP.items() if model.startswith(name) and name == f"si_{twin}"), None)


NEAR: dict[str, Any] = {"client_rates": (1.0, 2.0), "server_rates": (0.01, 0.03)}
"""Rates of trainings that cost more: around the best of the small ones, and of those of large cohorts."""
LARGE_MODELS: dict[str, Any] = {"client_rates": (2.0,), "server_rates": (0.003, 0.01, 0.03)}
"""Rates of larger models: the client's that was best at every size, and lower ones of the server."""
LOWER_RATES = LARGE_MODELS | {"server_rates": (0.001, 0.003, 0.01)}
"""The same where the highest was best for no model."""
LARGER_RATES: dict[str, Any] = {"client_rates": (1.0, 2.0, 4.0), "server_rates": (0.01, 0.03, 0.1)}
"""Rates around the best, where that was at the edge of those that there were."""
ONCE: dict[str, Any] = {"seeds": SEEDS[:1]}
"""Seeds of points between those that matter."""


def _cohort(size: int, *others: dict[str, Any], **setting: Any) -> Point:
    fewer = {} if size == 20 else NEAR
    return Point(size, Setting(cohort=size, **setting), **fewer, **{k: v for one in others for k, v in one.items()})


def _after(rounds: int, *others: dict[str, Any]) -> Point:
    return Point(
        rounds, rounds=rounds, client_rates=NEAR["client_rates"], **{k: v for one in others for k, v in one.items()}
    )


# Of the server rates of `LARGE_MODELS` the lowest was CIFG's best.
_AFTER_180_AT_1M = Point(180, Setting(size="1m"), 180, **LARGE_MODELS | {"server_rates": (0.001, 0.003, 0.01, 0.03)})


AXES: dict[str, Axis] = {
    "cohort": Axis("clients a round", (_cohort(20), _cohort(50), _cohort(100), _cohort(200)), CIFGS, 500),
    "rounds": Axis(
        "rounds",
        (Point(60), _after(180), _after(420), _after(1000)),
        CIFGS,
        3000,
    ),
    "outputs": Axis(
        "rounds, other outputs", (Point(60), _after(180)), ("cifg", "si_cifg_published", "si_cifg_unit_rms", "si_cifg")
    ),
    "size": Axis(
        "parameters",
        (
            Point(PARAMETERS["tiny"]),
            Point(PARAMETERS["1m"], Setting(size="1m"), **LARGE_MODELS),
            Point(PARAMETERS["4m"], Setting(size="4m"), **LARGE_MODELS),
        ),
        (*CIFGS, "si_cifg_unit_rms"),
        18.9e6,
    ),
    "rounds_1m": Axis(
        "rounds at 1 M parameters",
        (
            Point(60, Setting(size="1m"), **LARGE_MODELS),
            _AFTER_180_AT_1M,
            Point(420, Setting(size="1m"), 420, **LARGE_MODELS, **ONCE),
        ),
        CIFGS,
        3000,
    ),
    "rounds_4m": Axis(
        "rounds at 4.2 M parameters",
        (
            Point(60, Setting(size="4m"), **LARGE_MODELS),
            Point(180, Setting(size="4m"), 180, **LOWER_RATES),
            *(Point(rounds, Setting(size="4m"), rounds, **LOWER_RATES, **ONCE) for rounds in (420, 600)),
        ),
        CIFGS,
        3000,
    ),
    "size_180": Axis(
        "parameters, 180 rounds",
        (
            Point(PARAMETERS["tiny"], rounds=180, client_rates=NEAR["client_rates"]),
            dataclasses.replace(_AFTER_180_AT_1M, value=PARAMETERS["1m"]),
            Point(PARAMETERS["4m"], Setting(size="4m"), 180, **LOWER_RATES),
        ),
        CIFGS,
        18.9e6,
    ),
    "steps": Axis(
        "local steps of a client on average",
        (
            # Few clients have sentences for more than some steps: beyond these it takes more epochs.
            Point(1.0, Setting(max_batches=1), **ONCE),
            Point(1.8, Setting(max_batches=4), **ONCE),
            Point(4.2),
            # The more steps, the lower the client rates that are best.
            Point(13.1, Setting(epochs=4), 60, (0.02, 0.05, *CLIENT_RATES), NEAR["server_rates"]),
        ),
        CIFGS,
        28.0,
    ),
    "client_size": Axis(
        "sentences of each client at least",
        # Of 50 and more, a client takes 23 local steps on average.
        (Point(1), Point(50, Setting("stackexchange_large_clients"), **NEAR)),
        CIFGS,
        100,
    ),
    "clipping": Axis(
        "local gradients clipped",
        (
            *(Point(f"{'norm 1' if clip else 'not'}, 20 clients", Setting(clip=clip)) for clip in (1.0, None)),
            *(
                Point(f"{'norm 1' if clip else 'not'}, 100 clients", Setting(cohort=100, clip=clip), **NEAR)
                for clip in (1.0, None)
            ),
        ),
        CIFGS,
    ),
    "epsilon": Axis(
        "FedAdam's epsilon",
        (
            Point(1e-8),
            Point(1e-5, Setting(epsilon=1e-5), **NEAR, **ONCE),
            # What is divided by more needs a larger rate.
            *(
                Point(eps, Setting(epsilon=eps), 60, NEAR["client_rates"], (0.01, 0.03, 0.1), SEEDS[:1])
                for eps in (1e-3, 1e-2)
            ),
        ),
        CIFGS,
        1e-8,
    ),
    "vocabulary": Axis(
        "tokens of the vocabulary",
        (
            Point(1024, Setting("stackexchange_1024"), **NEAR, **ONCE),
            Point(4096),
            Point(16_384, Setting("stackexchange_16384"), **NEAR, **ONCE),
        ),
        CIFGS,
        4096,
    ),
    "text": Axis(
        "text",
        (
            Point("Stack Exchange"),
            Point("standard library", Setting("stdlib")),
            Point("synthetic", Setting("synthetic"), **NEAR),
        ),
        (*CIFGS, "si_cifg_unit_rms"),
    ),
    "rates": Axis(
        "larger rates",
        (Point("Stack Exchange", **LARGER_RATES), Point("standard library", Setting("stdlib"), **LARGER_RATES)),
        CIFGS,
    ),
    "transformers": Axis("clients a round, Transformers", (_cohort(20), _cohort(100)), TRANSFORMERS[:2], 500),
    "transformer_norms": Axis("clients a round, last norms of Transformers", (_cohort(20),), TRANSFORMERS),
    "controls": Axis("clients a round, other norms", (_cohort(20), _cohort(100)), CONTROLS),
    "rounds_controls": Axis(
        "rounds, layer norms within",
        (Point(60), _after(180), _after(420)),
        ("cifg", "si_cifg", "cifg_layer_norm"),
        3000,
    ),
}
"""By name, in the order in which they are trained: what decides most comes first.

Stack Exchange has 1,800 clients to train on, for cohorts of 200 and not many more. The published vocabulary is of 4,096
pieces and its epsilon 1e-8, so that on these axes the published point is one of ours. Its clients have 100 sentences at
least and 397 on average, and train on 1,200 at most: about 28 local steps, were they Pareto distributed.
"""


def window(rounds: int) -> int:
    """Give over how many of its last rounds a training's scores are averaged: 100, as published, but of short trainings
    the last sixth."""
    return min(100, max(EVALUATE_EVERY, rounds // 6))


def ends(axes: dict[str, Axis], setting: Setting) -> list[int]:
    """List after how many rounds a setting's trainings are scored for a point."""
    return sorted({point.rounds for axis in axes.values() for point in axis.points if point.setting == setting})


def scored_rounds(axes: dict[str, Axis], setting: Setting) -> frozenset[int]:
    """Name the rounds after which a setting's trainings are scored on test clients: ten of each window at most."""
    found: set[int] = set()
    for end in ends(axes, setting):
        stride = -(-window(end) // (10 * EVALUATE_EVERY)) * EVALUATE_EVERY
        found.update(range(end, end - window(end), -stride))
    return frozenset(found)
