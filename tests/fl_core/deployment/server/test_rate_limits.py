"""Token buckets: no client gets more than a bucket and what has flowed into it since, nor less."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlm.fl_core.deployment.protocol.errors import TooManyCallsError
from fedlm.fl_core.deployment.server.rate_limits import RateLimiter, RateLimits

LIMITS = RateLimits(calls=5, calls_per_second=2, bytes=100, bytes_per_second=10)


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


def allowed(call, *arguments):
    try:
        call(*arguments)
    except TooManyCallsError:
        return False
    return True


@given(st.lists(st.tuples(st.sampled_from("ab"), st.floats(-1, 3), st.integers(0, 150)), max_size=60))
def test_no_client_gets_more_than_its_share_and_each_gets_all_of_it(steps):
    clock = Clock()
    limiter = RateLimiter(LIMITS, clock=clock)
    # Every bucket by itself; a clock that steps back adds nothing.
    calls, size, updated = dict.fromkeys("ab", 5.0), dict.fromkeys("ab", 100.0), {}
    for identity, seconds, wanted in steps:
        clock.now += seconds
        passed = max(0.0, clock.now - updated.get(identity, clock.now))
        updated[identity] = clock.now
        calls[identity] = min(5.0, calls[identity] + 2 * passed)
        size[identity] = min(100.0, size[identity] + 10 * passed)
        assert allowed(limiter.call, identity) == (calls[identity] >= 1)
        calls[identity] -= calls[identity] >= 1
        assert allowed(limiter.carry, identity, wanted) == (size[identity] >= wanted)
        size[identity] -= wanted if size[identity] >= wanted else 0


def test_what_is_remembered_is_bounded_and_whoever_calls_on_is_not_forgotten():
    limiter = RateLimiter(LIMITS, remembered=100, clock=Clock())
    for _ in range(5):
        limiter.call("flood")
    for number in range(1000):
        limiter.call(f"client{number}")
        assert not allowed(limiter.call, "flood")
    assert len(limiter) == 100


def test_a_flood_is_logged_once_in_a_while(caplog):
    clock = Clock()
    limiter = RateLimiter(LIMITS, clock=clock)
    for _ in range(1005):
        allowed(limiter.call, "flood")
    clock.now += 10.5
    for _ in range(6):
        allowed(limiter.call, "flood")
    told = [record.fields for record in caplog.records if record.message == "too_many_calls"]
    assert told == [
        {"client": "flood", "of": "calls", "refused": 1},
        {"client": "flood", "of": "calls", "refused": 1000},
    ]


@pytest.mark.parametrize("seconds", [0.05, 10.0, 600.0])
def test_a_client_that_does_what_it_is_told_is_never_refused(seconds):
    clock = Clock()
    limiter = RateLimiter(RateLimits.for_rounds(1000, seconds), clock=clock)
    for _ in range(200):
        for _ in range(4):  # a check-in, two downloads and an upload
            limiter.call("client")
        limiter.carry("client", 1000)
        clock.now += 0.75 * seconds
