"""A run of noised sums over processes: no secret of a member is in a log, the database, metrics or a checkpoint."""

import asyncio
import base64
import logging

import pytest

from fedlm.fedlm_client.distributed_noise.lattice import Lattice
from fedlm.fedlm_client.secure_aggregation.device import SecureSums
from fedlm.fedlm_client.secure_aggregation.member import Member
from tests.deployment import small_deployment as small
from tests.deployment.test_secure_kills import serve_and_end
from tests.deployment.test_secure_sums import COUNT, FLOORS, NOISED, PROMPT, make_credentials

FIRST = 8
"""Numbers of a vector that are looked for: some thirty bits, and more with noise."""


def log_everything(path):
    logging.basicConfig(filename=path, level=logging.DEBUG, force=True)
    return logging.getLogger("fedlm.client").debug


def serve_and_log(settings, out, port, keys, log):
    log_everything(log.with_suffix(".debug"))
    serve_and_end(settings, out, port, keys, "", log)


def take_part_and_tell(port, folder, number, credentials, told):
    """Run a client in a process of its own, and write its secrets to a file beside."""
    notice, mask, draw = log_everything(folder / "logs" / f"client{number}.debug"), Member.mask, Lattice.drawn_noise

    def tell(*secrets):
        with told.open("a") as file:
            file.writelines(secret.hex() + "\n" for secret in secrets)

    def masked(member, dealt, integers):
        upload = mask(member, dealt, integers)
        keys = (one.private_bytes_raw() for one in (member._masking, member._sealing))
        shares = (shares[start : start + 33] for shares in member._shares.values() for start in (0, 33))
        tell(member._own_mask, *keys, *shares, *(integers[:FIRST].astype(kind).tobytes() for kind in ("<i4", "<i8")))
        return upload

    def drawn(lattice, random):
        noise = draw(lattice, random)
        tell(*(noise[:FIRST].astype(kind).tobytes() for kind in ("<i4", "<i8")))
        return noise

    Member.mask, Lattice.drawn_noise = masked, drawn
    sums = SecureSums.read(credentials, FLOORS)
    small.make_client(port, folder, number, credentials=credentials, sums=sums, notice=notice).run()


@pytest.mark.long
async def test_no_secret_of_a_member_is_written_by_any_process_of_a_run(tmp_path, free_port):
    keys, credentials = make_credentials(tmp_path / "keys")
    settings, out, told = small.deployment(**NOISED | PROMPT), tmp_path / "run", tmp_path / "told"
    (tmp_path / "logs").mkdir()
    server = small.in_process(serve_and_log, settings, out, free_port, keys, tmp_path / "logs/server.log")
    words = [(free_port, tmp_path, one, mine, told.with_suffix(f".{one}")) for one, mine in enumerate(credentials)]
    clients = [small.in_process(take_part_and_tell, *one) for one in words]
    try:
        await asyncio.to_thread(server.join, small.PATIENCE)
        assert server.exitcode == 0
    finally:
        for process in (server, *clients):
            process.kill()
    written = b"".join(
        path.read_bytes() for folder in (out, tmp_path / "logs") for path in folder.rglob("*") if path.is_file()
    )
    assert b"round_released" in written
    secrets = {bytes.fromhex(line) for path in tmp_path.glob("told.*") for line in path.read_text().split()}
    assert len(secrets) > COUNT * (3 + 2 * (COUNT - 1))
    forms = (bytes, lambda secret: secret.hex().encode(), base64.b64encode, lambda secret: repr(secret)[2:-1].encode())
    assert not [secret for secret in secrets for form in forms if form(secret) in written]
