"""What cells of tests call in the worker's process."""

import os
import signal
import time


def works(number=1):
    return {"number": number, "process": os.getpid()}


def breaks():
    raise ValueError("this cell is broken")


def has_too_little_memory():
    import jax

    raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1099511627776 bytes.")


def lacks_a_package():
    import a_package_that_nobody_has  # noqa: F401


def lacks_a_module_of_ours():
    from fedlm.models import there_is_none  # noqa: F401


def takes_long():
    time.sleep(600)


def is_killed():
    os.kill(os.getpid(), signal.SIGSEGV)


def gives_what_json_cannot_hold():
    return {"array": object()}
