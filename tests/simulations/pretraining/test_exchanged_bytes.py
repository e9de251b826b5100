import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedlm.simulations.pretraining.exchanged_bytes import UncountableError, exchanged_bytes

ROWS, WIDTH, TURNS = 3, 16, 7
SHARD = ROWS * WIDTH * 4


def compiled(function, devices):
    """The text of a function of shards, each [ROWS, WIDTH]."""
    mesh = Mesh(np.array(jax.devices()[:devices]), "devices")
    spread = PartitionSpec("devices")
    on_devices = jax.shard_map(function, mesh=mesh, in_specs=spread, out_specs=spread, check_vma=False)
    whole = jax.ShapeDtypeStruct((devices * ROWS, WIDTH), jnp.float32, sharding=NamedSharding(mesh, spread))
    return jax.jit(on_devices).lower(whole).compile().as_text()


def gather(x):
    return jax.lax.all_gather(x, "devices")


@pytest.mark.parametrize(
    ("collective", "sent"),
    [
        (lambda x: jnp.sum(jnp.sin(gather(x)), axis=0), 3 * SHARD),
        (lambda x: jax.lax.psum(x, "devices"), 2 * 3 / 4 * SHARD),
        (
            lambda x: jnp.tile(jax.lax.psum_scatter(x, "devices", scatter_dimension=1, tiled=True), (1, x.shape[1])),
            3 / 4 * SHARD,
        ),
        (lambda x: jax.lax.ppermute(x, "devices", [(0, 1), (1, 0)]), SHARD),
    ],
    ids=["all-gather", "all-reduce", "reduce-scatter", "collective-permute"],
)
def test_a_collective_in_a_loop_counts_as_often_as_the_loop_runs(collective, sent):
    def turn(x, _):
        return jnp.sin(collective(x))[:, :WIDTH], None

    functions = (lambda x: turn(x, None)[0], lambda x: jax.lax.scan(turn, x, None, length=TURNS)[0])
    once, often = (exchanged_bytes(compiled(function, 4), 4) for function in functions)
    assert once.most == once.least
    assert sum(once.most.values()) == pytest.approx(sent)
    assert sum(often.most.values()) == sum(often.least.values()) == pytest.approx(TURNS * sent)


def test_a_collective_in_a_branch_may_be_left_out():
    def function(x):
        anywhere = jax.lax.psum(x[0, 0], "devices") > 0
        return jax.lax.cond(anywhere, lambda x: jnp.sum(jnp.sin(gather(x)), axis=0), lambda x: x, x)

    found = exchanged_bytes(compiled(function, 2), 2)
    assert sum(found.least.values()) == 4
    assert sum(found.most.values()) == 4 + SHARD


HLO = """HloModule made_up, num_partitions=8

%turn (x: (s32[], bf16[4])) -> (s32[], bf16[4]) {
  %x = (s32[], bf16[4]{0}) parameter(0)
  %a = ((bf16[4]{0}), (bf16[8]{0:T(8,128)})) all-gather-start(%y), replica_groups={{0,1},{2,3},{4,5},{6,7}}
  %b = bf16[8]{0} all-gather-done(%a)
  ROOT %t = (s32[], /*index=1*/bf16[4]{0}) tuple(%i, %b)
}

%end (x: (s32[], bf16[4])) -> pred[] {
  ROOT %c = pred[] compare(%i, %n), direction=LT
}

ENTRY %main (p: f32[16]) -> f32[2] {
  %w = (s32[], bf16[4]{0}) while(%t), condition=%end, body=%turn, backend_config={"known_trip_count":{"n":"5"}}
  %f = (f32[2]{0}, f32[2]{0}) all-to-all(%p, %p), replica_groups=[4,2]<=[8]
  ROOT %r = f32[2]{0} reduce-scatter(%p), replica_groups={}, dimensions={0}, to_apply=%add
}
"""


def test_each_form_of_groups_and_shapes_is_read():
    found = exchanged_bytes(HLO, 8)
    assert found.most == {"all-gather": 5 * 16 / 2, "all-to-all": 16 / 2, "reduce-scatter": 7 * 8}


def test_what_cannot_be_counted_is_refused():
    for there, instead, why in (
        (', backend_config={"known_trip_count":{"n":"5"}}', "", "how often it runs is not known"),
        ("replica_groups={},", "replica_groups=new,", "groups"),
        ("f32[2]{0} reduce-scatter", "f7[2]{0} reduce-scatter", "f7"),
    ):
        with pytest.raises(UncountableError, match=why):
            exchanged_bytes(HLO.replace(there, instead), 8)
