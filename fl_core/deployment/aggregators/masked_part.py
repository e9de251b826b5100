"""A partial sum of masked vectors, from the aggregator that added it up to the coordinator that merges it."""

from typing import NamedTuple

import numpy as np

from fedlm.fedlm_client import messages_pb2 as messages
from fedlm.fedlm_client.secure_aggregation import masks
from fedlm.fedlm_client.secure_aggregation.masks import Words
from fedlm.fl_core.deployment.server.reports.streaming_sum import Report, StreamingSum
from fedlm.fl_core.rounds.aggregation import CohortAggregate
from fedlm.fl_core.updates.update_bytes import WireError

_COUNT = np.dtype("<u4")


class MaskedLayout(NamedTuple):
    """Vectors of one sum."""

    length: int
    bits: int  # b; they are added modulo 2^b

    @property
    def upload_bytes(self) -> int:
        """Bytes of a vector."""
        return masks.packed_size(self.length, self.bits)


class MaskedPart(StreamingSum):
    """A `StreamingSum` of the masked vectors that one aggregator receives; without those of others it is noise."""

    def __init__(self, told: messages.SecureSum, layout: MaskedLayout):
        """Begin with nothing.

        Args:
          told: what clients need to know to mask their vectors.
          layout: of these.
        """
        self.told, self.upload_bytes, self._layout = told, layout.upload_bytes, layout
        self._total: Words = np.zeros(layout.length, masks.word(layout.bits))
        self._unusable = 0

    def compile(self) -> None:
        pass

    def add(self, report: Report) -> None:
        try:
            vector = masks.unpacked(bytes(report.content), self._layout.length, self._layout.bits)
        except ValueError as error:
            raise WireError(str(error)) from error
        np.add(self._total, vector, out=self._total)

    def add_unusable(self) -> None:
        self._unusable += 1

    def finish(self) -> CohortAggregate:
        raise TypeError("a part of a masked sum is no aggregate")

    def packed(self) -> bytes:
        """Write the part, behind the count of clients whose training gave no finite update."""
        return _COUNT.type(self._unusable).tobytes() + masks.packed(self._total, self._layout.bits)


def read_part(content: bytes, layout: MaskedLayout) -> tuple[Words, int]:
    """Read what `MaskedPart.packed` wrote: the sum, and the count; raises `WireError` where it is of other vectors."""
    if len(content) != _COUNT.itemsize + layout.upload_bytes:
        raise WireError(f"a partial sum has {len(content)} bytes, but a vector has {layout.upload_bytes}")
    count, rest = content[: _COUNT.itemsize], content[_COUNT.itemsize :]
    try:
        return masks.unpacked(rest, layout.length, layout.bits), int(np.frombuffer(count, _COUNT)[0])
    except ValueError as error:
        raise WireError(f"a partial sum is damaged: {error}") from error
