"""A federated data set that a program holds in memory, in place of a store on disk.

The same text gives the same vocabulary, the same splits and the same order of clients as `fedlm data import` gives
them, so that a run on it ends with the same bits.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

from numpy.typing import ArrayLike

from fedlm.fl_core.composed_settings import compose
from fedlm.fl_core.errors import ConfigurationError, DataError, setting
from fedlm.fl_core.privacy.origins.vocabulary_origin import VocabularyOrigin
from fedlm.models.arguments import StrPath, checked_arguments
from fedlm.models.shown import in_a_line, in_a_table
from fedlm.models.special_tokens import OWN, SpecialTokens
from fedlm.simulations.data.given_examples import (
    check_texts,
    encoded,
    examples_of_ids,
    in_splits,
    rows_of,
    without_empty,
)
from fedlm.simulations.data.splits import SPLITS
from fedlm.simulations.data.splits_in_memory import RowsInMemory, TokensInMemory
from fedlm.simulations.data.vocabulary.given_vocabulary import given_origin, given_tokenizer
from fedlm.simulations.data.vocabulary.tokenization import Tokenizer, count_words
from fedlm.simulations.data.vocabulary.tokenizer_settings import TokenizerSettings


class DataInMemory:
    """A federated data set in memory, made of texts, of token ids, or of rows of a model of your own.

    Clients are in one split each, 80 % train, 10 % heldout, 10 % test, by the hash of their ids, as when text is
    imported; or in those that are given.

    Attributes:
      vocabulary_size: token ids that there are, the four special ones included.
      fingerprint: of the vocabulary; a run goes on, and parameters are taken over, with the same only.
      contents: a fingerprint of all the data.
      vocabulary_origin: where the vocabulary comes from, and so whether a guarantee for a model covers it.
      tokenizer: that made the tokens; None where there was no text.
      row_length: the `length` that rows ask for; None where sequences are cut or padded to any.

    Example:
      >>> texts = {f"user {n}": ["the cat sat", "a dog ran to the cat"] for n in range(30)}
      >>> data = DataInMemory.from_texts(texts, vocabulary_size=40)
      >>> [len(data.split(name).client_ids) for name in ("train", "heldout", "test")]
      [22, 4, 4]
      >>> tokens = {"ann": [[4, 5, 6], [6, 4]], "bob": [[5, 5]]}
      >>> data = DataInMemory.from_tokens(tokens, vocabulary_size=7, heldout=tokens, test=tokens)
      >>> data.split("train").num_examples.tolist()
      [2, 1]
    """

    path = Path("data in memory")
    without_users = False

    def __init__(
        self,
        splits: Mapping[str, TokensInMemory | RowsInMemory],
        vocabulary_size: int,
        fingerprint: str,
        *,
        vocabulary_origin: VocabularyOrigin,
        tokenizer: Tokenizer | None = None,
        row_length: int | None = None,
    ):
        """Use `from_texts`, `from_tokens` or `from_rows`."""
        self._splits = dict(splits)
        self.vocabulary_size, self.fingerprint = vocabulary_size, fingerprint
        self.vocabulary_origin, self.tokenizer, self.row_length = vocabulary_origin, tokenizer, row_length
        record = json.dumps([fingerprint, {name: split.digest() for name, split in splits.items()}])
        self.contents = hashlib.sha256(record.encode()).hexdigest()

    def __repr__(self) -> str:
        clients = {name: len(split.client_ids) for name, split in self._splits.items()}
        return in_a_line(self, vocabulary_size=self.vocabulary_size, clients=clients)

    def _repr_html_(self) -> str:
        rows = [(name, len(one.client_ids), int(one.num_examples.sum())) for name, one in self._splits.items()]
        return in_a_table(rows, (f"in memory, a vocabulary of {self.vocabulary_size:,}", "clients", "examples"))

    @property
    def special_tokens(self) -> SpecialTokens:
        """The special tokens of the vocabulary."""
        return OWN if self.tokenizer is None else self.tokenizer.special_tokens

    @classmethod
    @checked_arguments
    def from_texts(
        cls,
        clients: Mapping[str, Sequence[str]],
        *,
        heldout: Mapping[str, Sequence[str]] | None = None,
        test: Mapping[str, Sequence[str]] | None = None,
        vocabulary: Tokenizer | StrPath | None = None,
        vocabulary_origin: Literal["public"] | None = None,
        seed: int = 0,
        **settings: Any,
    ) -> Self:
        """Make a data set of texts, each of which is an example (a sentence, say).

        Args:
          clients: from a client's id to its texts.
          heldout: clients to score on between rounds; with `test`, all `clients` are trained on.
          test: clients to score on at the end.
          vocabulary: a tokenizer, or the file of one or of a vocabulary; one is trained on the train split else.
          vocabulary_origin: "public" says of a vocabulary that is given that it was made without the text of anybody
            whom a guarantee is to protect.
          seed: of the split by client, where `heldout` and `test` are not given.
          **settings: of the tokenizer to train, fields of `TokenizerSettings`: `vocabulary_size`, `tokenizer`
            ("wordpiece", "words" or "characters") or `lowercase`.

        Raises:
          DataError: a client has no list of texts, or a split is empty.
          ConfigurationError: it is said where the vocabulary comes from, but it is trained here.
        """
        splits = in_splits(clients, heldout, test, seed)
        for texts in splits.values():
            for client, found in texts.items():
                check_texts(client, found)
        tokenizer, origin = _vocabulary(splits["train"], settings, vocabulary, vocabulary_origin)
        tokens = {
            name: TokensInMemory(without_empty(encoded(texts, tokenizer)), tokenizer.special_tokens)
            for name, texts in splits.items()
        }
        return cls(
            _checked(tokens),
            tokenizer.vocabulary_size,
            tokenizer.fingerprint,
            vocabulary_origin=origin,
            tokenizer=tokenizer,
        )

    @classmethod
    @checked_arguments
    def from_tokens(
        cls,
        clients: Mapping[str, Sequence[ArrayLike]],
        vocabulary_size: int,
        *,
        heldout: Mapping[str, Sequence[ArrayLike]] | None = None,
        test: Mapping[str, Sequence[ArrayLike]] | None = None,
        vocabulary_origin: Literal["public"] | None = None,
        seed: int = 0,
    ) -> Self:
        """Make a data set of token ids.

        Args:
          clients: from a client's id to its examples, int [tokens] each, without BOS and EOS. Ids 0 to 3 are those of
            PAD, BOS, EOS and an unknown word (`fedlm.models.special_tokens`), of which only the last may occur.
          vocabulary_size: ids that there are, these four included.
          heldout: as for `from_texts`, and so are `test`, `vocabulary_origin` and `seed`.

        Raises:
          DataError: an id is out of range, or a split is empty.
        """
        _check_size(vocabulary_size)
        splits = {
            name: TokensInMemory(
                without_empty(
                    {client: examples_of_ids(client, rows, vocabulary_size) for client, rows in found.items()}
                )
            )
            for name, found in in_splits(clients, heldout, test, seed).items()
        }
        fingerprint = _made_up_fingerprint("tokens", vocabulary_size)
        return cls(
            _checked(splits),
            vocabulary_size,
            fingerprint,
            vocabulary_origin=VocabularyOrigin(vocabulary_origin or "given"),
        )

    @classmethod
    @checked_arguments
    def from_rows(
        cls,
        clients: Mapping[str, ArrayLike],
        vocabulary_size: int,
        *,
        heldout: Mapping[str, ArrayLike] | None = None,
        test: Mapping[str, ArrayLike] | None = None,
        vocabulary_origin: Literal["public"] | None = None,
        seed: int = 0,
    ) -> Self:
        """Make a data set for a model of your own, which need not be one of language: it finds in `Batch.tokens` these
        very rows (pixels and a label, say), and its `loss` says what they mean.

        Args:
          clients: from a client's id to int32 [examples, width]; the width is the same for all.
          vocabulary_size: what the model is to be built with; a run that ends more than half a nat above the loss
            of a uniform guess among so many counts as diverged, so for a classifier it is the number of classes.
          heldout: as for `from_texts`, and so are `test`, `vocabulary_origin` and `seed`.

        Raises:
          DataError: rows are not such arrays, or a split is empty.
        """
        _check_size(vocabulary_size)
        arrays = {
            name: {client: rows_of(client, rows) for client, rows in found.items()}
            for name, found in in_splits(clients, heldout, test, seed).items()
        }
        widths = {array.shape[1] for found in arrays.values() for array in found.values()}
        if len(widths) > 1:
            raise DataError(f"rows are {', '.join(map(str, sorted(widths)))} wide, expected the same width for all")
        splits = {name: RowsInMemory(found) for name, found in arrays.items()}
        fingerprint = _made_up_fingerprint("rows", vocabulary_size)
        row_length = widths.pop() - 1 if widths else None
        origin = VocabularyOrigin(vocabulary_origin or "given")
        return cls(_checked(splits), vocabulary_size, fingerprint, vocabulary_origin=origin, row_length=row_length)

    def training_data(self, check: bool) -> str:
        """Return the fingerprint of the training clients' names and tokens."""
        return self._splits["train"].fingerprint()

    def split(self, name: str) -> TokensInMemory | RowsInMemory:
        """Return train, heldout or test. Raises DataError where it is called otherwise."""
        if name not in self._splits:
            raise DataError(f"data in memory: has no split {name!r}. Choose one of {', '.join(SPLITS)}.")
        return self._splits[name]


