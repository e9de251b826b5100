import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from fedlm.simulations.engine.prefetching import Prefetched


def test_items_come_in_order_and_only_so_many_ahead():
    made = []

    def items():
        for index in range(20):
            made.append((index, threading.current_thread().name))
            yield index

    with ThreadPoolExecutor(1, "ahead") as executor:
        prefetched = Prefetched(items(), executor, depth=3)
        executor.submit(lambda: None).result()  # everything asked for so far has been made
        assert [index for index, _ in made] == [0, 1, 2]
        assert list(prefetched) == list(range(20))
    assert {name for _, name in made} == {"ahead_0"}


def test_an_error_is_raised_where_the_item_is_taken():
    def items():
        yield 1
        raise ValueError("no second item")

    with ThreadPoolExecutor(1) as executor:
        taken = iter(Prefetched(items(), executor, depth=5))
        assert next(taken) == 1
        with pytest.raises(ValueError, match="no second item"):
            next(taken)
