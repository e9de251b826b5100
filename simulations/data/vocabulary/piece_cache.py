"""The tokens of pieces of text, remembered, because the same words come again and again."""

import threading
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, islice, pairwise

import numpy as np
from numpy.typing import NDArray

MOST_PIECES = 250_000
MOST_CHARACTERS = 8_000_000
"""What is remembered, at most, before a batch begins; then it is all forgotten. About 60 MB in all."""

EncodePieces = Callable[[Sequence[str]], Iterable[Sequence[int]]]


class PieceCache:
    """Encodes texts piece by piece, a piece being what stands between two spaces; each piece is encoded once.

    `encode` returns the token ids of each of some pieces; the ids of a text must be those of its pieces, joined. Rather
    than begin a batch with more than `most_pieces` pieces, all are forgotten. Threads may share it.
    """

    def __init__(self, encode: EncodePieces, most_pieces: int = MOST_PIECES) -> None:
        self._encode = encode
        self._most_pieces = most_pieces
        self._lock = threading.Lock()
        self._forget()

    def __reduce__(self) -> tuple[type["PieceCache"], tuple[EncodePieces, int]]:
        return PieceCache, (self._encode, self._most_pieces)

    def _forget(self) -> None:
        self._numbers = _Numbers()
        self._characters = 0
        self._ids = np.empty(0, np.int32)  # of all pieces, one after the other
        self._offsets = np.zeros(1, np.int64)  # where each piece's ids begin, and where the last one's end

    def encode_batch(self, texts: Sequence[str]) -> list[NDArray[np.int32]]:
        """Return the token ids of each text, views of one array."""
        with self._lock:
            return self._encode_batch(texts) if texts else []

    def _encode_batch(self, texts: Sequence[str]) -> list[NDArray[np.int32]]:
        if len(self._numbers) > self._most_pieces or self._characters > MOST_CHARACTERS:
            self._forget()
        numbers = self._number_pieces(" ".join(texts).split(" "))
        first, counts = self._offsets[numbers], np.diff(self._offsets)[numbers]
        ends = _offsets(counts)
        ids = self._ids[np.arange(ends[-1]) + np.repeat(first - ends[:-1], counts)]
        pieces = np.fromiter((text.count(" ") + 1 for text in texts), np.int64, len(texts))
        cuts = ends[_offsets(pieces)].tolist()
        return [ids[start:end] for start, end in pairwise(cuts)]

    def _number_pieces(self, pieces: list[str]) -> NDArray[np.int64]:
        known = len(self._numbers)
        numbers = np.fromiter(map(self._numbers.__getitem__, pieces), np.int64, len(pieces))
        new = list(islice(self._numbers, known, None))  # a dict keeps the order of insertion
        if new:
            try:
                self._append(new)
            except BaseException:
                self._forget()
                raise
        return numbers

    def _append(self, pieces: list[str]) -> None:
        encoded = list(self._encode(pieces))
        lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
        ids = np.fromiter(chain.from_iterable(encoded), np.int32, int(lengths.sum()))
        self._ids = np.concatenate([self._ids, ids])
        self._offsets = np.concatenate([self._offsets, self._offsets[-1] + np.cumsum(lengths)])
        self._characters += sum(map(len, pieces))


class _Numbers(dict[str, int]):
    """Numbers strings from 0 in the order in which they are first looked up."""

    def __missing__(self, piece: str) -> int:
        number = self[piece] = len(self)
        return number


def _offsets(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(lengths)])
