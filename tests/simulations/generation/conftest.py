"""Settings of this folder's tests."""

import pytest


@pytest.fixture(autouse=True)
def settings(quick_compilation, full_precision_products):
    """See tests/conftest.py."""
