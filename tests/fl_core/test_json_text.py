"""JSON that every program reads."""

import json
import math

import pytest

from fedlm.fl_core.json_text import json_text


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_null_wherever_it_stands(number):
    text = json_text({"a": number, "b": [1, (2.5, number)], "c": {"d": {"e": number}}}, indent=1)
    found = json.loads(text, parse_constant=lambda constant: pytest.fail(f"JSON has no {constant}"))
    assert found == {"a": None, "b": [1, [2.5, None]], "c": {"d": {"e": None}}}
