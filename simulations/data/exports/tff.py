"""Export to TensorFlow Federated."""

from pathlib import Path
from typing import ClassVar

from fedlm.fl_core.errors import DataError, setting
from fedlm.fl_core.rounds.client_examples import ClientExamples
from fedlm.simulations.data.exports.base import (
    Advance,
    example_texts,
    pieces,
    stored_clients,
)
from fedlm.simulations.data.exports.sqlite import new_database
from fedlm.simulations.data.formats.tensorflow_federated import create_indexes, create_tables, make_example
from fedlm.simulations.data.splits import SPLITS
from fedlm.simulations.data.store.token_store import TokenStore


class TffExport:
    """TensorFlow Federated: one SQLite file with all splits, one example a row."""

    endings: ClassVar[tuple[str, ...]] = ()

    def check(self, store: TokenStore) -> None:
        for split in SPLITS:
            for client_id in store.split(split).client_ids:
                # TensorFlow Federated pastes ids between apostrophes into its queries, without doubling theirs.
                if "'" in client_id or "\0" in client_id:
                    raise DataError(
                        f"{store.path}: found the client id {client_id!r}, but TensorFlow Federated cannot read a "
                        "client whose id has an apostrophe or a zero byte. Import the data again with other user "
                        f"names, or choose another {setting('format')}."
                    )

    def write(self, store: TokenStore, path: Path, advance: Advance) -> None:
        with new_database(path) as connection:
            create_tables(connection)
            for split in SPLITS:
                for client_id, examples in stored_clients(store, split):
                    for piece in pieces(examples):
                        rows = ((split, client_id, example) for example in _serialized(store, piece))
                        connection.executemany("INSERT INTO examples VALUES (?, ?, ?)", rows)
                        advance(piece.num_examples)
                    connection.execute(
                        "INSERT INTO client_metadata VALUES (?, ?, ?)", (client_id, split, examples.num_examples)
                    )
            create_indexes(connection)

    def reading_lines(self, store: TokenStore, path: Path) -> list[str]:
        return [
            "import tensorflow as tf, tensorflow_federated as tff",
            'spec = {"tokens": tf.TensorSpec([], tf.string)}',
            f'train = tff.simulation.datasets.load_and_parse_sql_client_data({str(path)!r}, spec, "train")',
        ]


def _serialized(store: TokenStore, examples: ClientExamples) -> list[bytes]:
    return [make_example({"tokens": [text.encode()]}) for text in example_texts(store, examples)]
