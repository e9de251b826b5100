"""What is measured, in order of value: one cell a number or two, each alone in what can go wrong with it.

`full` is for an accelerator; `tiny` computes the same with sizes that a CPU can, so that everything has run once
before.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

PACKAGE = "benchmarks.accelerator"
PEAKS, ROUNDS, SHARES, COMPARISON = "peaks", "rounds", "shares", "comparison"
PRIVATE_STEPS, NOISE, RECURRENCE, PARITY = "private_steps", "noise", "recurrence", "parity"
TRAINING_STEPS, KERNELS = "training_steps", "kernels"
GROUPS = (PEAKS, ROUNDS, SHARES, PRIVATE_STEPS, KERNELS, TRAINING_STEPS, PARITY, NOISE, RECURRENCE, COMPARISON)
OURS, PLAIN, JAX_PRIVACY = ("bookkeeping", "ghost", "vmap"), "plain", "jax_privacy"
PROFILED, PRIVATE = "profiled", "private"
MECHANISMS = ("plain draw", "gaussian", "tree", "tree_honaker", "blt", "banded", "bisr", "dense")
"""Named here, and models below, so that the runner needs no JAX; tests hold these lists to the registries."""
LARGER_MODELS = (
    *("cifg_1m", "si_cifg_1m", "transformer_1m", "si_transformer_1m", "cifg_6m", "si_cifg_6m", "cifg_9m", "si_cifg_9m"),
    *("cifg_19m", "si_cifg_19m", "transformer_11m", "si_transformer_11m", "transformer_21m", "si_transformer_21m"),
    *("bert_mini", "bert_small", "bert_medium", "bert_base", "bert_large", "bert_mega"),
    *("vaultgemma_10m", "vaultgemma_20m", "vaultgemma_100m", "vaultgemma_1b"),
    *("gru4rec", "gru4rec+tied=false", "lstm4rec", "lstm4rec+tied=false"),
    *("sasrec", "sasrec+tied=false", "sasrec+max_length=200", "sasrec+max_length=200+tied=false"),
    *("dpformer", "dpformer+max_length=200"),
    *(f"{model}_{size}+reattention" for model in ("transformer", "si_transformer") for size in ("1m", "11m", "21m")),
    *("cifg_4m", "si_cifg_4m", "transformer_4m", "si_transformer_4m"),
    *("cifg_1m+recurrence=layer_norm", "si_cifg_1m+output_norm=none", "si_transformer_1m+final_norm=rms_norm"),
)
SMALLEST_MODELS = (
    *("cifg_tiny", "transformer_tiny", "bert_tiny", "si_cifg_tiny", "si_transformer_tiny", "vaultgemma_1m"),
    *("gru4rec_tiny", "lstm4rec_tiny", "sasrec_tiny", "dpformer_tiny"),
)


class Cell(NamedTuple):
    """A measurement.

    Attributes:
      group: the module of this package that measures it.
      name: within the group.
      measure: `module:function`.
      arguments: of the function.
      limit: seconds after which it is given up.
      least: seconds that must be left of the run for it to begin.
      alone: whether it starts processes of its own, which must not find the devices taken.
    """

    group: str
    name: str
    measure: str
    arguments: dict[str, Any]
    limit: float
    least: float
    alone: bool = False


class _Shape(NamedTuple):
    """Of batches."""

    examples: int
    length: int
    vocabulary: int | None = None  # of the model; its own where None


def full() -> list[Cell]:
    """List the cells of an accelerator."""
    size = {"clients": 500, "most_steps": 120, "length": 20, "vocabulary": 4096}

    def round_of(model: str, precision: str, lanes: int | None = None) -> Cell:
        # Few lanes take long for a round; as many clients a lane keep them about equally long.
        clients = 500 if lanes is None else min(500, max(50, 8 * lanes))
        return _round(model, precision, lanes, size | {"clients": clients}, patience=4.0, limit=150, least=25)

    def shares_of(model: str, precision: str) -> list[Cell]:
        return _shares(model, precision, None, size | {"clients": 250}, patience=8.0, limit=150, least=30)

    def steps_of(model: str, precision: str, examples: int, length: int, kinds: tuple[str, ...]) -> Iterator[Cell]:
        vocabulary = {"bert_base": 30_522}.get(model)
        for kind in kinds:
            shape, more = _Shape(examples, length, vocabulary), {"microbatches": 3, "patience": 2.0}
            yield _batches(PRIVATE_STEPS, model, precision, kind, shape=shape, limit=75, least=25, **more)

    def kernels_of(model: str, examples: int, length: int, microbatch: int) -> list[Cell]:
        more = {"shape": _Shape(examples, length), "microbatch": microbatch, "limit": 120, "least": 30}
        return [_batches(KERNELS, model, "bfloat16", kind, **more) for kind in (PLAIN, OURS[0])]

    def training_of(model: str, examples: int, sizes: list[int]) -> list[Cell]:
        more = {"shape": _Shape(examples, 1024), "microbatches": sizes, "patience": 3.0, "limit": 240, "least": 60}
        return [_batches(TRAINING_STEPS, model, "bfloat16", kind, **more) for kind in (PLAIN, PRIVATE)]

    def recurrence_of(precision: str, lanes: int, batch: int, unroll: int) -> Cell:
        arguments = {"model": "cifg_19m", "precision": precision, "lanes": lanes, "batch": batch, "length": 20}
        return _recurrence(arguments | {"vocabulary": 4096, "unroll": unroll, "patience": 2.0}, limit=90, least=20)

    def parity_of(model: str) -> Cell:
        # The CPU's programs take the longest to compile.
        return _cell(PARITY, model, "measure", {"model": model, "length": 16, "vocabulary": 4096}, 180, 30)

    def noise_of(mechanism: str, parameters: int) -> Cell:
        return _noise(mechanism, parameters, block=16, limit=40, least=12)

    every = (PLAIN, *OURS[:2], JAX_PRIVACY, *OURS[2:])
    return [
        _cell(PEAKS, "products", "measure_products", {"sizes": [4096, 8192], "patience": 1.0}, 60, 10),
        _cell(PEAKS, "memory", "measure_memory", {"mebibytes": 1024, "patience": 1.0}, 40, 10),
        round_of("cifg_19m", "bfloat16"),
        *steps_of("transformer_21m", "bfloat16", 256, 128, every),
        *kernels_of("transformer_21m", 256, 128, 256),
        parity_of(SMALLEST_MODELS[0]),
        *shares_of("cifg_19m", "bfloat16"),
        round_of("cifg_19m", "tf32"),
        noise_of("tree_honaker", 20_000_000),
        recurrence_of("bfloat16", 64, 10, 1),
        recurrence_of("bfloat16", 64, 10, 20),
        round_of("transformer_21m", "bfloat16"),
        *steps_of("bert_base", "bfloat16", 64, 512, every),
        *map(parity_of, SMALLEST_MODELS[1:3]),
        *training_of("vaultgemma_100m", 128, [16, 8]),
        *training_of("vaultgemma_1b", 16, [4, 2, 1]),
        _cell(PARITY, "noise", "measure_noise", {"parameters": 1_000_000}, 40, 12),
        *(noise_of(mechanism, 20_000_000) for mechanism in MECHANISMS if mechanism != "tree_honaker"),
        round_of("transformer_21m", "tf32"),
        *shares_of("transformer_21m", "bfloat16"),
        *steps_of("cifg_19m", "bfloat16", 1024, 20, every),
        *kernels_of("cifg_19m", 1024, 20, 1024),
        *kernels_of("vaultgemma_100m", 128, 1024, 8),
        *steps_of(DECODER, "bfloat16", 64, 512, every),
        *map(parity_of, SMALLEST_MODELS[3:]),
        *(recurrence_of("bfloat16", 64, 10, unroll) for unroll in (2, 5)),
        *(recurrence_of("tf32", 64, 10, unroll) for unroll in (1, 20)),
        *(recurrence_of("bfloat16", 1, 1024, unroll) for unroll in (1, 20)),
        *(noise_of(mechanism, 100_000_000) for mechanism in MECHANISMS),
        *(
            round_of(model, precision, lanes)
            for lanes in (16, 64, 4, 1)
            for precision in ("bfloat16", "tf32")
            for model in ("cifg_19m", "transformer_21m")
        ),
        *(round_of(model, "float32") for model in ("cifg_19m", "transformer_21m")),
        *steps_of("transformer_21m", "bfloat16", 1024, 64, every),
        *steps_of("bert_base", "bfloat16", 256, 128, every),
        *steps_of(DECODER, "bfloat16", 256, 128, every),
        *steps_of("transformer_21m", "tf32", 256, 128, every),
        *steps_of("bert_base", "tf32", 64, 512, every),
        _comparison({}, None, limit=900, least=150),
        *map(parity_of, LARGER_MODELS),
    ]


DECODER = "decoder_100m"


def tiny() -> list[Cell]:
    """List cells that compute, with tiny sizes, all that `full` does."""
    size = {"clients": 6, "most_steps": 2, "length": 5, "vocabulary": 64}
    limit: dict[str, float] = {"limit": 120, "least": 0}
    cells = [
        _cell(PEAKS, "products", "measure_products", {"sizes": [64], "patience": 0.02}, **limit),
        _cell(PEAKS, "memory", "measure_memory", {"mebibytes": 1, "patience": 0.02}, **limit),
    ]
    for model, policy, lanes in (
        *(("cifg_tiny", policy, None) for policy in ("bfloat16", "tf32", "float32")),
        ("cifg_tiny", "bfloat16", 2),
        ("transformer_tiny", "bfloat16", None),
    ):
        cells.append(_round(model, policy, lanes, size, patience=0.02, **limit))
    cells += _shares("cifg_tiny", "bfloat16", 2, size, patience=0.0, **limit)
    for model, kinds in (
        ("transformer_tiny", (PLAIN, *OURS, JAX_PRIVACY)),
        ("bert_tiny", (PLAIN, OURS[0])),
        ("cifg_tiny", (PLAIN, OURS[0])),
    ):
        more = {"microbatches": 2 if model == "transformer_tiny" else 1, "patience": 0.02, "shape": _Shape(8, 4, 64)}
        cells += [_batches(PRIVATE_STEPS, model, "bfloat16", kind, **more, **limit) for kind in kinds]
    more = {"microbatch": 8, "shape": _Shape(8, 4, 64)}
    cells += [_batches(KERNELS, "transformer_tiny", "bfloat16", kind, **more, **limit) for kind in (PLAIN, OURS[0])]
    more = {"microbatches": [2, 1], "patience": 0.02, "shape": _Shape(4, 8, 64)}
    kinds = (PLAIN, PRIVATE)
    cells += [_batches(TRAINING_STEPS, "vaultgemma_1m", "bfloat16", kind, **more, **limit) for kind in kinds]
    for model in ("cifg_tiny", "bert_tiny"):
        arguments = {"model": model, "length": 5, "vocabulary": 64}
        cells.append(_cell(PARITY, model, "measure", arguments, **limit))
    cells.append(_cell(PARITY, "noise", "measure_noise", {"parameters": 1000}, **limit))
    cells += [_noise(mechanism, 2000, block=2, **limit) for mechanism in MECHANISMS]
    shape = {"model": "cifg_tiny", "lanes": 2, "batch": 2, "length": 4, "vocabulary": 64, "patience": 0.02}
    for policy, unroll in (("bfloat16", 1), ("bfloat16", 4), ("tf32", 1)):
        cells.append(_recurrence(shape | {"precision": policy, "unroll": unroll}, **limit))
    changes = {"models": ["cifg_tiny"], "seeds": [0], "client_learning_rates": [0.5], "rounds": 2, "cohort_size": 2}
    changes |= {"client_max_batches": 2, "evaluate_every": 1, "heldout_examples": 20, "test_examples": 20}
    return [*cells, _comparison(changes, 120, **limit)]


def _cell(group: str, name: str, function: str, arguments: dict[str, Any], limit: float, least: float) -> Cell:
    return Cell(group, name, f"{PACKAGE}.{group}:{function}", arguments, limit, least)


def _round(
    model: str, precision: str, lanes: int | None, size: dict[str, int], patience: float, limit: float, least: float
) -> Cell:
    name = f"{model}, {precision}, {'lanes as chosen' if lanes is None else f'{lanes} lanes'}"
    arguments = {"model": model, "precision": precision, "lanes": lanes, **size, "patience": patience}
    return _cell(ROUNDS, name, "measure", arguments, limit, least)


def _shares(
    model: str, precision: str, lanes: int | None, size: dict[str, int], patience: float, limit: float, least: float
) -> list[Cell]:
    # A profiler may bring its process down: it has a cell of its own.
    name, arguments = f"{model}, {precision}", {"model": model, "precision": precision, "lanes": lanes, **size}
    return [
        _cell(SHARES, name, "measure", arguments | {"patience": patience}, limit, least),
        _cell(SHARES, f"{name}, {PROFILED}", "profile", arguments, limit, least),
    ]


def _batches(
    group: str, model: str, precision: str, kind: str, *, shape: _Shape, limit: float, least: float, **more: Any
) -> Cell:
    """Make a cell of what is done with batches; with `patience` it is repeated."""
    arguments = {"model": model, "precision": precision, **shape._asdict(), **more}
    arguments |= {"private": kind == PRIVATE} if group == TRAINING_STEPS else {"kind": kind}
    if "patience" in more:
        arguments["enough"] = limit / 3
    name = f"{model}, {precision}, {shape.examples} x {shape.length}, {kind}"
    return _cell(group, name, "measure", arguments, limit, least)


def _noise(mechanism: str, parameters: int, block: int, limit: float, least: float) -> Cell:
    arguments = {"mechanism": mechanism, "parameters": parameters, "block": block, "passes": 3}
    return _cell(NOISE, f"{mechanism}, {parameters:,} parameters", "measure", arguments, limit, least)


def _recurrence(arguments: dict[str, Any], limit: float, least: float) -> Cell:
    shape = f"{arguments['lanes']} x {arguments['batch']} rows"
    name = f"{arguments['model']}, {arguments['precision']}, {shape}, {arguments['unroll']} at once"
    return _cell(RECURRENCE, name, "measure", arguments, limit, least)


def _comparison(changes: dict[str, Any], modules: int | None, limit: float, least: float) -> Cell:
    arguments = {"changes": changes, "modules": modules}
    return _cell(COMPARISON, "small preset", "measure", arguments, limit, least)._replace(alone=True)
