"""A small text, and cells that run in this process, for tests of studies."""

import numpy as np

from fedlm.simulations.data.client_text import ClientText
from fedlm.simulations.data.importing import ImportSettings, import_text
from fedlm.simulations.data.sources.in_memory import InMemoryText


class InProcess:
    """Runs cells here, one after another."""

    def execute(self, cells, observe, total):
        for cell in cells:
            cell.run(lambda row, cell=cell: observe(cell, row))
        return {}


def import_small_text(path, clients):
    words = "the cat sat on a mat and dogs ran to it".split()
    rng = np.random.default_rng(0)
    texts = [ClientText(f"user {n}", [" ".join(rng.choice(words, 6)) for _ in range(12)]) for n in range(clients)]
    import_text("made up", InMemoryText(texts), path, ImportSettings(vocabulary_size=40), workers=1)
    return path
