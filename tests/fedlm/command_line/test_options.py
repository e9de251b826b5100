"""Where a command's options come from: the line, a TOML file, a preset, and the defaults of records within records."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import pytest
import tyro

from fedlm.command_line.options import read_options
from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.idle_settings import OnlyWith


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Settings that several commands share."""

    multiplier: float = 0.0
    """Standard deviation of the noise."""
    bands: int | None = None
    """Diagonals of the matrix."""

    def __post_init__(self) -> None:
        if self.multiplier < 0:
            raise ConfigurationError(f"multiplier is {self.multiplier}, but must not be negative")


@dataclass(frozen=True, kw_only=True)
class Travel:
    """Settings of which one follows from another that is not given."""

    scheme: str | None = None
    """How things travel."""
    bits: int | None = None
    """Bits a value, 8 where no scheme is given either."""

    def __post_init__(self) -> None:
        if self.scheme is None and self.bits is None:
            object.__setattr__(self, "bits", 8)


@dataclass(frozen=True, kw_only=True)
class Local:
    """A record that has a record of its own, and a field that must be given."""

    rate: float
    """Learning rate."""
    noise: Noise = field(default_factory=lambda: Noise(multiplier=2.0))
    """How much noise."""
    travel: Travel = field(default_factory=Travel)
    """How it travels."""


@dataclass(frozen=True, kw_only=True)
class Train:
    """Train something, with records whose options are flat."""

    model: str
    """Name of the model."""
    out: Path = Path("runs")
    """Folder."""
    seeds: tuple[int, ...] = (0, 1)
    """Root seeds."""
    sampler: Literal["uniform", "weighted"] = "uniform"
    """How clients are drawn."""
    limit: float | None = None
    """A bound."""
    rotate: bool = False
    """Rotate first."""
    local: Local
    """What clients do."""


PRESETS = {
    "small": {"model": "tiny", "rate": 0.1, "seeds": [7], "limit": 1.0},
    "large": {"model": "huge", "rate": 1.0, "rotate": True},
}


WITH_ADAM = {"optimizer": "adam", "floor": 2.0}


def read(*words, default=None):
    return read_options(Train, list(words), "train", presets=PRESETS, default_preset=default)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "run.toml"

    def write(text: str) -> str:
        path.write_text(text)
        return str(path)

    return write


def test_line_over_file_over_preset(file):
    path = file('rate = 0.2\nseeds = [3, 4]\nout = "elsewhere"\nbands = 5\n')
    found = read("--preset", "small", "--rate", "0.3", "--config", path, "--multiplier", "4")
    assert (found.model, found.limit) == ("tiny", 1.0), "from the preset"
    assert (found.seeds, found.out, found.local.noise.bands) == ((3, 4), Path("elsewhere"), 5), "from the file"
    assert found.local == Local(rate=0.3, noise=Noise(multiplier=4.0, bands=5))
    assert read("--preset=large", f"--config={path}", "--no-rotate", "--seeds", "9").seeds == (9,)
    assert not read("--preset=large", f"--config={path}", "--no-rotate").rotate
    assert read("--preset=large", f"--config={path}").rotate


@dataclass(frozen=True, kw_only=True)
class Optimize:
    """Optimize something, with a setting of one optimizer."""

    optimizer: Literal["plain", "adam"] = "plain"
    """Which."""
    floor: Annotated[float, OnlyWith("optimizer", "adam")] = 1.0
    """Added to a root."""


def test_what_a_choice_that_wins_makes_idle_goes_back_to_its_default(file):
    def optimize(*words, preset=None):
        return read_options(Optimize, [*words], "optimize", presets={"adam": WITH_ADAM}, default_preset=preset)

    path = file('optimizer = "adam"\nfloor = 2.0\n')
    assert optimize("--config", path).floor == optimize(preset="adam").floor == 2.0
    plain = [optimize("--config", path, "--optimizer", "plain"), optimize("--optimizer", "plain", preset="adam")]
    assert [*plain, optimize("--config", file('optimizer = "plain"'), preset="adam")] == [Optimize()] * 3
    with pytest.raises(ConfigurationError, match=r"floor is 3\.0, which does nothing"):
        optimize("--optimizer", "plain", "--floor", "3", preset="adam")
    with pytest.raises(ConfigurationError, match=r"floor is 2\.0, which does nothing"):
        optimize("--config", file("floor = 2.0"))


