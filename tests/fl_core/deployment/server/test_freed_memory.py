import gc

from fedlm.fl_core.deployment.server.freed_memory import frozen_start


def test_what_there_is_at_the_start_is_not_searched_for_garbage_until_the_end():
    with frozen_start():
        assert gc.get_freeze_count() > 1000
    assert gc.get_freeze_count() == 0
