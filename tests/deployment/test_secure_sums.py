"""A deployment whose server sees sums alone, over TLS: what it comes to, what it sees, and who is refused."""

import asyncio
import contextlib
import dataclasses
import json

import jax
import numpy as np
import pytest

from fedlm.commands.deployment import client, serve
from fedlm.fedlm_client.distributed_noise.lattice import Lattice
from fedlm.fedlm_client.errors import ClientError, UnsafeSumError
from fedlm.fedlm_client.link.credentials import read_certificates
from fedlm.fedlm_client.secure_aggregation.device import SecureSums
from fedlm.fedlm_client.secure_aggregation.floors import Floors
from fedlm.fedlm_client.secure_aggregation.member import Member
from fedlm.fl_core.deployment.secure_aggregation.attempts_sql import SecureAttempts
from fedlm.fl_core.deployment.security.keys import Authority
from fedlm.fl_core.deployment.state.database import Database
from fedlm.fl_core.deployment.state.state_sql import DATABASE_FILE, SqlState, sqlite_url
from fedlm.fl_core.errors import ConfigurationError
from fedlm.simulations.engine.masked_sums import MaskedCohorts
from tests.deployment import small_deployment as small
from tests.deployment.plain_loop import final_parameters, simulate
from tests.deployment.test_loopback import register_clients
from tests.support import secure_cohorts

COUNT = 8
SECURE = small.LINEAR | {"aggregation": "secure", "update_clip_norm": 0.5, "upload_bits": 32}
NOISY = {"privacy": "skellam", "noise_multiplier": 0.5, "delta": 1e-3}
NOISED = SECURE | NOISY
PROMPT = {"over_selection": 1.0, "window_seconds": 0.0, "reporting_seconds": 20.0, "rounds": 2}
FLOORS = Floors(least_cohort=5)


@pytest.fixture(scope="module")
def credentials(tmp_path_factory):
    return make_credentials(tmp_path_factory.mktemp("secure") / "keys")


def make_credentials(folder, count=COUNT):
    """Make keys of a server, and of clients: the folder, and theirs."""
    made = Authority.create(folder)
    made.make_server(["127.0.0.1"])
    return folder, [made.make_client(f"client{one}") for one in range(count)]


@dataclasses.dataclass(frozen=True)
class Simulated(SecureSums):
    """What a device has that draws as the simulated client of a number does."""

    number: int = 0

    def index(self, asked):
        return self.number


def sums_of(credentials, floors, index):
    return dataclasses.replace(Simulated.read(credentials, floors), number=index)


async def deploy(settings, credentials, out, floors=FLOORS, count=COUNT):
    keys, clients = credentials
    task = dataclasses.replace(small.task(settings), authorities=tuple(read_certificates(keys / "ca.pem")))
    server = small.Server(task, out / "run", keys=keys)
    notices = []
    async with asyncio.timeout(small.PATIENCE), server:
        made = [
            small.make_client(
                server.port,
                out,
                one,
                credentials=clients[one],
                sums=sums_of(clients[one], floors, one) if floors else None,
                notice=notices.append,
            )
            for one in range(count)
        ]
        async with small.running(made):
            if server.over is not None:
                assert await server.over
    return server.rows, notices


def flat(params):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree_util.tree_leaves(params)])


def parameters(run):
    return flat(final_parameters(run, False))


@pytest.mark.long
async def test_a_secure_deployment_comes_to_the_mean_of_clipped_updates(credentials, tmp_path):
    settings = small.deployment(**SECURE | PROMPT)
    rows, notices = await deploy(settings, credentials, tmp_path)
    assert [row["clients"] for row in rows] == [COUNT] * 2, notices
    plain = small.deployment(**SECURE | PROMPT | {"aggregation": "mean", "weighting": "uniform"})
    register_clients(tmp_path / "plain/run")
    expected, _ = await deploy(plain, credentials, tmp_path / "plain", floors=None)
    # A step of the grid is 2^-18 of the clip norm, and clients are the same.
    np.testing.assert_allclose(parameters(tmp_path / "run"), parameters(tmp_path / "plain/run"), atol=2e-5)
    for name in ("train_loss", "update_norm", "clients_clipped"):
        np.testing.assert_allclose(rows[-1][name], expected[-1][name], rtol=1e-2)
    with contextlib.closing(Database(sqlite_url(tmp_path / "run" / DATABASE_FILE))) as database:
        kept = secure_cohorts.kept_attempts(SecureAttempts(database))
        assert list(kept.values()) == [("finished", True, "")] * 2


