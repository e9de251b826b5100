"""What differs between equal runs by its nature, and is left out of a comparison: each by a rule with a reason.

No rule leaves out a whole file, but for what holds nothing but times.
"""

import re
from typing import NamedTuple

from tests.golden.contents import Fields


class Rule(NamedTuple):
    """Which values are left out: where `where` is found in `PATH FIELD`, and `what` in the value."""

    reason: str
    where: str
    what: str = ""


_TIME = r"(\w*seconds(_\w+)?|\w+_per_second)"
RULES = (
    Rule(
        "how long things took",
        rf"(metrics|summary|results|grid|runs|measurements|about|log|txt).*[. \[]{_TIME}(\[\d+\])?$",
    ),
    Rule("how long things took", rf"tfevents {_TIME} at \d+$"),
    Rule("how long things took", r"\.csv \[\d+\]\.\w*seconds|\.html text \d+, column .*seconds|plots/time\.\w+ $"),
    Rule("progress is told once in so many seconds", r"\.stderr\.txt ", r"\bleft\b|━|^ +(kB|MB|groups|examples) *$"),
    Rule("a client tries until the server is there", r"\.stderr\.txt ", "trying again in"),
    Rule("when things happened", r"\.log .*\.(time|started)$"),
    Rule(
        "when clients came, and how often they asked",
        r"state\.db .*\.(started|seconds|last_seen|rests_until|check_ins|released)$",
    ),
    Rule("a fleet tells where it stands once in so many seconds", r"\.stderr\.txt ", r"^fleet: \d+ of \d+ devices "),
    Rule("how long a fleet took, and how often it asked", r"\.stdout\.txt ", r"│ (seconds|check ins) +│"),
    Rule("a digest of a message that has the seconds left", r"^(\w+|records/.*)\.json populations\..*\.taken\."),
    Rule("the key of a server's log is of the system's randomness", r"state\.db log_keys"),
    Rule("what a client saw of that log when it came", r"^(\w+|records/.*)\.json log\."),
    Rule("keys are of OpenSSL's own randomness", r"^keys/.*\.(pem|key|pub|jsonl?|txt) "),
    Rule("when a run changed last, and its size, in which times are", r"\.stdout\.txt \[\d+\]\.(changed|bytes)$"),
    Rule("Orbax names the folder in which it wrote, which may have a random name", r"commit_success\.txt "),
    Rule("Orbax's times", r"_CHECKPOINT_METADATA (init|commit)_timestamp_nsecs"),
)
_FILE_NAMES = ((re.compile(r"events\.out\.tfevents\.\d+\.\S+"), "events.out.tfevents"),)  # which have a time in them
_LINE = re.compile(r"line \d+")


def normalised(files: dict[str, Fields]) -> dict[str, Fields]:
    """Leave out what the rules say; the lines that are left are numbered anew."""
    found = {}
    for path, fields in files.items():
        for pattern, replacement in _FILE_NAMES:
            path = pattern.sub(replacement, path)
        kept = {name: value for name, value in fields.items() if not _is_left_out(f"{path} {name}", value)}
        lines = _LINE.fullmatch(next(iter(kept), "")) is not None
        found[path] = {f"line {number}": value for number, value in enumerate(kept.values(), 1)} if lines else kept
    return found


def _is_left_out(name: str, value: str) -> bool:
    return any(re.search(rule.where, name) and re.search(rule.what, value) for rule in RULES)
