import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlm.fl_core.rounds.client_examples import ClientExamples, padded_sequences
from fedlm.models.special_tokens import BOS_ID, EOS_ID, PAD_ID

ragged = st.lists(st.lists(st.integers(4, 65_535), max_size=12), max_size=8)


def naive(sequences, length):
    rows = []
    for sequence in sequences:
        row = [BOS_ID, *sequence, EOS_ID][: length + 1]
        rows.append(row + [PAD_ID] * (length + 1 - len(row)))
    return np.array(rows, np.int32).reshape(len(sequences), length + 1)


@given(ragged, st.integers(1, 15), st.randoms())
def test_agrees_with_a_loop(sequences, length, random):
    examples = ClientExamples.from_sequences(sequences)
    result = padded_sequences(examples, length)
    assert result.dtype == np.int32
    np.testing.assert_array_equal(result, naive(sequences, length))
    if sequences:
        rows = [random.randrange(len(sequences)) for _ in range(5)]
        np.testing.assert_array_equal(
            padded_sequences(examples, length, rows=np.array(rows)), naive([sequences[row] for row in rows], length)
        )


@given(ragged, ragged)
def test_offsets_need_not_begin_at_zero(before, sequences):
    joined = ClientExamples.from_sequences(before + sequences)
    start = joined.offsets[len(before)]
    part = ClientExamples(joined.values[start:], joined.stored_offsets[len(before) :])
    np.testing.assert_array_equal(padded_sequences(part, 5), naive(sequences, 5))
    assert [part.example(j).tolist() for j in range(part.num_examples)] == sequences
    assert part.num_tokens == sum(map(len, sequences))


def test_rows_that_there_are_not():
    examples = ClientExamples.from_sequences([[7, 8]])
    assert padded_sequences(examples, 4, rows=np.array([], np.int64)).shape == (0, 5)
    with pytest.raises(ValueError, match="length is 0"):
        padded_sequences(examples, 0)
    with pytest.raises(IndexError):
        padded_sequences(examples, 4, rows=np.array([1]))
    with pytest.raises(IndexError):
        examples.example(1)
