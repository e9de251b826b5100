"""What every Python process of a comparison does as it starts: its entropy is fixed where the environment names it."""

import collections
import hashlib
import os
import random
import threading

VARIABLE = "FEDLM_GOLDEN_ENTROPY"


def fix_entropy():
    """Let the operating system's entropy follow from the name in the environment.

    The n-th request for so many bytes has its own answer: requests for other numbers of bytes do not move it.
    """
    name, counts, lock = os.environ[VARIABLE], collections.Counter(), threading.Lock()

    def urandom(size):
        with lock:
            counts[size] += 1
            count = counts[size]
        return hashlib.shake_256(f"{name} {size} {count}".encode()).digest(size)

    os.urandom = random._urandom = urandom
    random.seed(name)


if VARIABLE in os.environ:
    fix_entropy()
