"""Shares of a secret, against the polynomial of the golden values and by their properties."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlm.fedlm_client.secure_aggregation import shamir


def test_any_three_values_of_the_golden_polynomial_give_its_secret(monkeypatch):
    monkeypatch.setattr(shamir, "PRIME", 257)
    shamir._inverses.cache_clear()
    values = {place: 42 + 7 * place + 3 * place**2 for place in range(1, 6)}
    assert [value % 257 for value in values.values()] == [52, 68, 90, 118, 152]
    assert [shamir.evaluated([42, 7, 3], place) for place in values] == [52, 68, 90, 118, 152]
    for places in itertools.combinations(values, 3):
        shares = {place: (values[place] % 257).to_bytes(33, "big") for place in places}
        assert shamir.value_at(shares, 0) == 42
    shamir._inverses.cache_clear()


@given(st.binary(min_size=32, max_size=32), st.integers(1, 6), st.sets(st.integers(1, 9000), min_size=6, max_size=9))
def test_so_many_shares_give_the_secret_and_one_fewer_another_number(secret, threshold, places):
    shares = shamir.split(secret, threshold, places)
    chosen = dict(sorted(shares.items())[:threshold])
    assert shamir.combine(chosen) == secret
    fewer = dict(sorted(shares.items())[: threshold - 1])
    assert shamir.split(secret, threshold, places) != shares or threshold == 1
    if fewer:
        assert shamir.value_at(fewer, 0) != int.from_bytes(secret, "big")


def test_a_place_that_would_give_the_secret_away_is_refused():
    for place in (0, shamir.PRIME):
        with pytest.raises(ValueError, match="a share at"):
            shamir.split(bytes(32), 2, [place])


def test_shares_that_are_no_numbers_or_of_no_secret_are_refused():
    shares = shamir.split(b"\xff" * 32, 2, [1, 2])
    for wrong in (b"\xff" * 33, b"\0" * 32):
        with pytest.raises(ValueError, match="number of the field"):
            shamir.combine({**shares, 1: wrong})
    too_large = (1 << 256).to_bytes(33, "big")
    with pytest.raises(ValueError, match="not of one secret"):
        shamir.combine({1: too_large, 2: too_large})
