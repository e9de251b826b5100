"""What an export is: a form that another program reads, written client by client from a token store."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar, Protocol

from fedlm.fl_core.rounds.client_examples import ClientExamples
from fedlm.simulations.data.store.token_store import TokenStore

PIECE_EXAMPLES = 1 << 12
"""So many examples of a client are written at once, so that one with millions takes no more memory."""

Advance = Callable[[int], None]
"""Called with the number of examples just written."""


class Export(Protocol):
    """A form in which a token store is written; its docstring's first line is its description.

    A new export is one module with such a class, and one line in `fedlm.simulations.data.exports.registry`.
    """

    endings: ClassVar[tuple[str, ...]]
    """How the names of the files in its folder end; none where the export is one file."""

    def check(self, store: TokenStore) -> None:
        """Raise DataError for a store that the other program cannot read."""
        ...

    def write(self, store: TokenStore, path: Path, advance: Advance) -> None:
        """Write all clients of a store, with the memory of a few, to a file or folder that nobody sees before it is
        whole.

        Raises OSError where the disk refuses, DataError where the store is damaged.
        """
        ...

    def reading_lines(self, store: TokenStore, path: Path) -> list[str]:
        """Return three lines of Python that read the export of a store at `path`."""
        ...


def stored_clients(store: TokenStore, split: str) -> Iterator[tuple[str, ClientExamples]]:
    """Yield (id, examples) of the clients of a split in the store's order."""
    clients = store.split(split)
    for index in range(clients.num_clients):
        yield clients.client_id(index), clients.client(index)


def pieces(examples: ClientExamples) -> Iterator[ClientExamples]:
    """Yield a client's examples, in order, a bounded number at a time."""
    for first in range(0, examples.num_examples, PIECE_EXAMPLES):
        offsets = examples.stored_offsets[first : first + PIECE_EXAMPLES + 1]
        begin, end = offsets[[0, -1]] - examples.stored_offsets[0]
        yield ClientExamples(examples.values[begin:end], offsets)


def example_texts(store: TokenStore, examples: ClientExamples) -> list[str]:
    """Return the text of each example, as the store's tokenizer decodes it."""
    return [store.tokenizer.decode(examples.example(index).tolist()) for index in range(examples.num_examples)]