def test_a_record_within_keeps_its_own_defaults_and_what_it_derives_is_none():
    given = ["--model", "m", "--rate", "1"]
    assert read(*given).local == Local(rate=1, noise=Noise(multiplier=2.0), travel=Travel(bits=8))
    assert read(*given, "--scheme", "factors").local.travel == Travel(scheme="factors")


def test_the_last_preset_counts_and_a_command_may_have_a_default(file):
    assert read("--preset", "small", "--preset", "large").model == "huge"
    assert read(default="large").model == "huge"
    assert read("--preset", "small", default="large").model == "tiny"
    assert read("--config", file('preset = "small"'), default="large").model == "tiny"
    assert read("--config", file('preset = "small"'), "--preset", "large").model == "huge"


@pytest.mark.parametrize("columns", ["20", "200"])
def test_what_nobody_gives_is_named_in_a_line(file, columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    for text, missing in (("", "--model and --rate"), ("rate = 1.0", "--model"), ('model = "m"', "--rate")):
        with pytest.raises(ConfigurationError, match=f"^give {missing}; --help explains the options$"):
            read("--config", file(text))


@pytest.mark.parametrize(
    ("words", "said"), [(["--model"], "'--model'"), (["--model", "m", "--sampler", "best"], "'best'"), (["x"], ": x")]
)
def test_what_does_not_fit_is_said_in_a_line(words, said):
    with pytest.raises(ConfigurationError, match=r"; --help explains the options$") as stop:
        read(*words, "--preset", "small")
    assert said in str(stop.value)
    assert not set(str(stop.value)) & set("╭│╯\n")


def test_help_shows_what_file_and_preset_set(file, capsys):
    with pytest.raises(SystemExit) as stop:
        read("--help", "--preset", "small", "--config", file("seeds = [11, 12]"))
    assert stop.value.code == 0
    shown = capsys.readouterr().out
    for value in ("(default: tiny)", "(default: 11 12)", "(default: 0.1)", "(default: runs)"):
        assert value in shown
    assert "(required)" not in shown


def test_essentials_are_explained_and_the_others_named(capsys):
    def explained(*words):
        with pytest.raises(SystemExit):
            read_options(Train, list(words), "train", presets=PRESETS, essentials=("model", "rate"))
        return capsys.readouterr().out

    brief, whole = explained("--help", "--preset", "small"), explained("--help-all")
    assert "Name of the model. (default: tiny)" in brief
    assert "also --multiplier --bands" in brief
    assert "Diagonals of the matrix." not in brief
    assert "Diagonals of the matrix." in whole
    assert "also" not in whole


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("rate = 2", 2.0),
        ("limit = 'None'", None),
        ("limit = 1" + 400 * "0", float("inf")),
        ("seeds = []", ()),
        ("seeds = 5", (5,)),
        ("sampler = 'weighted'", "weighted"),
        ("rotate = true", True),
        ("out = 'a/b'", Path("a/b")),
    ],
)
def test_a_file_holds_what_the_line_would(line, expected, file):
    found = read("--config", file(line), "--preset", "large" if "rotate" not in line else "small")
    name = line.partition(" ")[0]
    value = next(getattr(part, name) for part in (found, found.local, found.local.noise) if hasattr(part, name))
    assert value == expected
    assert type(value) is type(expected)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("rate = [0.1]", r"rate is \[0.1\], but must be a number"),
        ("rate = true", "rate is True, but must be a number"),
        ("bands = true", "bands is True, but must be a whole number"),
        ("bands = 2.0", "bands is 2.0, but must be a whole number"),
        ("bands = 'none'", "bands is 'none', but must be a whole number"),
        ("limit = 1979-05-27", "limit is .*, but must be a number"),
        ("seeds = [1, 'two']", r"seeds is \[1, 'two'\], but each must be a whole number"),
        ("seeds = [1, false]", "each must be a whole number"),
        ("rotate = 1", "rotate is 1, but must be true or false"),
        ("model = 3", "model is 3, but must be a string"),
        ("out = ['a']", r"out is \['a'\], but must be a string"),
        ("sampler = 'all'", "sampler is 'all', but must be one of uniform, weighted"),
        ("[local]\nrate = 0.1", "sets local, which is no option of this command; settings are in no table"),
        ("bnads = 1", r"sets bnads, which is no option of this command; did you mean 'bands'\?"),
        (
            "lokal = 1\nraet = 2",
            r"sets lokal, raet, which is no option of this command; did you mean 'rate' by 'raet'\?",
        ),
        ("rate = ", "not a TOML file"),
    ],
)
def test_what_does_not_fit_is_named_with_its_file(line, message, file):
    with pytest.raises(ConfigurationError, match=rf"run\.toml: .*{message}"):
        read("--config", file(line), "--preset", "small")


