"""Export to FedJAX."""

from pathlib import Path
from typing import ClassVar

from fedlm.fl_core.rounds.client_examples import ClientExamples
from fedlm.simulations.data.exports.base import (
    Advance,
    example_texts,
    stored_clients,
)
from fedlm.simulations.data.exports.sqlite import new_database
from fedlm.simulations.data.formats.fedjax import create_table, pack_client
from fedlm.simulations.data.splits import SPLITS
from fedlm.simulations.data.store.token_store import TokenStore

_ENDINGS = {"train": "_train.sqlite", "heldout": "_held_out.sqlite", "test": "_test.sqlite"}


class FedJaxExport:
    """FedJAX: a folder with an SQLite file for each split, one client a row."""

    endings: ClassVar[tuple[str, ...]] = tuple(_ENDINGS.values())

    def check(self, store: TokenStore) -> None:
        pass

    def write(self, store: TokenStore, path: Path, advance: Advance) -> None:
        path.mkdir()
        for split in SPLITS:
            with new_database(path / _file_name(store, split)) as connection:
                create_table(connection)
                for client_id, examples in stored_clients(store, split):
                    row = (client_id.encode(), _packed(store, examples), examples.num_examples)
                    connection.execute("INSERT INTO federated_data VALUES (?, ?, ?)", row)
                    advance(examples.num_examples)

    def reading_lines(self, store: TokenStore, path: Path) -> list[str]:
        return [
            "import fedjax",
            f"train = fedjax.SQLiteFederatedData.new({str(path / _file_name(store, 'train'))!r})",
            "client_id, client = next(train.clients())",
        ]


def _file_name(store: TokenStore, split: str) -> str:
    return store.path.resolve().name + _ENDINGS[split]


def _packed(store: TokenStore, examples: ClientExamples) -> bytes:
    return pack_client({"tokens": [text.encode() for text in example_texts(store, examples)]})
