"""One table of cases for all clients: which texts count, which lines are examples, and which addresses can be dialled.

The clients in Python read it here, the one in TypeScript where tests/clients/test_javascript.py puts it.
"""

import json
from pathlib import Path
from typing import Any

TABLE = Path(__file__).with_name("client_rules.json")
RULES: dict[str, list[dict[str, Any]]] = json.loads(TABLE.read_text(encoding="utf-8"))


def named(case: dict[str, Any]) -> str:
    """Name a case, for a test's id."""
    return ascii(next(iter(case.values())))[:40]
