"""An issuer of OpenID Connect on this machine, whose tokens are real and whose keys change."""

import base64
import hashlib
import hmac
import http.server
import json
import threading
import time

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

jwt = pytest.importorskip("jwt", reason="PyJWT is not installed; pip install -c constraints.txt -e '.[deploy]'")


class Issuer:
    """Signs tokens, and tells who asks by which keys; a context manager.

    Attributes:
      asked: how often somebody asked for its keys.
      keys_at: where it says that they are; at `moved` it leads elsewhere.
    """

    def __init__(self):
        self.asked, self._keys, self._listed = 0, {}, []
        self.keys_at = "keys"
        self.rotate("first")
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_port}/realm"

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *failure):
        self._server.shutdown()
        self._server.server_close()

    def rotate(self, name):
        """Sign with a new key from now on, beside which no other is listed."""
        self.key = self._keys[name] = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.name = name
        public = jwt.algorithms.RSAAlgorithm.to_jwk(self.key.public_key(), as_dict=True)
        self._listed = [public | {"kid": name, "use": "sig", "alg": "RS256"}]

    def claims(self, **others):
        now = time.time()
        ours = {"iss": self.url, "aud": "fedlm", "sub": "u1", "iat": now, "exp": now + 300, "groups": ["staff"]}
        return {name: value for name, value in (ours | others).items() if value is not None}

    def token(self, key=None, algorithm="RS256", **claims):
        headers = {"kid": self.name}
        return jwt.encode(self.claims(**claims), key or self.key, algorithm=algorithm, headers=headers)

    def by_public_key(self):
        """A token signed with the public key as if it were a secret that both share."""
        public = self.key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        parts = [{"alg": "HS256", "typ": "JWT", "kid": self.name}, self.claims()]
        signed = ".".join(_in_base64(json.dumps(part).encode()) for part in parts)
        return f"{signed}.{_in_base64(hmac.digest(public, signed.encode(), hashlib.sha256))}"

    def bad_tokens(self):
        """Tokens that nobody may take, by what is wrong."""
        now, stranger = time.time(), rsa.generate_private_key(public_exponent=65537, key_size=2048)
        return {
            "expired": self.token(exp=now - 120),
            "not yet": self.token(nbf=now + 120),
            "without an end": self.token(exp=None),
            "without a subject": self.token(sub=None),
            "another audience": self.token(aud="others"),
            "another issuer": self.token(iss=self.url + "/other"),
            "unsigned": jwt.encode(self.claims(), None, algorithm="none", headers={"kid": self.name}),
            "public key as secret": self.by_public_key(),
            "another algorithm": self.token(algorithm="PS256"),
            "another key": self.token(key=stranger),
            "no JSON": "a.b.c",
        }

    def _handler(issuer):  # noqa: N805
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                told = {"issuer": issuer.url, "jwks_uri": f"{issuer.url}/{issuer.keys_at}"}
                if self.path == "/realm/moved":
                    self.send_response(302)
                    self.send_header("Location", f"{issuer.url}/keys")
                    self.end_headers()
                    return
                if self.path == "/realm/keys":
                    issuer.asked += 1
                    told = {"keys": issuer._listed}
                body = json.dumps(told).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *words):
                pass

        return Handler


def _in_base64(content):
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()
