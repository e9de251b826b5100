import hashlib

import pytest

from fl_core.transport import messages_pb2 as messages
from fl_core.transport.artifacts import ArtifactAssembly, ServedArtifact
from fl_core.transport.interface import TransportError, UnknownArtifactError

CONTENT = bytes(range(256)) * 10
SERVED = ServedArtifact([CONTENT[:700], CONTENT[700:]], "test", 1000)


def chunk(number):
    return messages.Chunk.FromString(SERVED.chunk(number))


@pytest.mark.parametrize("size", [1, 999, 1000, 1001, 2560])
def test_content_arrives_as_it_was(size):
    served = ServedArtifact([CONTENT[:size]], "test", 1000)
    assembly = ArtifactAssembly(served.description, 10_000)
    for number in range(-(-size // 1000)):
        assert not assembly.complete
        assert assembly.next_chunk == number
        assembly.add(messages.Chunk.FromString(served.chunk(number)))
    assert assembly.complete
    assert assembly.content == CONTENT[:size]


def test_the_digest_is_of_content_and_encoding_alone():
    assert ServedArtifact([CONTENT[:700], CONTENT[700:]], "test", 1000).description == SERVED.description
    others = [
        ServedArtifact([CONTENT[:700], CONTENT[700:]], "other", 1000),
        ServedArtifact([CONTENT[:-1]], "test", 1000),
    ]
    assert all(other.description.digest != SERVED.description.digest for other in others)


def test_a_changed_or_misplaced_chunk_is_found_and_can_be_fetched_again():
    assembly = ArtifactAssembly(SERVED.description, 10_000)
    changed = chunk(0)
    changed.data = b"x" + changed.data[1:]
    for wrong in (changed, chunk(1), messages.Chunk(number=0, data=b"")):
        with pytest.raises(TransportError):
            assembly.add(wrong)
    for number in range(3):
        assembly.add(chunk(number))
    assert assembly.content == CONTENT


@pytest.mark.parametrize(
    "changes", [{"size": 2561}, {"size": 0}, {"size": 10**12}, {"chunk_bytes": 0}, {"encoding": "x"}, {"digest": b""}]
)
def test_a_description_that_contradicts_itself_is_refused(changes):
    description = messages.Artifact()
    description.CopyFrom(SERVED.description)
    for name, value in changes.items():
        setattr(description, name, value)
    with pytest.raises(TransportError):
        ArtifactAssembly(description, 10_000)


def test_what_is_withdrawn_cannot_be_fetched():
    served = ServedArtifact([CONTENT[:700], CONTENT[700:]], "test", 1000)
    assert served.description.chunk_digests[0] == hashlib.sha256(CONTENT[:1000]).digest()
    served.withdraw()
    with pytest.raises(UnknownArtifactError):
        served.chunk(0)
