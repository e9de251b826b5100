"""What is measured: models by their number of parameters, and cohorts by their size. No model is trained."""

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    # Only the server that is measured needs JAX; the other processes start sooner without.
    import jax

    from fedlm.fl_core.deployment.server.settings import Deployment
    from fedlm.models.base import Model

BITS, CHUNK = 8, 1 << 19


class Shape(NamedTuple):
    """A round.

    Attributes:
      name: in words.
      parameters: of the model; float32 down.
      selected: clients that download it.
      goal: uploads that a round is to have; all that are selected send one, and are waited for.
      bits: of a parameter's update on its way up.
      server_optimizer: by name.
      checkpoint_every: rounds.
    """

    name: str
    parameters: int
    selected: int
    goal: int
    bits: int = BITS
    server_optimizer: str = "fedadam"
    checkpoint_every: int = 1_000_000


SHAPES = [
    Shape("4 KB", 1_000, 130, 100),
    Shape("20 MB + 5 MB", 5_000_000, 130, 100),
    Shape("76 MB + 19 MB", 19_000_000, 130, 100),
    Shape("9 M model, 500 clients", 9_450_000, 500, 384),
]


def model_of(parameters: int) -> "Model":
    """A model of four tensors that nothing is computed with."""
    import jax.numpy as jnp

    from fedlm.models.base import Model

    sizes = [parameters // 2, parameters // 4, parameters // 8]
    sizes.append(parameters - sum(sizes))

    def init(key: "jax.Array") -> dict[str, "jax.Array"]:
        return {f"tensor{number}": jnp.zeros(size) for number, size in enumerate(sizes)}

    def nothing(*arguments: object) -> None:
        raise NotImplementedError

    return Model("flat", 100, init, nothing, nothing)


def deployment_of(shape: Shape, check_in_seconds: float) -> "Deployment":
    """Settings of a server that runs rounds of a shape until it is stopped."""
    from fedlm.fl_core.composed_settings import compose
    from fedlm.fl_core.deployment.server.settings import Deployment

    return compose(
        Deployment,
        model="flat",
        rounds=1_000_000,
        cohort_size=shape.goal,
        minimum_reports=shape.goal,
        over_selection=shape.selected / shape.goal,
        window_seconds=0.0,
        selection_seconds=3600.0,
        reporting_seconds=3600.0,
        check_in_seconds=check_in_seconds,
        update_clip_norm=1.0,
        upload_bits=shape.bits,
        server_optimizer=shape.server_optimizer,
        chunk_bytes=CHUNK,
        checkpoint_every=shape.checkpoint_every,
        evaluate_every=1_000_000,
    )


def sizes_of(shape: Shape) -> tuple[int, int]:
    """Bytes of a download and of an upload."""
    import jax

    from fedlm.fl_core.updates.registry import make_compressor
    from fedlm.fl_core.updates.update_bytes import download_bytes, upload_bytes

    like = jax.eval_shape(model_of(shape.parameters).init, jax.random.key(0))
    return download_bytes(like), upload_bytes(make_compressor(f"uniform{BITS}"), like)


def random_upload(shape: Shape) -> bytes:
    """A valid upload of random numbers."""
    import jax

    from fedlm.fl_core.updates.registry import make_compressor
    from fedlm.fl_core.updates.update_bytes import pack_update

    compressor, key = make_compressor(f"uniform{BITS}"), jax.random.key(1)
    like = jax.eval_shape(model_of(shape.parameters).init, key)
    compressed = [
        compressor.compress(compressor.keys(key), 1e-3 * jax.random.normal(key, (leaf.size,)))
        for leaf in jax.tree_util.tree_leaves(like)
    ]
    return pack_update(compressor, compressed, like)
