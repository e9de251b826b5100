import asyncio

from fedlm.fl_core.deployment.server.reports.upload_buffers import UploadBuffers


async def put(buffer, piece):
    """Put bytes where the buffer has space for them; whether all belong to it."""
    while piece:
        space = buffer.space()
        taken = min(len(space), len(piece))
        space[:taken], piece = piece[:taken], piece[taken:]
        if not await buffer.take(taken):
            return False
    return True


def fill(buffers, pieces, size):
    async def go():
        with buffers.open(size) as buffer:
            fitted = [await put(buffer, piece) for piece in pieces]
            return fitted, buffer.complete, bytes(buffer.content()) if buffer.complete else None

    return asyncio.run(go())


def test_memory_beyond_the_budget_is_on_disk_and_both_hold_the_same(tmp_path):
    buffers = UploadBuffers(10, tmp_path)
    with buffers.open(8) as first:
        assert first._file is None
        with buffers.open(8) as second:
            assert second._file is not None
            assert list(tmp_path.iterdir()) == [], "a file with a name would outlive a crash"
        assert fill(buffers, [b"abc", b"defgh"], 8) == ([True, True], True, b"abcdefgh")
    assert fill(buffers, [b"abc", b"defgh"], 8) == ([True, True], True, b"abcdefgh")
    with buffers.open(10) as whole:
        assert whole._file is None, "the budget did not come back"


def test_more_than_was_declared_does_not_fit(tmp_path):
    for budget in (0, 100):
        assert fill(UploadBuffers(budget, tmp_path), [b"abc", b"d"], 3) == ([True, False], True, b"abc")
        assert fill(UploadBuffers(budget, tmp_path), [b"abc"], 4) == ([True], False, None)


def test_no_upload_is_left_in_memory_once_a_round_is_over(tmp_path):
    buffers = UploadBuffers(10, tmp_path)
    assert fill(buffers, [b"secret"], 6)[2] == b"secret"
    buffers.forget()
    with buffers.open(6) as buffer:
        assert buffer.content() == bytes(6)
