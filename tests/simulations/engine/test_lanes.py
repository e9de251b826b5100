import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedlm.simulations.engine.lanes import balance_lanes

LENGTH = 3


@given(st.lists(st.integers(0, 120), max_size=60), st.integers(1, 9))
def test_lanes_hold_every_client_once_and_are_balanced(steps, num_lanes):
    lanes = balance_lanes(np.array(steps, int), num_lanes)
    assert sorted(client for lane in lanes for client in lane) == [i for i, count in enumerate(steps) if count]
    loads = [sum(steps[client] for client in lane) for lane in lanes]
    # Graham's bound for giving each client to the shortest lane.
    assert max(loads) <= sum(steps) / num_lanes + (1 - 1 / num_lanes) * max(steps, default=0) + 1e-9
