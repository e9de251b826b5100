"""Secure sums as docs/design/secure-aggregation.md writes them, without a line of the code that runs."""

import hashlib
import struct

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding

PRIME = 2**256 + 297


def encode(value):
    letter, content = {
        bytes: lambda: (b"b", value),
        str: lambda: (b"s", value.encode()),
        int: lambda: (b"i", struct.pack(">q", value)),
        float: lambda: (b"f", struct.pack(">d", value)),
    }.get(type(value), lambda: (b"l", b"".join(map(encode, value))))()
    return letter + struct.pack(">I", len(value) if letter == b"l" else len(content)) + content


def decode(content):
    """Read the first value, and give the rest."""
    letter, count, rest = content[:1], struct.unpack(">I", content[1:5])[0], content[5:]
    if letter == b"l":
        items = []
        for _ in range(count):
            item, rest = decode(rest)
            items.append(item)
        return items, rest
    value = rest[:count]
    read = {b"b": bytes, b"s": bytes.decode, b"i": lambda b: struct.unpack(">q", b)[0]}
    return read.get(letter, lambda b: struct.unpack(">d", b)[0])(value), rest[count:]


def labelled(label, *values):
    return encode(["fedlm-secagg-" + label, *values])


def hashed(label, *values):
    return hashlib.sha256(labelled(label, *values)).digest()


def agreed(private, public, label, *values):
    secret = private.exchange(X25519PublicKey.from_public_bytes(public))
    return HKDF(hashes.SHA256(), 32, None, labelled(label, *values)).derive(secret)


def sign(identity, label, *values):
    return identity.key.sign(labelled(label, *values), ec.ECDSA(hashes.SHA256()))


def sealed(private, public, content, info):
    return AESGCM(agreed(private, public, "share", *info)).encrypt(bytes(12), content, labelled("share", *info))


def opened(private, public, content, info):
    return AESGCM(agreed(private, public, "share", *info)).decrypt(bytes(12), content, labelled("share", *info))


def stream(key, length, bits):
    words = np.dtype("<u2" if bits <= 16 else "<u4")
    cipher = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()
    return np.frombuffer(cipher.update(bytes(length * words.itemsize)), words).astype(np.int64)


def unpacked(content, length, bits):
    ones = np.unpackbits(np.frombuffer(content, np.uint8), bitorder="little")[: length * bits]
    return ones.reshape(length, bits).astype(np.int64) @ (1 << np.arange(bits, dtype=np.int64))


def split(secret, threshold, places, drawn):
    curve = [int.from_bytes(secret, "big"), *(int.from_bytes(drawn.bytes(33), "big") for _ in range(threshold - 1))]
    return {x: (sum(c * x**i for i, c in enumerate(curve)) % PRIME).to_bytes(33, "big") for x in places}


def combined(shares, threshold):
    """Give the secret of shares by their places; None where there are too few, or they are of none."""
    places = sorted(shares)[:threshold]
    total = 0
    for x in places if len(places) == threshold else ():
        above = below = 1
        for other in places:
            if other != x:
                above, below = above * other % PRIME, below * (other - x) % PRIME
        total += int.from_bytes(shares[x], "big") * above * pow(below, -1, PRIME)
    total %= PRIME
    return total.to_bytes(32, "big") if places and total < 1 << 256 and len(places) == threshold else None


class Traitor:
    """A member that works with the server: it signs what it is told to, and all its secrets are known."""

    def __init__(self, identity, name, drawn):
        self.identity, self.drawn = identity, drawn
        self.sealing, self.masking = (X25519PrivateKey.from_private_bytes(drawn.bytes(32)) for _ in range(2))
        keys = [one.public_key().public_bytes_raw() for one in (self.sealing, self.masking)]
        certificate = identity.certificate.public_bytes(Encoding.DER)
        self.advertisement = [certificate, *keys, b"", sign(identity, "keys", *name, *keys, b"")]

    def seal(self, digest, pair, public):
        """Seal shares, which are of nothing, for a member."""
        return sealed(self.sealing, public, bytes(66), (digest, *pair))
