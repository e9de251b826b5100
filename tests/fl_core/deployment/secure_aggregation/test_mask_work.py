"""Masks that come off by several processes leave the integers that one leaves, also where a process is killed."""

import multiprocessing
import os

import numpy as np
import pytest

from fedlm.fedlm_client.secure_aggregation.masks import BLOCK, add_mask
from fedlm.fl_core.deployment.secure_aggregation import mask_work

unmasked = mask_work._unmasked
STREAMS = [mask_work.Stream(bytes([number]) * 32, (-1) ** number) for number in range(5)]


def killed_at_the_second_part(part):
    if part.first == 2 * BLOCK and multiprocessing.parent_process():
        os.kill(os.getpid(), 9)
    return unmasked(part)


@pytest.mark.parametrize("work", [unmasked, killed_at_the_second_part])
def test_processes_leave_the_integers_that_one_leaves_also_where_one_is_killed(monkeypatch, caplog, work):
    total = np.arange(3 * BLOCK + 5, dtype="<u2")
    expected = total.copy()
    for key, sign in STREAMS:
        add_mask(expected, key, sign)
    monkeypatch.setattr(mask_work, "_LEAST_BYTES", 0)
    monkeypatch.setattr(mask_work, "cpu_cores", lambda: [0, 1])
    monkeypatch.setattr(mask_work, "_unmasked", work)
    mask_work.take_off(total, STREAMS)
    np.testing.assert_array_equal(total, expected)
    assert ("mask_processes_lost" in caplog.text) == (work is killed_at_the_second_part)
