"""The operator's token: who holds it is let in, by either scheme, and nobody else."""

import base64

import pytest

from fedlm.fedlm_client.errors import RefusedError
from fedlm.fl_core.deployment.security.operator_access import OperatorAccess, write_operator_token
from fedlm.fl_core.deployment.security.people import Role
from fedlm.fl_core.errors import ConfigurationError


def allows(access, authorization):
    try:
        return access.who(authorization).roles == set(Role)
    except RefusedError:
        return False


def basic(password, user="operator"):
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def test_only_the_token_of_the_file_is_let_in(tmp_path):
    path = tmp_path / "operator.token"
    token = write_operator_token(path)
    access = OperatorAccess(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert allows(access, f"Bearer {token}")
    assert allows(access, basic(token))
    assert allows(access, basic(token, user=""))
    wrong = [None, "", "Bearer", "Bearer ", f"Bearer {token}x", f"Bearer {token[:-1]}", token, "Basic ?", basic("")]
    wrong += [
        basic(token[::-1]),
        "Basic " + base64.b64encode(b"\xff\xfe").decode(),
        "Bearer é",
        "Bearer \udcff",
        f"Digest {token}",
    ]
    assert not any(allows(access, one) for one in wrong)


def test_a_new_token_counts_at_once_and_a_lost_file_lets_nobody_in(tmp_path):
    path = tmp_path / "operator.token"
    old = write_operator_token(path)
    access = OperatorAccess(path)
    new = write_operator_token(path)
    assert allows(access, f"Bearer {new}")
    assert not allows(access, f"Bearer {old}")
    path.unlink()
    assert not allows(access, f"Bearer {new}")
    assert not allows(access, "Bearer ")


def test_a_token_that_others_can_read_or_that_is_missing_is_refused(tmp_path):
    path = tmp_path / "operator.token"
    with pytest.raises(ConfigurationError, match="fedlm keys operator"):
        OperatorAccess(path)
    path.write_text("\n")
    path.chmod(0o600)
    with pytest.raises(ConfigurationError, match="0 characters"):
        OperatorAccess(path)
    write_operator_token(path)
    path.chmod(0o644)
    with pytest.raises(ConfigurationError, match="chmod 600"):
        OperatorAccess(path)
