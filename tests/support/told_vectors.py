"""Runs a client's command that writes each vector down before it masks it, so that a sum can be compared with them.

    python -m tests.support.told_vectors FOLDER PACKAGE MODULE WORDS

PACKAGE has the client's code, and MODULE the command's `main`.
"""

import importlib
import sys
from pathlib import Path

import numpy as np
from cryptography.x509.oid import NameOID


def tell(member, folder):
    """Let members of a class write their vectors to a folder, by the names in their certificates."""
    mask = member.mask

    def told(this, dealt, integers):
        (name,) = this._identity.certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        np.save(folder / f"{name.value}.npy", integers)
        return mask(this, dealt, integers)

    member.mask = told


if __name__ == "__main__":
    folder, package, module, *words = sys.argv[1:]
    tell(importlib.import_module(f"{package}.secure_aggregation.member").Member, Path(folder))
    sys.exit(importlib.import_module(module).main(words))
