import pytest

from fedlm.simulations.comparisons.workers import accelerator_of


@pytest.mark.parametrize(
    ("visible", "gpus", "workers", "seen"),
    [
        (None, 4, 4, ["0", "1", "2", "3"]),
        (None, 2, 3, ["0", "1", "0"]),
        ("5,7", 8, 3, ["5", "7", "5"]),
        ("GPU-8932f937", 8, 2, ["GPU-8932f937"] * 2),
        (None, 0, 2, ["0", "1"]),
        ("", 4, 2, [None, None]),
    ],
)
def test_each_worker_sees_one_of_the_gpus_that_there_are(visible, gpus, workers, seen):
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    found = [accelerator_of(number, workers, environment, gpus) for number in range(workers)]
    assert [one.get("CUDA_VISIBLE_DEVICES") for one in found] == seen


def test_workers_on_one_gpu_share_its_memory_as_a_user_says():
    assert accelerator_of(4, 6, {}, 2)["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.300"
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION" not in accelerator_of(1, 2, {}, 2)
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION" not in accelerator_of(1, 2, {"CUDA_VISIBLE_DEVICES": ""}, 1)
    for said in ("XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_PREALLOCATE"):
        assert accelerator_of(1, 2, {said: "0.1"}, 1) == {"CUDA_VISIBLE_DEVICES": "0"}
