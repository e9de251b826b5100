import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedlm.fl_core.rounds.local_sgd import LocalTraining, batch_rows, dropout_keys
from fedlm.fl_core.rounds.round_loop import RoundPlan
from fedlm.simulations.data.federated_data import InMemoryData
from fedlm.simulations.engine.lanes import LaneShape, balance_lanes, lane_chunks

LENGTH = 3


@given(st.lists(st.integers(0, 120), max_size=60), st.integers(1, 9))
def test_lanes_hold_every_client_once_and_are_balanced(steps, num_lanes):
    lanes = balance_lanes(np.array(steps, int), num_lanes)
    assert sorted(client for lane in lanes for client in lane) == [i for i, count in enumerate(steps) if count]
    loads = [sum(steps[client] for client in lane) for lane in lanes]
    # Graham's bound for giving each client to the shortest lane.
    assert max(loads) <= sum(steps) / num_lanes + (1 - 1 / num_lanes) * max(steps, default=0) + 1e-9


def test_the_longest_clients_are_placed_first():
    assert balance_lanes(np.array([1, 1, 1, 1, 1, 5]), 2) == [[5], [0, 1, 2, 3, 4]]


@given(
    st.lists(st.integers(0, 23), min_size=1, max_size=12),
    st.integers(1, 2),
    st.integers(1, 3),
    st.integers(1, 7),
    st.integers(1, 5),
    st.sampled_from(
        [
            {},
            {"max_examples": 6, "cap_order": "cap_then_shuffle"},
            {"max_examples": 6, "epochs": 2, "batches_across_epochs": True},
            {"draws_dropout": True},
        ]
    ),
)
def test_chunks_carry_each_clients_batches_in_order(sizes, devices, lanes, steps, batch_size, more):
    """Replaying the flags gives back exactly the batches that each client trains on."""
    data = InMemoryData([np.full((n, LENGTH + 1), 0) + np.arange(n)[:, None] + 100 * c for c, n in enumerate(sizes)])
    training = LocalTraining(batch_size=batch_size, max_batches=4, **more)
    plan = RoundPlan(2, np.arange(len(sizes))[::-1], seed=9, learning_rate=0.1)
    shape = LaneShape(devices, lanes, steps, LENGTH)
    whole = list(lane_chunks(data, plan, training, shape))
    # So processes make as many chunks as one another, and together what one process would make.
    for own in range(devices):
        parts = lane_chunks(data, plan, training, shape, own_devices=range(own, own + 1))
        for part, chunk in zip(parts, whole, strict=True):
            for leaf, of_whole in zip(part, chunk, strict=True):
                np.testing.assert_array_equal(leaf, of_whole if of_whole is None else of_whole[own : own + 1])
    seen: dict[int, list] = {}
    for device in range(devices):
        for lane in range(lanes):
            current = None
            for chunk in whole:
                assert chunk.tokens.shape == (devices, steps, lanes, batch_size, LENGTH + 1)
                for step in range(chunk.num_steps[device]):
                    here = (device, step, lane)
                    if not chunk.weight[here].any():
                        assert not chunk.last[here]
                        continue
                    if current is None:
                        current = int(chunk.client[here])
                        assert current not in seen
                        seen[current] = []
                    assert chunk.client[here] == current
                    assert chunk.num_examples[here] == min(sizes[current], more.get("max_examples", 1000))
                    keys = None if chunk.dropout is None else chunk.dropout[here]
                    seen[current].append((chunk.tokens[here], chunk.weight[here], keys))
                    if chunk.last[here]:
                        current = None
                assert not chunk.weight[device, chunk.num_steps[device] :].any()
            assert current is None
    assert sorted(seen) == [client for client, size in enumerate(sizes) if size]
    for client, batches in seen.items():
        rows = batch_rows(sizes[client], training, plan.shuffling(client))
        assert len(batches) == len(rows)
        drawn = dropout_keys(rows, plan.dropout(client)) if training.draws_dropout else [None] * len(rows)
        for (tokens, weight, keys), expected, own in zip(batches, rows, drawn, strict=True):
            np.testing.assert_array_equal(keys, own)
            np.testing.assert_array_equal(weight, expected >= 0)
            np.testing.assert_array_equal(tokens[expected >= 0, 0], 100 * client + expected[expected >= 0])
