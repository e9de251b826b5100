"""Messages of errors: one text, worded for programs and for the command line."""

import pickle

import pytest

from fedlm.models.errors import ConfigurationError, UserError, setting


@pytest.mark.parametrize(
    ("named", "argument", "option"),
    [
        (setting("cohort_size"), "cohort_size", "--cohort-size"),
        (setting("private_selection", "none"), "private_selection='none'", "--private-selection none"),
        (setting("rounds", 0), "rounds=0", "--rounds 0"),
        (setting("delta", 1e-6), "delta=1e-06", "--delta 1e-06"),
        (setting("overwrite", True), "overwrite=True", "--overwrite"),
        (setting("overwrite", False), "overwrite=False", "--no-overwrite"),
    ],
)
def test_a_setting_is_an_argument_or_an_option(named, argument, option):
    error = ConfigurationError(f"runs/a--b: {named} is wrong; leave {named} out")
    assert str(error) == f"runs/a--b: {argument} is wrong; leave {argument} out"
    assert error.for_command_line() == f"runs/a--b: {option} is wrong; leave {option} out"


def test_wording_outlives_processes_and_is_of_one_error():
    error = pickle.loads(pickle.dumps(UserError(f"{setting('top_k')} is 0")))
    assert (str(error), error.for_command_line()) == ("top_k is 0", "--top-k is 0")
    assert str(UserError("nothing is named")) == UserError("nothing is named").for_command_line()
