"""What the server says of itself while it runs: one line an event, in JSON, without any client's data."""

import json
import logging
import time
from typing import Any

_log = logging.getLogger("fedlm.serving")


def event(name: str, level: int = logging.INFO, **fields: Any) -> None:
    """Log something that happened, by a name in snake case and facts: never text, examples, updates or secrets."""
    _log.log(level, name, extra={"fields": fields})


def warn(name: str, **fields: Any) -> None:
    """Log something that an operator may want to look at; see `event`."""
    event(name, logging.WARNING, **fields)


class JsonLines(logging.Formatter):
    """Formats a record as one JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)
