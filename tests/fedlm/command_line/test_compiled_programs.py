import os
import time
import zlib

import jax
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

from fedlm.command_line import compiled_programs
from fedlm.command_line.compiled_programs import keep_compiled_programs
from fedlm.fl_core.composed_settings import compose
from fedlm.simulations.data.client_text import ClientText
from fedlm.simulations.data.importing import ImportSettings, import_text
from fedlm.simulations.data.sources.in_memory import InMemoryText
from fedlm.simulations.experiments.configuration import Experiment
from fedlm.simulations.experiments.experiment import run_experiment
from tests.conftest import WORDS, texts_of_sixty_clients

FOLDER, LEAST_SECONDS = "JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A user's cache folder, and no variable of JAX's."""
    for name in [name for name in os.environ if name.startswith("JAX_") and "CACHE" in name]:
        monkeypatch.delenv(name)
    # What a test's code sets is taken back, too.
    for name in (FOLDER, LEAST_SECONDS):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def kept_in():
    keep_compiled_programs()
    return os.environ.get(FOLDER)


def make_entry(folder, name, size, seconds_ago, content=None):
    path = folder / f"jit_{name}-cache"
    path.write_bytes(zlib.compress(b"x") if content is None else content)
    os.truncate(path, size)
    when = time.time() - seconds_ago
    os.utime(path, (when, when))
    return path


def test_programs_are_kept_below_the_users_cache_folder(home, monkeypatch):
    folder = kept_in()
    assert folder.startswith(f"{home}/fedlm/compiled/")
    assert os.stat(folder).st_mode & 0o077 == 0
    assert os.environ[LEAST_SECONDS] == "0"
    monkeypatch.delenv(FOLDER)
    monkeypatch.setenv("HOME", str(home / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    folder = kept_in()
    assert folder.startswith(f"{home}/home/.cache/fedlm/compiled/")
    # Each kind of processor has its own.
    monkeypatch.delenv(FOLDER)
    monkeypatch.setattr(compiled_programs.platform, "machine", lambda: "other")
    assert kept_in() not in (None, folder)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (FOLDER, "elsewhere"),
        (FOLDER, ""),
        ("JAX_COMPILATION_CACHE_MAX_SIZE", "1000"),
        ("JAX_ENABLE_COMPILATION_CACHE", "False"),
    ],
)
def test_the_variables_of_jax_win(home, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    assert kept_in() == (value if name == FOLDER else None)
    assert LEAST_SECONDS not in os.environ
    assert not (home / "fedlm").exists()


def test_a_folder_that_cannot_be_made_or_that_others_write_to_or_of_a_full_disk_is_not_used(home, monkeypatch):
    folder = kept_in()
    monkeypatch.delenv(FOLDER)
    os.chmod(folder, 0o770)
    assert kept_in() is None
    os.chmod(folder, 0o700)
    with monkeypatch.context() as patch:
        patch.setattr(compiled_programs, "LEAST_FREE", 2**70)
        assert kept_in() is None
    monkeypatch.setattr(os, "getuid", lambda: os.stat(folder).st_uid + 1)
    assert kept_in() is None
    (home / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "file"))
    assert kept_in() is None


def test_programs_that_were_used_the_longest_ago_go_first(home, monkeypatch):
    monkeypatch.setattr(compiled_programs, "MOST_BYTES", 250)
    folder = home / os.path.relpath(kept_in(), home)
    # Looked at before: what they hold does not matter any more.
    entries = [make_entry(folder, age, 100, 1000 * age, b"y") for age in (3, 1, 2, 4)]
    used = make_entry(folder, "used", 100, 9000, b"y")
    os.utime(used, (time.time() - 500, time.time() - 9000))
    monkeypatch.delenv(FOLDER)
    kept_in()
    assert {path.name for path in folder.iterdir()} == {entries[1].name, used.name, "looked-at"}


def test_a_program_that_was_not_written_to_its_end_goes(home, monkeypatch):
    folder = home / os.path.relpath(kept_in(), home)
    os.utime(folder / "looked-at", (0, 0))
    whole = zlib.compress(os.urandom(1000))
    good = make_entry(folder, "good", len(whole), 100, whole)
    part = make_entry(folder, "part", len(whole) // 2, 100, whole)
    empty = make_entry(folder, "empty", 0, 100)
    being_written = make_entry(folder, "now", len(whole) // 2, 0, whole)
    monkeypatch.delenv(FOLDER)
    kept_in()
    assert (good.exists(), part.exists(), empty.exists(), being_written.exists()) == (True, False, False, True)


@pytest.fixture
def jax_cache(tmp_path):
    """An empty folder in which JAX keeps this process's programs for now."""
    folder, before = tmp_path / "programs", jax.config.jax_compilation_cache_dir
    least = jax.config.jax_persistent_cache_min_compile_time_secs
    try:
        compilation_cache.set_cache_dir(str(folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        compilation_cache.reset_cache()
        yield folder
    finally:
        compilation_cache.set_cache_dir(before)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", least)
        compilation_cache.reset_cache()


def test_a_program_that_holds_an_array_has_a_name_of_its_own(jax_cache):
    for count, secret in enumerate([1.0, 2.0, 2.0], 1):
        held = np.full(3, secret)
        jax.jit(lambda x, held=held: x + held)(1.0)
        assert len(list(jax_cache.glob("jit__lambda*"))) == min(count, 2)


@pytest.mark.long
def test_programs_hold_no_texts_and_no_noise_and_change_no_bit(jax_cache, tmp_path):
    """A program's name is a digest of all that is in it: where other texts, secrets and noise make no other program,
    none of these is in one."""
    other_word = dict(zip(WORDS, reversed(WORDS), strict=True))
    texts = texts_of_sixty_clients()
    for name, word in (("one", lambda word: word), ("other", other_word.__getitem__)):
        clients = [
            ClientText(client, [" ".join(map(word, text.split())) for text in those]) for client, those in texts.items()
        ]
        settings = ImportSettings(vocabulary_size=60)
        import_text("made up", InMemoryText(clients), tmp_path / name, settings, workers=1)

    def run(name, **changes):
        jax.clear_caches()
        settings = {"model": "cifg_tiny", "data": tmp_path / name, "rounds": 1, "cohort_size": 5, "length": 6}
        settings |= {"client_batch_size": 2, "lanes_per_device": 1, "heldout_examples": 10, "test_examples": 10}
        settings |= {"privacy": "tree", "cohort_sampler": "min_separation", "min_separation": 2}
        settings |= {"max_participations": 1, "update_clip_norm": 0.1, "noise_multiplier": 1.0}
        out = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
        summary = run_experiment(compose(Experiment, **settings | changes), out)
        return summary["parameters_sha256"], {path.name for path in jax_cache.iterdir()}

    compiled, programs = run("one", noise_seed="experiment")
    loaded, same_programs = run("one", noise_seed="experiment")
    assert len(programs) > 10
    assert (loaded, same_programs) == (compiled, programs)
    other, programs_of_others = run("other", seed=3)
    assert other != compiled
    assert programs_of_others == programs
