"""Settings of this folder's tests."""

import pytest


@pytest.fixture(autouse=True)
def settings(full_precision_products):
    """See tests/conftest.py."""