@pytest.mark.long
async def test_clients_that_end_after_their_keys_are_left_out(credentials, tmp_path, monkeypatch):
    settings = small.deployment(**SECURE | PROMPT | {"minimum_reports": 5, "rounds": 1, "reporting_seconds": 5.0})
    mask = Member.mask

    def ended(member, dealt, integers):
        if member._index == 3:
            raise asyncio.CancelledError
        return mask(member, dealt, integers)

    monkeypatch.setattr(Member, "mask", ended)
    rows, _ = await deploy(settings, credentials, tmp_path)
    assert [row["clients"] for row in rows] == [COUNT - 1]


@pytest.mark.long
async def test_no_upload_is_an_update_and_nothing_of_one_client_is_in_the_database(credentials, tmp_path, monkeypatch):
    vectors, uploads = [], []
    mask = Member.mask

    def seen(member, dealt, integers):
        upload = mask(member, dealt, integers)
        vectors.append(integers)
        uploads.append(upload)
        return upload

    monkeypatch.setattr(Member, "mask", seen)
    await deploy(small.deployment(**SECURE | PROMPT | {"rounds": 1}), credentials, tmp_path)
    written = b"".join(path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file())
    assert len(vectors) == COUNT
    assert not [one for one in vectors if one[:8].astype("<u4").tobytes() in written]
    assert not [one for one in uploads if one[:64] in written]


@pytest.mark.long
async def test_clients_refuse_a_server_without_secure_sums_and_it_those_that_cannot_mask(credentials, tmp_path):
    for aggregation, floors, words in (
        ("mean", FLOORS, "takes part in secure sums alone"),
        ("secure", None, "does not mask its update, which this run asks for; start it with --secure-sums"),
    ):
        settings = small.deployment(**SECURE | PROMPT | {"aggregation": aggregation})
        (tmp_path / aggregation).mkdir()
        with pytest.raises(ClientError, match=words):
            await deploy(settings, credentials, tmp_path / aggregation, floors=floors, count=1)


@pytest.mark.long
async def test_clients_with_higher_floors_add_nothing(credentials, tmp_path):
    settings = small.deployment(**SECURE | PROMPT | {"rounds": 1})
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(8):
            await deploy(settings, credentials, tmp_path, floors=Floors(least_cohort=9))
    rows = tmp_path / "run/metrics.jsonl"
    assert not rows.exists() or not rows.read_text()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"update_clip_norm": None}, "give update_clip_norm"),
        ({"upload_bits": 8}, "give upload_bits 32"),
        ({"privacy": "tree", "noise_multiplier": 1.0, "delta": 1e-3}, "give privacy skellam or discrete_gaussian"),
        (NOISY | {"aggregation": "mean"}, "give aggregation secure"),
        (SECURE | {"dropout": 0.1}, "leave out dropout, or give privacy skellam"),
        (NOISY | {"noise_seed": "experiment"}, "clients draw the noise"),
        (NOISY | {"least_survivors": 5}, "minimum_reports"),
        ({"weighting": "examples"}, "all clients count the same"),
    ],
)
def test_what_a_secure_sum_cannot_do_is_refused(changes, words):
    with pytest.raises(ConfigurationError, match=words):
        small.deployment(**SECURE | changes)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--secure-sums", "--insecure", "--name", "ann"], "needs a certificate"),
        (["--least-cohort", "5", "--insecure", "--name", "ann"], "does nothing without"),
    ],
)
def test_a_client_without_a_certificate_or_secure_sums_is_told_what_is_missing(words, told, tmp_path):
    with pytest.raises(ConfigurationError, match=told):
        client.main(["--server", "127.0.0.1:1", "--data", str(tmp_path / "mine.jsonl"), *words])


