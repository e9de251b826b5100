"""Tokens of an issuer on this machine: who is let in by them, while the issuer changes its keys or is gone."""

import threading
import time
from http.client import BadStatusLine
from unittest.mock import Mock

import pytest

from fedlm.fedlm_client.errors import RefusedError
from fedlm.fl_core.deployment.security import openid
from fedlm.fl_core.deployment.security.openid import Issuer as Trusted
from fedlm.fl_core.deployment.security.openid import OpenId
from fedlm.fl_core.deployment.security.people import Role
from tests.support.issuer import Issuer


@pytest.fixture(scope="module")
def issuer():
    with Issuer() as issuer:
        yield issuer


class Known(OpenId):
    """People of the issuer, at a time that a test chooses."""

    def __init__(self, issuer, **others):
        self.now = 0.0
        roles = {"staff": frozenset({Role.VIEWER}), "lead": frozenset({Role.OPERATOR})}
        trusted = Trusted(issuer.url, "fedlm", "groups", roles, ("RS256", "ES256"))
        super().__init__(trusted._replace(**others), lambda: self.now)


@pytest.mark.parametrize(
    ("groups", "roles"),
    [(["staff", "lead", 3], {Role.VIEWER, Role.OPERATOR}), ("lead", {Role.OPERATOR}), ({"lead": 1}, set()), (None, ())],
)
def test_a_person_has_the_roles_of_their_claim(issuer, groups, roles):
    assert Known(issuer).who(issuer.token(groups=groups)) == ("openid:u1", set(roles))


def test_tokens_that_are_not_for_this_server_or_not_signed_by_the_issuer_are_refused(issuer):
    known = Known(issuer)
    for what, token in issuer.bad_tokens().items():
        with pytest.raises(RefusedError, match="the token is refused"):
            pytest.fail(f"{what}: {known.who(token)}")
    with pytest.raises(RefusedError, match="alg"):
        Known(issuer, algorithms=("ES256",)).who(issuer.token())


def test_a_clock_that_is_a_minute_off_does_not_matter(issuer):
    now = time.time()
    assert Known(issuer).who(issuer.token(exp=now - 50, iat=now + 50))
    with pytest.raises(RefusedError, match="not yet valid"):
        Known(issuer).who(issuer.token(iat=now + 70))


def test_a_new_key_counts_at_once_an_old_one_no_longer_and_strangers_do_not_make_the_issuer_busy(issuer):
    known, old = Known(issuer), issuer.token()
    known.who(old)
    issuer.rotate("second")
    known.now, asked = 11.0, issuer.asked
    assert known.who(issuer.token())
    with pytest.raises(RefusedError, match="no such key"):
        known.who(old)
    for _ in range(20):
        with pytest.raises(RefusedError):
            known.who(old)
    assert issuer.asked == asked + 1


def test_while_the_issuer_is_gone_its_keys_count_for_an_hour():
    with Issuer() as issuer:
        known, token = Known(issuer), issuer.token()
        known.who(token)
    for minutes in (6, 59):
        known.now = 60.0 * minutes
        assert known.who(token)
    known.now = 3601.0
    with pytest.raises(RefusedError, match="does not answer"):
        known.who(token)


def test_an_issuer_that_calls_itself_otherwise_or_leads_elsewhere_gives_no_keys(issuer, monkeypatch):
    with pytest.raises(RefusedError, match="does not answer"):
        Known(issuer, url=issuer.url + "/").who(issuer.token())
    monkeypatch.setattr(issuer, "keys_at", "moved")
    with pytest.raises(RefusedError, match="does not answer"):
        Known(issuer).who(issuer.token())


@pytest.mark.parametrize("error", [BadStatusLine("SSH-2.0"), KeyError("kty"), TypeError("no text")])
def test_whatever_an_issuer_answers_lets_nobody_in(issuer, monkeypatch, error):
    monkeypatch.setattr(openid, "_fetched_keys", Mock(side_effect=error))
    with pytest.raises(RefusedError, match="does not answer"):
        Known(issuer).who(issuer.token())


def test_an_issuer_that_answers_byte_by_byte_keeps_nobody_waiting(issuer, monkeypatch):
    answered, asked, known = threading.Event(), Mock(), Known(issuer)

    def answer_late(url):
        asked()
        answered.wait(60)
        raise TimeoutError

    monkeypatch.setattr(openid, "_ANSWER_SECONDS", 0.1)
    monkeypatch.setattr(openid, "_fetched_keys", answer_late)
    for _ in range(3):
        with pytest.raises(RefusedError, match="does not answer"):
            known.who(issuer.token())
        known.now += 20
    answered.set()
    assert asked.call_count == 1
