"""In plain text no page gets in whose name was made to lead to this machine (DNS rebinding)."""

import asyncio
import ssl
import urllib.error
import urllib.request

from fedlm.fl_core.deployment.security.credentials import reloading_tls
from fedlm.fl_core.deployment.security.keys import Authority
from fedlm.fl_core.deployment.security.operator_access import OPERATOR_TOKEN_FILE, OperatorAccess, write_operator_token
from tests.deployment.test_operations import listening
from tests.deployment.test_silent_strangers import ask
from tests.support.serving import ARTIFACT, Handlers, serving

FOREIGN = ["evil.example", "evil.example:8471", "127.0.0.1.evil.example", "localhost.evil.example:80", "[::1].evil:1"]
OWN = ["127.0.0.1", "localhost:8471", "[::1]:8471", "LOCALHOST"]
EXPECTED = len(FOREIGN) * [403] + len(OWN) * [200]


def status_for(address, path, host, **fields):
    asked = urllib.request.Request(f"http://{address}{path}", headers={"Host": host, **fields})
    try:
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_the_operators_page_is_shown_to_pages_of_this_machine_alone():
    def act(address):
        return [status_for(address, path, host) for path in ("/", "/status.json", "/metrics") for host in FOREIGN + OWN]

    assert listening(act) == 3 * EXPECTED


async def test_a_model_is_sent_to_pages_of_this_machine_alone():
    async with serving(Handlers()) as server:
        address, path = f"127.0.0.1:{server.port}", f"/artifacts/{ARTIFACT.description.digest.hex()}"
        fields = {"fedlm-client": "ann"}
        found = [await asyncio.to_thread(status_for, address, path, host, **fields) for host in FOREIGN + OWN]
    assert found == EXPECTED


def test_with_tls_the_token_is_what_counts(tmp_path):
    """Prometheus and probes dial addresses that no certificate names; a page from elsewhere has no token."""
    keys = tmp_path / "keys"
    Authority.create(keys).make_server(["127.0.0.1"])
    write_operator_token(keys / OPERATOR_TOKEN_FILE)
    access = OperatorAccess(keys / OPERATOR_TOKEN_FILE)
    trust = ssl.create_default_context(cafile=keys / "ca.pem")
    shown = listening(
        lambda address: ask(address, "/metrics", trust, access.token(), Host="10.1.2.3:8471"),
        access,
        reloading_tls(keys),
    )
    assert shown == 200
