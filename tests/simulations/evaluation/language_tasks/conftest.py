"""Settings of this folder's tests, most of which need lm-evaluation-harness."""

import importlib.util

import pytest


@pytest.fixture(autouse=True)
def settings(full_precision_products):
    """See tests/conftest.py."""


@pytest.fixture(scope="session")
def harness(tmp_path_factory):
    """The library, which downloads nothing and keeps what it makes of data in a folder of the tests."""
    if importlib.util.find_spec("lm_eval") is None:
        pytest.skip("lm-evaluation-harness is not installed; pip install -c constraints.txt -e '.[evaluation]'")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HOME", str(tmp_path_factory.mktemp("hugging_face")))
        for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
            patch.setenv(name, "1")
        yield