def test_a_server_without_keys_adds_no_secure_sums(tmp_path):
    words = ["--out", "run", "--vocabulary", "v", "--model", "cifg_tiny", "--aggregation", "secure", "--insecure"]
    with pytest.raises(ConfigurationError, match="needs clients' certificates"):
        serve.main([*words, "--update-clip-norm", "1", "--upload-bits", "32"])


class Everybody:
    participation = None

    def sample(self, round_number):
        return np.arange(COUNT)


@pytest.mark.long
async def test_clients_add_noise_and_the_server_says_what_that_promises(credentials, tmp_path):
    settings = small.deployment(**NOISED | PROMPT | {"minimum_reports": 6})
    rows, notices = await deploy(settings, credentials, tmp_path, Floors(least_cohort=6, noise_multiplier=0.4))
    assert [row["clients"] for row in rows] == [COUNT] * 2, notices
    assert (rows[-1]["train_loss"], rows[-1]["clients_clipped"], rows[-1]["wrapped_coordinates"]) == (None,) * 3
    said = json.loads((tmp_path / "run/summary.json").read_text())["privacy_guarantee"]
    assert said["against_server"].startswith("with secure aggregation, the same epsilon")
    assert "at least 6 clients of a round add their noise" in " ".join(said["assumptions"])
    records = [json.loads(line) for line in (tmp_path / "run/privacy/ledger.jsonl").read_text().splitlines()]
    assert [record["kind"] for record in records] == ["plan", *["seen", "intent", "release"] * 2]


@pytest.mark.long
@pytest.mark.parametrize("mechanism", ["skellam", "discrete_gaussian"])
async def test_without_its_noise_a_deployment_has_the_integers_of_its_simulation_with_masks_and_without(
    credentials, tmp_path, monkeypatch, mechanism
):
    settings = small.deployment(**NOISED | PROMPT | {"privacy": mechanism, "rounds": 1, "lattice_bits": 16})
    monkeypatch.setattr(Lattice, "drawn_noise", lambda lattice, _: np.zeros(lattice.dimension, np.int64))
    register_clients(tmp_path / "run")
    await deploy(settings, credentials, tmp_path)
    for masking in (None, MaskedCohorts()):
        params, _ = simulate(settings, Everybody(), tmp_path / f"{masking}", begin_sum=masking)
        np.testing.assert_array_equal(flat(final_parameters(tmp_path / "run", True)), flat(params))


@pytest.mark.long
async def test_clients_that_ask_for_more_noise_add_nothing(credentials, tmp_path):
    settings = small.deployment(**NOISED | PROMPT | {"rounds": 1})
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(8):
            await deploy(settings, credentials, tmp_path, Floors(least_cohort=8, noise_multiplier=0.6))
    assert "seen" not in (tmp_path / "run/privacy/ledger.jsonl").read_text()


@pytest.mark.long
@pytest.mark.parametrize("kind", [SECURE, NOISED])
@pytest.mark.parametrize("question", ["mask", "reveal"])
async def test_a_sum_that_is_lost_after_vectors_may_have_left_is_spent(
    credentials, tmp_path, monkeypatch, kind, question
):
    answer = getattr(Member, question)

    def silent(member, *asked):
        if member._name.round_number == 0 and member._index < 5:
            raise UnsafeSumError("this client says no more")
        return answer(member, *asked)

    monkeypatch.setattr(Member, question, silent)
    settings = small.deployment(**kind | PROMPT | {"reporting_seconds": 5.0, "minimum_reports": 5})
    rows, _ = await deploy(settings, credentials, tmp_path)
    assert [row["clients"] for row in rows] == [0, COUNT]
    with contextlib.closing(SqlState(sqlite_url(tmp_path / "run" / DATABASE_FILE))) as state:
        assert "is lost" in state.attempts(2)[0].reason
        assert state.realised_participation() == (COUNT, 2, 1)
