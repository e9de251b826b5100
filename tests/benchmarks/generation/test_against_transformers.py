import json
from pathlib import Path

import pytest

from benchmarks.generation.against_transformers import agreement, draw_prompts, word_tokenizer
from benchmarks.generation.report import plot, table

RESULTS = Path(__file__).parents[3] / "benchmarks" / "generation" / "results" / "against_transformers.json"


def test_tokens_agree_up_to_where_rows_part():
    assert agreement([[1, 2, 3], [4, 5, 6]], [[1, 2, 3], [4, 5, 6]]) == 1
    assert agreement([[1, 2, 3], [4, 9, 6]], [[1, 2, 3], [4, 5, 6]]) == pytest.approx(4 / 6)
    assert agreement([[1, 2]], [[1, 2, 3]]) == 0, "one side ended early"


def test_prompts_have_different_lengths_and_words_of_the_vocabulary():
    prompts = draw_prompts(50, 8)
    assert len({len(prompt) for prompt in prompts}) > 3
    assert all(prompt[0] == 1 and min(prompt[1:]) >= 4 and max(prompt) < 50 for prompt in prompts)


def test_a_vocabulary_has_the_size_of_the_model():
    assert word_tokenizer(40).vocabulary_size == 40


def test_the_committed_results_are_of_the_same_tokens_and_can_be_drawn():
    models = json.loads(RESULTS.read_text())["models"]
    for name, measured in models.items():
        assert table(name, measured).row_count >= 2
        for numbers in measured["batches"].values():
            assert numbers["same_tokens"] == 1
            assert numbers["distinct_tokens"] > 10
    assert len(plot(models).axes) == len(models)
