"""How many bytes the devices of a compiled program exchange, counted in the text of its optimized HLO.

A collective is counted by what a ring algorithm sends, which is the least for large arrays (Patarasuk and Yuan 2009,
"Bandwidth optimal all-reduce algorithms"). Loops count as often as they run, which the compiler writes down.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

_BITS = {
    **dict.fromkeys(("s2", "u2"), 2),
    **dict.fromkeys(("s4", "u4", "f4e2m1fn"), 4),
    **dict.fromkeys(("pred", "s8", "u8"), 8),
    **dict.fromkeys(("s16", "u16", "f16", "bf16"), 16),
    **dict.fromkeys(("s32", "u32", "f32"), 32),
    **dict.fromkeys(("s64", "u64", "f64", "c64"), 64),
    **dict.fromkeys(("c128",), 128),
    "token": 0,
}
_COLLECTIVES = (
    *("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute"),
    *("ragged-all-to-all", "collective-broadcast"),
)
_HEADER = re.compile(r"^(?P<entry>ENTRY )?%?(?P<name>[\w.\-]+) \(.*\) -> .*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?(?P<name>[\w.\-]+) = (?P<rest>.*)$")
_ARRAY = re.compile(r"(\w+)\[([\d,]*)\]")
_CALLED = re.compile(r"\b(?:to_apply|calls|body)=%?([\w.\-]+)")
_BRANCHES = re.compile(
    r"\b(?:branch_computations=\{([^}]*)\}|true_computation=%?([\w.\-]+), false_computation=%?([\w.\-]+))"
)
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_GROUPS = re.compile(r"\breplica_groups=(\{\{[\d,{}]*\}\}|\{\}|\[\d+,\d+\]<=|mesh\[.*?\] \{.*?\})")


class Exchanged(NamedTuple):
    """Bytes that a device sends, and as many receives, in one run of a program, by the kind of collective.

    Attributes:
      least: where every conditional takes the branch that exchanges least.
      most: where it takes the one that exchanges most.
    """

    least: Mapping[str, float]
    most: Mapping[str, float]


class UncountableError(Exception):
    """The program exchanges data, but in a form whose bytes are not known."""


def exchanged_bytes(hlo: str, devices: int) -> Exchanged:
    """Count the bytes that each device sends to others in one run of a program.

    Args:
      hlo: text of the optimized module, of `jax.stages.Compiled.as_text`.
      devices: that the program is partitioned over.

    Raises:
      UncountableError: a loop exchanges data, and how often it runs is not known; or a collective is of a kind or
        a form that is not known.
    """
    computations, entry = _computations(hlo)
    least, most = (dict(_Count(computations, devices, choose).of(entry)) for choose in (min, max))
    return Exchanged(least, most)


def _computations(hlo: str) -> tuple[dict[str, list[str]], str]:
    """Cut the text into computations: the lines of each by its name, and the name of the first to run."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    entry = ""
    for line in hlo.splitlines():
        if header := _HEADER.match(line):
            lines = found.setdefault(header["name"], [])
            entry = header["name"] if header["entry"] else entry
        elif instruction := _INSTRUCTION.match(line):
            lines.append(instruction["rest"])
    return found, entry


class _Count:
    """Counts of computations, each made once."""

    def __init__(self, computations: dict[str, list[str]], devices: int, choose: Callable[..., Counter[str]]):
        self._computations, self._devices, self._choose = computations, devices, choose
        self._known: dict[str, Counter[str]] = {}

    def of(self, name: str) -> Counter[str]:
        """Count what one run of a computation sends, by kind."""
        if name not in self._known:
            total: Counter[str] = Counter()
            for line in self._computations[name]:
                for kind, size in self._of_instruction(line).items():
                    total[kind] += size
            self._known[name] = total
        return self._known[name]

    def _of_instruction(self, line: str) -> Counter[str]:
        shape, code, attributes = _parts(line)
        kind = code.removesuffix("-start")
        if kind in _COLLECTIVES:
            if kind != code and kind != "all-reduce":
                shape = _elements(shape)[1]
            return Counter({kind: _sent(kind, _bytes(shape), attributes, self._devices)})
        if code == "conditional":
            branches = [name for found in _BRANCHES.findall(attributes) for name in _names(found)]
            return self._choose((self.of(name) for name in branches), key=lambda count: count.total())
        total: Counter[str] = Counter()
        for name in _CALLED.findall(attributes):
            total.update(self.of(name))
        if code == "while" and total.total():
            trips = _TRIPS.search(attributes)
            if trips is None:
                raise UncountableError("a loop exchanges data, and how often it runs is not known")
            return Counter({kind: size * int(trips[1]) for kind, size in total.items()})
        return total


def _names(found: tuple[str, ...]) -> list[str]:
    return [name.strip().removeprefix("%") for names in found if names for name in names.split(",")]


def _parts(line: str) -> tuple[str, str, str]:
    """Split an instruction's text after its name into shape, operation, and the rest."""
    end = line.index(" ")
    if line.startswith("("):
        end = next(place for place in range(len(line)) if line.count("(", 0, place) == line.count(")", 0, place) > 0)
    code, _, attributes = line[end:].strip().partition("(")
    return line[:end], code, attributes


def _elements(shape: str) -> list[str]:
    """Split a tuple's shape: of an asynchronous collective, what comes in, what comes out, and more."""
    found, depth, begin = [], 0, 1
    for place, letter in enumerate(shape):
        depth += (letter in "([{") - (letter in ")]}")
        if (letter == "," and depth == 1) or depth == 0:
            found.append(shape[begin:place])
            begin = place + 1
    return found


def _bytes(shape: str) -> float:
    total = 0.0
    for kind, sizes in _ARRAY.findall(shape):
        bits = 8 if kind.startswith("f8") else _BITS.get(kind)
        if bits is None:
            raise UncountableError(f"arrays of {kind} are exchanged")
        total += math.prod(map(int, filter(None, sizes.split(",")))) * bits / 8
    return total


def _sent(kind: str, size: float, attributes: str, devices: int) -> float:
    """Count what a device sends for a collective whose result has so many bytes."""
    if kind in ("collective-permute", "collective-broadcast", "ragged-all-to-all"):
        return size
    group = _group_size(attributes, devices)
    others = group - 1
    return (
        size
        * {
            "all-gather": others / group,
            "all-to-all": others / group,
            "all-reduce": 2 * others / group,
            "reduce-scatter": others,
        }[kind]
    )


def _group_size(attributes: str, devices: int) -> int:
    found = _GROUPS.search(attributes)
    if found is None:
        raise UncountableError("the groups of a collective are not written as known")
    text = found[1]
    if text == "{}":
        return devices
    if text.startswith("mesh"):
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", text))
        axes = re.findall(r"'(\w+)'", text[text.index("{") :])
        if ":" in text[text.index("{") :]:
            raise UncountableError("a collective is over a part of an axis")
        return math.prod(int(sizes[axis]) for axis in axes)
    if text.startswith("["):
        return int(text[1 : text.index("]")].split(",")[1])
    return max(group.count(",") + 1 for group in re.findall(r"\{([\d,]+)\}", text))
