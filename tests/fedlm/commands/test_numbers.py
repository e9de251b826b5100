"""Every number of every command is looked at before anything runs, and refused in the words of who gave it."""

import dataclasses
import math
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedlm.command_line.command_tree import find_commands
from fedlm.commands.cli import main
from fedlm.fl_core.composed_settings import compose, value_hints
from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.number_ranges import range_of, refusal

_INFINITE = {"epsilons", "link_bytes", "laws plan epsilon"}
"""Options that take infinity; those of one command alone have its name before theirs."""
_HUGE = {"temperature"}
_NEGATIVE = {"priority"}
_ZERO = {
    *("audit_canaries", "availability", "canaries", "diurnal", "draws", "dropout", "hour"),
    *("doublings", "drop_before", "extrapolate_from", "final_learning_rate", "final_rate", "linger_seconds"),
    *("local_adam_beta1", "local_adam_beta2", "lora_dropout", "fedprox_mu", "mime_lite_momentum"),
    *("beta1", "beta2", "momentum", "server_beta1", "server_beta2", "server_momentum", "server_warmup_rounds"),
    *("noise_batch_ratios", "num_fewshot", "priority", "process_id", "rolling", "seed", "seeds"),
    *("selection_eta", "speed_shares", "temperature", "training_examples", "warmup_steps", "weight_decay"),
    *("window_seconds", "halvings", "laws run heldout_examples"),
}


def _number_kind(hint: Any) -> type | None:
    """int or float, where an option takes one or several of these."""
    if hint in (int, float):
        return hint
    return next((found for part in typing.get_args(hint) if (found := _number_kind(part)) is not None), None)


def _numbers() -> Iterator[tuple[str, type, str, Any, type]]:
    """All options that are numbers: the command, its record, the option's name, its type and int or float."""
    for prog, command in find_commands().items():
        for name, hint in value_hints(command).items():
            if (kind := _number_kind(hint)) is not None:
                yield prog.removeprefix("fedlm "), command, name, hint, kind


def _expected(prog: str, name: str, kind: type) -> dict[float, bool]:
    """Numbers that say little, and whether an option takes them."""

    def among(names: set[str]) -> bool:
        return not names.isdisjoint((name, f"{prog} {name}"))

    fits = {-1: among(_NEGATIVE), 0: among(_ZERO)}
    if kind is int:
        return fits | dict.fromkeys((10**30, -(10**30)), False)
    infinity = float("1e400")
    fits |= dict.fromkeys((math.nan, -infinity, -1e308), False)
    return fits | {1e308: among(_HUGE), infinity: among(_INFINITE)}


def test_every_number_of_every_command_has_a_range() -> None:
    wrong = []
    for prog, _, name, hint, kind in _numbers():
        interval = range_of(hint)
        assert interval is not None, (prog, name)
        assert refusal(kind(interval.some()), interval) is None, (prog, name)
        for value, fits in _expected(prog, name, kind).items():
            if (refusal(kind(value), interval) is None) != fits:
                wrong.append(f"{prog} {name} {value}")
    assert not wrong, "an option takes these, or not, as its range says: name it in _ZERO, _NEGATIVE or _INFINITE"


def _required(command: type) -> dict[str, Any]:
    """Something for each option that must be given."""
    some: dict[Any, Any] = {int: 1, float: 0.5, str: "cifg_tiny", Path: Path("nowhere")}
    given: dict[str, Any] = {}
    hints = typing.get_type_hints(command)
    for field in dataclasses.fields(command):
        kind = hints[field.name]
        if dataclasses.is_dataclass(kind):
            given |= _required(typing.cast(type, kind))
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            one = kind if kind in some else typing.get_args(kind)[0]
            given[field.name] = (some[one],) if typing.get_origin(kind) is tuple else some.get(one, one)
    return given


@pytest.mark.long
def test_numbers_are_refused_by_name_before_all_else_and_never_by_a_defect() -> None:
    done = set()
    for prog, command, name, hint, kind in _numbers():
        if (name, hint) in done:
            continue
        done.add((name, hint))
        given, several = _required(command), "tuple" in str(hint)
        for value, fits in _expected(prog, name, kind).items():
            one = kind(value)
            said = f"{name} has {one}, but each must " if several else f"{name} is {one}, but must "
            refused = _refused(command, given | {name: (one,) if several else one})
            assert fits or refused.startswith(said), (prog, name, value, refused)


def _refused(command: type, values: dict[str, Any]) -> str:
    """Why settings are refused, if they are."""
    try:
        compose(command, **values)
    except ConfigurationError as error:
        return str(error)
    return ""


_SIMULATE = ["simulate", "--model", "cifg_tiny", "--data", "nowhere", "--out", "nowhere"]
_PRETRAIN = ["pretrain", "--model", "cifg_tiny", "--data", "nowhere", "--out", "nowhere", "--steps", "1"]
_PRIVATE = ["--privacy", "gaussian", "--update-clip-norm", "1"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([*_SIMULATE, "--rounds", "1.5"], ["--rounds is '1.5', but must be a whole number"]),
        ([*_SIMULATE, "--update-clip-norm=-inf"], ["--update-clip-norm is -inf, but must be positive and finite"]),
        (
            [*_SIMULATE, *_PRIVATE, "--noise-multiplier", "-1", "--seed", "x"],
            [
                "--noise-multiplier is -1.0, but must be positive and finite",
                "--seed is 'x', but must be a whole number",
                "--cohort-sampler is uniform, for which there is no sound analysis",
            ],
        ),
        (
            [*_PRETRAIN, "--batch-size", "1", "--epsilon", "8", "--adam-epsilon", "nan"],
            ["--adam-epsilon is nan, but must be positive and finite"],
        ),
        (
            ["compare", "--models", "cifg_tiny", "--data", "nowhere", "--out", "nowhere", "--seeds", "3", "-1"],
            ["--seeds has -1, but each must lie between 0 and 4294967295"],
        ),
    ],
)
def test_numbers_are_refused_in_the_words_of_the_line_all_at_once(
    words: list[str], said: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert not out
    lines = err.removeprefix(f"fedlm {words[0]}: ").splitlines()
    assert len(lines) == len(said)
    for line, part in zip(lines, said, strict=True):
        assert line.startswith(part)


def test_several_mistakes_of_a_private_run_are_named_at_once() -> None:
    from fedlm import Experiment

    with pytest.raises(ConfigurationError) as raised:
        compose(Experiment, model="cifg_tiny", data=Path("nowhere"), privacy="blt", weighting="examples")
    for part in ("cohort_sampler is uniform", "privacy needs update_clip_norm", "weighting is examples", "exactly one"):
        assert part in str(raised.value)


def test_arguments_are_named_in_python() -> None:
    from fedlm import Experiment, FedProx, LocalAdam

    with pytest.raises(ConfigurationError, match=r"^server_epsilon is 0\.0, but must be positive and finite$"):
        compose(Experiment, model="cifg_tiny", data=Path("nowhere"), server_epsilon=0.0)
    with pytest.raises(ConfigurationError, match=r"^mu is nan, but must be at least 0 and finite$"):
        FedProx(mu=math.nan)
    with pytest.raises(ConfigurationError, match=r"^beta1 is 1\.0, but must be at least 0 and below 1$"):
        LocalAdam(beta1=1)
