"""Which split a client belongs to: a pure function of the client and a seed."""

import hashlib

SPLITS = ("train", "heldout", "test")


def split_of(client_id: str, seed: int = 0) -> str:
    """Return the client's split: train with probability 80 %, heldout 10 %, test 10 %.

    A client keeps its split whatever other clients there are, on every machine and in every release.

    Args:
      client_id: any string.
      seed: another seed gives another, independent split.
    """
    digest = hashlib.sha256(f"{seed}:{client_id}".encode("utf-8", "surrogatepass")).digest()
    tenth = int.from_bytes(digest[:8], "big") * 10 >> 64
    return "train" if tenth < 8 else SPLITS[tenth - 7]
