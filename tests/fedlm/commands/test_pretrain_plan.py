import pytest


@pytest.fixture(scope="module")
def options(small_store):
    sizes = {"model": "cifg_tiny", "data": small_store, "steps": 2, "batch-size": 20, "length": 8}
    return ["pretrain", *(f"--{name}={value}" for name, value in sizes.items())]


@pytest.mark.long
def test_a_plan_says_what_a_run_needs_and_makes_nothing(fedlm_here, options, tmp_path):
    out = tmp_path / "run"
    words = [*options, "--noise-multiplier=1", "--microbatch-size=2", "--sharding=full", f"--out={out}"]
    done = fedlm_here(*words, "--plan-devices", 1, 4)
    assert done.returncode == 0, done.stderr
    assert not out.exists()
    assert "one of 1 devices" in done.stdout
    assert "which sends 0 B in a step" in done.stdout
    (_, of_four) = done.stdout.split("one of 4 devices")
    assert all(phase in of_four for phase in ("chunk", "noise", "release", "update"))
    assert "microbatches of 2 x 8 tokens on each device, 3 in a batch of 20" in of_four
    assert "which sends 0 B" not in of_four


def test_no_devices_cannot_be_planned_for(fedlm_here, options, tmp_path):
    done = fedlm_here(*options, "--privacy=none", f"--out={tmp_path / 'run'}", "--plan-devices", 0)
    assert done.returncode != 0
    assert "--plan-devices has 0, but each must be at least 1" in done.stderr
