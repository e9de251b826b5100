"""Data that experiments of a program of one's own are tried on."""

import pytest

import fedlm
from tests.conftest import texts_of_sixty_clients


@pytest.fixture(scope="module")
def texts():
    return texts_of_sixty_clients()


@pytest.fixture(scope="module")
def data(texts):
    return fedlm.DataInMemory.from_texts(texts, vocabulary_size=80)
