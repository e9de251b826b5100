import hashlib

import pytest

from fedlm.fedlm_client import messages_pb2 as messages
from fedlm.fedlm_client.errors import ClientError, TransportError, UnknownArtifactError
from fedlm.fedlm_client.link.artifacts import ArtifactAssembly, digest_of
from fedlm.fedlm_client.link.calls import Chunk
from fedlm.fl_core.deployment.protocol.artifacts import ServedArtifact
from fedlm.fl_core.errors import DiskError

CONTENT = bytes(range(256)) * 10
SERVED = ServedArtifact([CONTENT[:700], CONTENT[700:]], "test", 1000)


def chunk(number):
    return Chunk(number=number, data=SERVED.chunk(number).content())


@pytest.mark.parametrize("size", [1, 999, 1000, 1001, 2560])
def test_content_arrives_as_it_was(size):
    served = ServedArtifact([CONTENT[:size]], "test", 1000)
    assembly = ArtifactAssembly(served.description, 10_000)
    for number in range(-(-size // 1000)):
        assert not assembly.complete
        assert assembly.next_chunk == number
        assembly.add(Chunk(number=number, data=served.chunk(number).content()))
    assert assembly.complete
    assert assembly.content == CONTENT[:size]


def test_a_changed_or_misplaced_chunk_is_found_and_can_be_fetched_again():
    assembly = ArtifactAssembly(SERVED.description, 10_000)
    changed = chunk(0)
    changed = changed._replace(data=b"x" + changed.data[1:])
    for wrong in (changed, chunk(1), Chunk(number=0, data=b"")):
        with pytest.raises(TransportError):
            assembly.add(wrong)
    for number in range(3):
        assembly.add(chunk(number))
    assert assembly.content == CONTENT


@pytest.mark.parametrize(
    "changes", [{"size": 2561}, {"size": 0}, {"chunk_bytes": 0}, {"encoding": "x"}, {"digest": b""}]
)
def test_a_description_that_contradicts_itself_is_refused(changes):
    description = messages.Artifact()
    description.CopyFrom(SERVED.description)
    for name, value in changes.items():
        setattr(description, name, value)
    with pytest.raises(TransportError):
        ArtifactAssembly(description, 10_000)


def test_more_than_is_taken_is_refused_for_good():
    description = messages.Artifact()
    description.CopyFrom(SERVED.description)
    description.size = 10**12
    with pytest.raises(ClientError, match="of 1,000,000,000,000 bytes, but this client takes 10,000 at most"):
        ArtifactAssembly(description, 10_000)


def test_a_chunk_of_another_length_than_was_announced_is_not_taken():
    description = messages.Artifact()
    description.CopyFrom(ServedArtifact([bytes(10_000)], "test", 10_000).description)
    description.size = description.chunk_bytes = 10
    description.digest = digest_of(description)
    assembly = ArtifactAssembly(description, 10)
    with pytest.raises(TransportError, match="not announced"):
        assembly.add(Chunk(number=0, data=bytes(10_000)))
    assert len(assembly.content) == 10


def test_what_is_withdrawn_cannot_be_fetched():
    served = ServedArtifact([CONTENT[:700], CONTENT[700:]], "test", 1000)
    assert served.description.chunk_digests[0] == hashlib.sha256(CONTENT[:1000]).digest()
    served.withdraw()
    with pytest.raises(UnknownArtifactError):
        served.chunk(0)


def test_what_is_being_sent_stays_what_it_was():
    served = ServedArtifact([CONTENT], "test", 1000)
    sending = served.chunk(1)
    number = sending.file.fileno()
    served.withdraw()
    others = [ServedArtifact([bytes(3000)], "test", 1000) for _ in range(3)]
    assert all(other.chunk(0).file.fileno() != number for other in others), "a file's number was given to another"
    assert sending.content() == CONTENT[1000:2000]


def test_a_folder_that_is_gone_is_named(tmp_path):
    with pytest.raises(DiskError, match="gone: cannot be written"):
        ServedArtifact([CONTENT], "test", 1000, tmp_path / "gone")
