"""A mistake of who types a command is one clear message and status 2, and nothing is written."""

import pytest

from tests.support.untrained import untrained_run

COMMANDS = {
    "simulate": "--model cifg_tiny --rounds 8 --cohort-size 6 --length 8 --devices 1 --data STORE --out OUT",
    "pretrain": "--model cifg_tiny --steps 6 --batch-size 8 --length 8 --noise-multiplier 1.5 --noise-seed experiment "
    "--devices 1 --data STORE --out OUT",
    "compare": "--models cifg_tiny si_cifg_tiny --rounds 3 --cohort-size 4 --length 8 --client-learning-rates 0.5 "
    "--seeds 1 --data STORE --out OUT",
    "evaluate": "RUN --devices 1",
    "generate": "RUN",
    "laws run": "--models transformer_1x32 --learning-rates 0.01 --noise-batch-ratios 0 --batch-sizes 4 --steps 40 "
    "--seeds 0 --length 8 --warmup-steps 1 --block-steps 2 --microbatch-size 4 --data STORE --out OUT",
}
WITHOUT_NOISE = "--noise-multiplier None"
MISTAKES = {
    "simulate": {
        "--model cifg_tinny": "did you mean cifg_tiny",
        "--cohort-size 100000": "--cohort-size is 100000",
        "--upload-bits 3": "upload-bits",
        "--server-momentum 0.5": "--server-momentum is 0.5, which does nothing with --server-optimizer fedadam; give "
        "--server-optimizer fedavgm, or leave --server-momentum out",
        "--data /nowhere": "/nowhere",
        "--config /nowhere.toml": "/nowhere.toml",
    },
    "pretrain": {
        WITHOUT_NOISE: "exactly one of --epsilon, --noise-multiplier and --noise-batch-ratio, not none; or "
        "--privacy none",
        "--schedule exponential": "needs a --final-learning-rate above 0",
        "--final-learning-rate 1e-4": "does nothing with the schedule constant",
        "--privacy none": "--noise-multiplier is 1.5, which does nothing with --privacy none",
        "--batch-size 1000000": "units",
        "--bands 2": "--bands is 2, which does nothing with --mechanism gaussian; give --mechanism banded, or leave",
        "--mechanism banded": "can only be chosen for an epsilon",
        "--mechanism banded --bands 7": "between 1 and 6",
        "--mechanism banded --bands 2 --sampling truncated_poisson": "give the adjacency zero_out",
        f"--mechanism banded --privacy none {WITHOUT_NOISE}": "is banded, which does nothing with --privacy none",
        "--truncated-batch-size 20": "does nothing with --sampling poisson",
        "--weight-decay 0.5": "does nothing with --optimizer adam; give --optimizer adamw",
        "--warmup-steps 6": "--warmup-steps is 6",
        "--model bert_tiny --length 600": "length 600",
        "--sequences-per-unit 3": "--sequences-per-unit",
    },
    "compare": {
        "--models cifg_tiny nothing": "unknown model 'nothing'",
        "--seeds 1 1": "seeds is (1, 1)",
        "--cohort-size 5000": "--cohort-size is 5000",
        "--epsilons 30": "--epsilons is (30.0,), but --privacy is none; give --privacy or --mechanisms",
        "--slurm-tasks 3": "--slurm-tasks does nothing with executor local; leave it out",
        "--slurm-options partition=gpu": "--slurm-options does nothing with executor local",
        "--share 3/2": "--share is '3/2', but must be K/N with K between 1 and N, such as 1/10",
        "--share 1/2 --executor slurm": "--share is 1/2, but --executor is slurm; a share runs local",
        "--cores 100000": "--cores is 100000, but ",
    },
    "evaluate": {
        "--client-learning-rate 0.1": "does nothing without --personalize; give that too, or leave",
        "--data /nowhere": "/nowhere",
        "--split validation": "split",
    },
    "generate": {
        "": "there is no prompt; give --prompt TEXT",
        "--prompt a --top-k 3": "--top-k is 3, which does nothing without --temperature",
        "--prompt a --max-tokens 2147483648": "--max-tokens is 2147483648, but must be at most",
        "--prompt a --prompt b\udcff": r"prompt 2 has '\udcff' as its character 2, which is not Unicode",
        "--prompts nothing.txt": "nothing.txt: cannot be read",
    },
    "laws run": {
        "--models transformer_1x33": "width is 33, but must be a multiple of 32",
        "--models bert_tiny --length 513": "bert_tiny cannot be used with length 513",
        "--steps 41": "--steps has 41, but must have multiples of --block-steps, 2",
    },
}


@pytest.fixture(scope="module")
def run(small_store, tmp_path_factory):
    return untrained_run(tmp_path_factory.mktemp("run") / "run", model="cifg_tiny", data=small_store, length=8)


@pytest.mark.parametrize(
    ("command", "more", "message"),
    [(command, more, said) for command, mistakes in MISTAKES.items() for more, said in mistakes.items()],
)
def test_a_mistake_is_one_clear_message_and_status_2(run, small_store, tmp_path, fedlm_here, command, more, message):
    places = {"STORE": small_store, "OUT": tmp_path / "out", "RUN": run}
    words = [places.get(word, word) for word in f"{command} {COMMANDS[command]} {more}".split(" ") if word]
    result = fedlm_here(*words)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "out" / "summary.json").exists()
