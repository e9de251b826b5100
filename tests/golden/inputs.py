"""The files that cases begin with: made-up text of 24 people, what they watched, and tables of the samplers."""

import csv
import json
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

_WORDS = (
    "the a red blue cat dog sees likes big small house tree runs sleeps near under bird fish sings warm cold day night"
).split()
_ITEMS = [f"film {letter}" for letter in "abcdefghijkl"]
USERS = [f"user{number:02d}" for number in range(24)]
_OWN_PARTS = """\
from dataclasses import dataclass

import fedlm
import jax
import numpy as np
import optax

draw = np.random.default_rng(0)
clients = {f"client {n}": draw.integers(4, 32, (6, 9)) for n in range(40)}


def bigrams(vocabulary_size):
    def init(key):
        return {"in": jax.random.normal(key, (vocabulary_size, 8)), "out": jax.numpy.zeros((8, vocabulary_size))}

    return fedlm.language_model("bigrams", vocabulary_size, init, lambda params, x: params["in"][x] @ params["out"])


@dataclass(frozen=True)
class Pulled(fedlm.ClientAlgorithm):
    def step(self, server, local, gradient, learning_rate):
        move = lambda w, g, start: w - learning_rate * (g + 0.1 * (w - start))
        return local._replace(params=jax.tree.map(move, local.params, gradient.clipped(), server.params))


run = fedlm.simulate(
    model=bigrams,
    data=fedlm.DataInMemory.from_rows(clients, 32),
    client_algorithm=Pulled(),
    server_optimizer=optax.chain(optax.clip_by_global_norm(1.0), optax.adam(0.05)),
    rounds=3,
    cohort_size=5,
    evaluate_every=1,
)
for row in run.rows:
    print({name: value for name, value in row.items() if "seconds" not in name})
print(run.privacy, {name: value for name, value in run.summary.items() if name.startswith("test")})
np.savez("parameters.npz", **run.params)
"""
_SMALL_LIBRARY = """\
import runpy
import sysconfig

paths = sysconfig.get_paths()  # the whole standard library takes half a minute
sysconfig.get_paths = lambda: {**paths, "stdlib": "../inputs/library"}
runpy.run_module("fedlm", run_name="__main__", alter_sys=True)
"""


def write_inputs(folder: Path) -> None:
    """Write them all; the same bytes each time."""
    folder.mkdir(parents=True)
    draw = random.Random(0)
    rows = [
        {
            "user": draw.choice(USERS),
            "text": " ".join(draw.choices(_WORDS, k=draw.randrange(3, 12))) + ".",
            "time": time,
        }
        for time in range(200)
    ]
    _lines(folder / "messages.jsonl", rows)
    for name, part in (("ann", rows[:12]), ("ben", rows[12:30]), ("cleo", rows[30:36])):
        _lines(folder / f"{name}.jsonl", [{"text": row["text"]} for row in part])
    _lines(
        folder / "cards.jsonl",
        [{"user": row["user"], "ask": f"{row['text'][:9]} ", "say": row["text"]} for row in rows],
    )
    (folder / "books").mkdir()
    (folder / "books" / "one.txt").write_text("\n\n".join(row["text"] for row in rows[:60]))
    (folder / "play.txt").write_text("\n\n".join(f"{row['user'].upper()}.\n{row['text']}" for row in rows[:60]))
    _table(folder / "messages.csv", ["user", "text"], [(row["user"], row["text"]) for row in rows])
    pq.write_table(pa.Table.from_pylist(rows), folder / "messages.parquet")
    watched = [(user, draw.choice(_ITEMS), time) for time, user in enumerate(draw.choices(USERS, k=240))]
    _table(folder / "films.csv", ["user", "item", "time"], watched)
    for kind, owner, text in (("Posts", "OwnerUserId", "Body"), ("Comments", "UserId", "Text")):
        entries = (
            f'<row Id="{row["time"]}" PostTypeId="1" {owner}="{row["user"][4:]}" {text}="{row["text"]}" />'
            for row in rows
        )
        (folder / f"site.{kind}.xml").write_text("\n".join([f"<{kind.lower()}>", *entries, f"</{kind.lower()}>", ""]))
    _saved_by_hugging_face(
        folder / "saved", pa.table({"user": [row["user"] for row in rows], "text": [row["text"] for row in rows]})
    )
    (folder / "own_parts.py").write_text(_OWN_PARTS)
    (folder / "small_library.py").write_text(_SMALL_LIBRARY)
    (folder / "library").mkdir()
    for user in USERS:
        texts = [f"It says that {row['text']}" for row in rows if row["user"] == user]
        (folder / "library" / f"{user}.py").write_text('"""' + "\n\n".join(texts) + '\n"""\n')
    (folder / "typing_error.toml").write_text("rouns = 3\n")
    _plan_key(folder)


def _saved_by_hugging_face(folder: Path, table: pa.Table) -> None:
    """As its library `datasets` saves a data set."""
    folder.mkdir()
    with (
        pa.OSFile(str(folder / "data-00000-of-00001.arrow"), "wb") as file,
        pa.ipc.new_stream(file, table.schema) as writer,
    ):
        writer.write_table(table)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}))
    (folder / "dataset_info.json").write_text(json.dumps({"features": {}}))


def _plan_key(folder: Path) -> None:
    """A key for plans that is always the same, and signs nothing that anybody runs."""
    key = Ed25519PrivateKey.from_private_bytes(bytes(32))
    private = (Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / "plan.key").write_bytes(key.private_bytes(*private))
    (folder / "plan.key").chmod(0o600)
    (folder / "plan.pub").write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))


def _lines(path: Path, rows: list[dict[str, object]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _table(path: Path, header: list[str], rows: list[tuple[object, ...]]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
