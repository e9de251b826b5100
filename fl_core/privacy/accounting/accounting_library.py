"""The library dp-accounting, loaded when it is needed and silent.

What it warns of, orders of Renyi's divergence whose series did not converge and which it leaves out, changes no bound
that is stated, and is nothing that a user could act on.
"""

import functools
import logging
from typing import Any


@functools.cache
def accounting_library() -> Any:
    """Load `dp_accounting`, which takes most of a second that a run without privacy need not wait."""
    import dp_accounting

    logging.getLogger("absl").addFilter(_is_of_others)
    return dp_accounting


def _is_of_others(record: logging.LogRecord) -> bool:
    return "dp_accounting" not in record.pathname