def test_a_record_is_checked_when_it_is_whole(file):
    with pytest.raises(ConfigurationError, match="multiplier is -1"):
        read("--config", file("multiplier = -1"), "--preset", "small")
    assert (
        read("--config", file("multiplier = -1"), "--preset", "small", "--multiplier", "1").local.noise.multiplier == 1
    )


@dataclass(frozen=True, kw_only=True)
class Upload:
    """Upload something."""

    run: Annotated[Path, tyro.conf.Positional]
    """Folder of the run."""
    bits: Literal[2, 8] | None = None
    """Bits a value."""
    rate: float = 1
    """Learning rate."""


@pytest.mark.filterwarnings("error")
def test_a_choice_of_numbers_is_read_as_numbers_everywhere(file):
    presets = {"coarse": {"bits": 2}}

    def bits(*words):
        return read_options(Upload, ["runs", *words], "upload", presets=presets).bits

    assert bits() is None
    for given in (("--bits", "8"), ("--config", file("bits = 8")), ("--bits", "8", "--preset", "coarse")):
        assert type(found := bits(*given)) is int
        assert found == 8
    assert bits("--preset", "coarse") == 2
    assert bits("--bits", "None", "--preset", "coarse") is None
    expected = "bits is '3', but must be one of 2, 8\nrate is 'fast', but must be a number"
    with pytest.raises(ConfigurationError, match=expected):
        bits("--bits", "3", "--rate", "fast")


def test_what_is_given_without_a_name_is_no_option():
    with pytest.raises(ConfigurationError, match="--run is no option: RUN is given without a name; leave --run out"):
        read_options(Upload, ["--run=a"], "upload")


@pytest.mark.parametrize("preset", ["3", "['small']", "'tiny'", None])
def test_an_unknown_preset_is_named(preset, file):
    words = ["--preset", "tiny"] if preset is None else ["--config", file(f"preset = {preset}")]
    with pytest.raises(ConfigurationError, match=r"unknown preset .*; choose from small, large"):
        read(*words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--bnads", "3"], r"there is no option --bnads; did you mean --bands\?"),
        (["--no-rotat"], r"--no-rotat; did you mean --rotate\?"),
        (["-s", "3"], r"there is no option -s; did you mean --seeds or --sampler or --scheme\?"),
        (["\N{EN DASH}model", "m"], r"did you mean --model\?"),
        (["--xyz"], "there is no option --xyz; --help-all lists all options"),
        (["--bnads", "3", "--raet", "2"], r"--bnads, --raet; did you mean --bands by --bnads\? did you mean --rate by"),
    ],
)
def test_an_unknown_option_is_named_with_what_may_be_meant(words, message):
    with pytest.raises(ConfigurationError, match=message):
        read("--model", "m", "--rate", "1", *words)


def test_what_only_looks_like_an_option_is_read():
    found = read("--model", "m", "--rate", "-1e3", "--limit", "-inf", "--no_rotate", "--bands", "-3", "--out", "-")
    assert (found.local.rate, found.limit, found.local.noise.bands) == (-1000, float("-inf"), -3)
    assert found.out == Path("-")


def test_a_flag_without_its_value_is_refused():
    for flag in ("--config", "--preset"):
        with pytest.raises(ConfigurationError, match=f"{flag} needs a value"):
            read("--model", "m", flag)


@pytest.mark.parametrize("content", [None, b"\xff\xfe", b"bands = 1" + 5000 * b"0", b"seeds = " + 5000 * b"["])
def test_a_file_that_cannot_be_read_is_named(content, tmp_path):
    path = tmp_path / "run.toml"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"run\.toml: (cannot be read|not a TOML file|is in UTF-16)"):
        read("--config", str(path))
    with pytest.raises(ConfigurationError, match=r"nowhere\.toml: cannot be read"):
        read("--config", str(tmp_path / "nowhere.toml"))