def _check_size(vocabulary_size: int) -> None:
    if vocabulary_size < 1:
        raise ConfigurationError(f"{setting('vocabulary_size')} is {vocabulary_size}, but must be at least 1")


def _checked(splits: dict[str, Any]) -> dict[str, Any]:
    for name, split in splits.items():
        if not split.num_examples.sum():
            raise DataError(
                f"split {name}: has no example; give more clients, or heldout= and test= with clients of their own"
            )
    return splits


def _vocabulary(
    texts: Mapping[str, Sequence[str]],
    settings: dict[str, Any],
    given: Tokenizer | StrPath | None,
    said: Literal["public"] | None,
) -> tuple[Tokenizer, VocabularyOrigin]:
    """Take the vocabulary that is given, or train one."""
    if isinstance(given, Tokenizer):
        return given, VocabularyOrigin(said or "given")
    path = None if given is None else Path(given)
    tokenizer_settings = compose(TokenizerSettings, vocabulary=path, **settings)
    tokenizer = given_tokenizer(tokenizer_settings)
    if path is not None and tokenizer is not None:
        return tokenizer, given_origin(path, tokenizer.fingerprint, said)
    if said is not None:
        raise ConfigurationError(
            f"{setting('vocabulary_origin')} is {said!r}, but no vocabulary is given; leave it out, or give one"
        )
    words = count_words((text for found in texts.values() for text in found), tokenizer_settings)
    return Tokenizer.train(words, tokenizer_settings), VocabularyOrigin("training data")


def _made_up_fingerprint(kind: str, vocabulary_size: int) -> str:
    return hashlib.sha256(f"{kind} of a vocabulary of {vocabulary_size}".encode()).hexdigest()
