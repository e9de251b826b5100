"""The file that says who may do what: it counts as it is now, and a mistake in it names file and field."""

import pytest

from fedlm.commands.cli import main
from fedlm.fedlm_client.errors import RefusedError
from fedlm.fl_core.deployment.security.access_file import AccessFile, read_access_file
from fedlm.fl_core.deployment.security.operator_access import read_token
from fedlm.fl_core.deployment.security.people import Role
from fedlm.fl_core.errors import ConfigurationError


@pytest.fixture
def made(tmp_path, capsys):
    """Makes a person's token and the lines that let it in."""

    def make(name):
        assert main(["keys", "operator", name, "--keys", str(tmp_path)]) == 0
        return read_token(tmp_path / f"{name}.token"), capsys.readouterr().out

    return make


def test_a_person_is_known_by_each_of_their_tokens_as_long_as_the_file_has_its_hash(tmp_path, made):
    path = tmp_path / "access.toml"
    (old, lines), (new, later) = made("ann"), made("ann")
    path.write_text(lines)
    access = AccessFile(path)
    assert access.who(f"Bearer {old}") == ("ann", {Role.VIEWER})
    both = '", "'.join(text.partition('sha256 = ["')[2].partition('"')[0] for text in (lines, later))
    path.write_text(f'[tokens.ann]\nroles = ["operator"]\nsha256 = ["{both}"]\n')
    assert access.who(f"Bearer {old}") == access.who(f"Bearer {new}") == ("ann", {Role.OPERATOR})
    path.write_text(later)
    with pytest.raises(RefusedError):
        access.who(f"Bearer {old}")
    path.write_text("[tokens.ann")
    with pytest.raises(RefusedError):
        access.who(f"Bearer {new}")


ISSUER = 'audience = "us"\nclaim = "groups"\nroles.all = ["viewer"]'
HASH = f'sha256 = ["{64 * "a"}"]'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "lets nobody in"),
        ("tokens = 3", "tokens is 3"),
        ("people = {}", "has 'people'"),
        ('[tokens."a b"]', "no name of a person"),
        (f"[tokens.ann]\n{HASH}", "tokens.ann.roles is not given"),
        (f'[tokens.ann]\nroles = ["king"]\n{HASH}', "has 'king', but roles are viewer"),
        ('[tokens.ann]\nroles = ["viewer"]\nsha256 = ["secret"]', "64 hex digits"),
        ('[openid]\naudience = "us"', "openid.issuer is not given"),
        (f'[openid]\nissuer = "http://a.org"\n{ISSUER}', "address of https"),
        (f'[openid]\nissuer = "https://a.org"\n{ISSUER}\nalgorithms = ["HS256"]', "has 'HS256'"),
        (f'[openid]\nissuer = "https://a.org"\n{ISSUER}\nroles.staff = ["king"]', "openid.roles.staff has 'king'"),
        (f'[tokens.ann]\nroles = ["viewer"]\n{HASH}\nrole = 1', "tokens.ann has 'role'"),
        (f'[tokens.a]\nroles = ["viewer"]\n{HASH}\n[tokens.b]\nroles = ["viewer"]\n{HASH}', "a has this token too"),
    ],
)
def test_a_mistake_names_file_and_field(tmp_path, text, words):
    path = tmp_path / "access.toml"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=words) as caught:
        read_access_file(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_a_file_that_others_may_write_lets_nobody_in(tmp_path, made):
    path = tmp_path / "access.toml"
    path.write_text(made("ann")[1])
    path.chmod(0o620)
    with pytest.raises(ConfigurationError, match="chmod go-w"):
        read_access_file(path)


def test_keys_of_an_issuer_outlive_a_change_of_the_file(tmp_path, made):
    path = tmp_path / "access.toml"
    issuer = '[openid]\nissuer = "https://login.example.org"\naudience = "fedlm"\nclaim = "groups"\n'
    issuer += '[openid.roles]\nstaff = ["viewer"]\n'
    path.write_text(issuer)
    access = AccessFile(path)
    before = access._now().openid
    path.write_text(made("ann")[1] + issuer)
    assert access._now().openid is before
    path.write_text(issuer.replace("fedlm", "other"))
    assert access._now().openid != before
