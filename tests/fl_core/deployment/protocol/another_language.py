"""Uploads and digests as a client in another language makes them: docs/protocol.md and the standard library alone.

`python -m tests.fl_core.deployment.protocol.another_language` writes the test vectors.
"""

import hashlib
import json
import math
import struct
import zlib
from pathlib import Path

VECTORS = Path(__file__).with_name("vectors")
SHAPES = [(5, 3), (), (7,), (12, 9), (4, 3, 5)]
STREAM = {"seed": 4_000_000_007, "round_number": 3, "client_index": 17}
PLANS = {
    "float32": (1, 1, {}),
    **{f"uniform{bits}": (2, 1, {"bits": bits, "rotation": 0}) for bits in (8, 16)},
    "uniform2_rotated": (2, 1, {"bits": 2, "rotation": 1}),
    "powersgd2": (3, 1, {"rank": 2}),
    "uniform2_blocks": (2, 1, {"bits": 2, "rotation": 1}),
}
OTHER_SHAPES = {"uniform2_blocks": [(1030,)]}
PLAN_RULES = {
    **{"batch_size": 3, "epochs": 2, "max_batches": 100, "max_examples": None},
    **{"cap_order": "shuffle_then_cap", "batches_across_epochs": False},
}
# A model of one tensor, and steps whose batches have the gradient curvature * (y - centre).
START, LEARNING_RATE = [0.5, -1.25, 2.0], 0.125
STEPS = [
    {"curvature": 1.5, "centre": [1.0, 0.5, -0.25], "tokens": 7},
    {"curvature": 0.75, "centre": [-0.5, 2.0, 1.0], "tokens": 2},
    {"curvature": 2.0, "centre": [0.25, -1.0, 0.0], "tokens": 12},
]
# What batches of an evaluation come to: loss, tokens, correct predictions and tokens that these are of.
SCORED, LARGEST_LOSS = [[31.5, 8, 1, 7], [10.25, 4, 2, 3]], 8.0
MEMORY = {"mime_lite": [0.25, 0.125, -0.5]}
ALGORITHMS = {
    "sgd": {},
    "fedprox": {"mu": 0.25},
    "mime_lite": {"momentum": 0.75},
    "local_adam": {"beta1": 0.75, "beta2": 0.875, "epsilon": 0.0625},
}


def float32(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


def floats(values):
    return struct.pack(f"<{len(values)}f", *values)


def tensors(shapes):
    """Some numbers, each tensor a list in row-major order."""
    return [[(37 * (i + 5 * place) % 101 - 50) / 64 for i in range(math.prod(s))] for place, s in enumerate(shapes)]


def plan_bytes(scheme, version, settings, shapes):
    out = struct.pack("<III", scheme, version, len(settings))
    for name in sorted(settings, key=str.encode):
        out += struct.pack("<I", len(name.encode())) + name.encode() + struct.pack("<I", settings[name])
    out += struct.pack("<I", len(shapes))
    for shape in shapes:
        out += struct.pack("<I", len(shape)) + b"".join(struct.pack("<Q", dimension) for dimension in shape)
    return out


def threefry(key, counter):
    mask, keys = 0xFFFFFFFF, (*key, key[0] ^ key[1] ^ 0x1BD11BDA)
    a, b = (counter[0] + keys[0]) & mask, (counter[1] + keys[1]) & mask
    for group in range(5):
        for distance in ((13, 15, 26, 6), (17, 29, 16, 24))[group % 2]:
            a = (a + b) & mask
            b = ((b << distance | b >> (32 - distance)) & mask) ^ a
        a, b = (a + keys[(group + 1) % 3]) & mask, (b + keys[(group + 2) % 3] + group + 1) & mask
    return a, b


def signs(place, count):
    key = (0, STREAM["seed"])
    for number in (zlib.crc32(b"upload"), STREAM["round_number"], STREAM["client_index"], place):
        key = threefry(key, (0, number))
    key = threefry(key, (0, 1))
    words = (threefry(key, (0, i)) for i in range(count))
    return [-1 if (a ^ b) >> 31 else 1 for a, b in words]


def hadamard(values, block):
    out = []
    for start in range(0, len(values), block):
        part = values[start : start + block]
        out += [
            sum((-1) ** (i & j).bit_count() * value for j, value in enumerate(part)) / math.sqrt(block)
            for i in range(block)
        ]
    return out


def quantized(values, place, bits, rotation):
    """The bytes of a tensor, and what they stand for."""
    count = len(values)
    if rotation:
        block = min(1024, 1 << (count - 1).bit_length())
        values = values + [0.0] * (-count % block)
        drawn = signs(place, len(values))
        values = hadamard([sign * value for sign, value in zip(drawn, values, strict=True)], block)
    top = 2**bits - 1
    minimum = float32(min(values))
    step = float32((max(values) - minimum) / top)
    codes = [min(top, math.floor((value - minimum) / step + 0.5)) if step else 0 for value in values]
    if bits == 16:
        packed = struct.pack(f"<{len(codes)}H", *codes)
    else:
        number = sum(code << bits * place for place, code in enumerate(codes))
        packed = number.to_bytes(-(-len(codes) * bits // 8), "little")
    meant = [minimum + code * step for code in codes]
    if rotation:
        meant = [sign * value for sign, value in zip(drawn, hadamard(meant, block), strict=True)][:count]
    return floats([minimum, step]) + packed, meant


def factored(values, shape, rank):
    """The same of a matrix as factors; these are no good ones, but valid."""
    rows, columns = (shape[0], math.prod(shape[1:])) if len(shape) > 1 else (0, 0)
    if rank * (rows + columns) >= rows * columns:
        return floats(values), values
    left = [[float32(values[i * columns + k] / 2) for k in range(rank)] for i in range(rows)]
    right = [[float32(values[k * columns + j]) for k in range(rank)] for j in range(columns)]
    meant = [sum(a * b for a, b in zip(one, other, strict=True)) for one in left for other in right]
    return floats([x for row in (*left, *right) for x in row]), meant


def upload(scheme, version, settings, shapes):
    """The bytes of an upload, and the tensors that they stand for."""
    parts = []
    for place, (values, shape) in enumerate(zip(tensors(shapes), shapes, strict=True)):
        if scheme == 1:
            parts.append((floats(values), values))
        elif scheme == 2:
            parts.append(quantized(values, place, settings["bits"], settings["rotation"]))
        else:
            parts.append(factored(values, shape, settings["rank"]))
    body = b"FLU2" + hashlib.sha256(plan_bytes(scheme, version, settings, shapes)).digest()[:4]
    body += b"".join(packed for packed, _ in parts)
    return body + struct.pack("<I", zlib.crc32(body)), [meant for _, meant in parts]


def upload_vector(name):
    scheme, version, settings = PLANS[name]
    shapes = OTHER_SHAPES.get(name, SHAPES)
    plan = plan_bytes(scheme, version, settings, shapes)
    message, meant = upload(scheme, version, settings, shapes)
    return {
        "plan": {"scheme": scheme, "version": version, "settings": settings, "tensors": [list(s) for s in shapes]},
        "plan_bytes": plan.hex(),
        "plan_digest": hashlib.sha256(plan).hexdigest(),
        **STREAM,
        "upload": message.hex(),
        "update": [[round(value, 9) for value in values] for values in meant],
    }


def artifact_vector():
    content, encoding, step = bytes(range(250)) * 4, "float32", 300
    digests = [hashlib.sha256(content[start : start + step]).digest() for start in range(0, len(content), step)]
    described = encoding.encode() + struct.pack("<QI", len(content), step) + b"".join(digests)
    return {
        "content": content.hex(),
        "encoding": encoding,
        "chunk_bytes": step,
        "chunk_digests": [one.hex() for one in digests],
        "digest": hashlib.sha256(described).hexdigest(),
    }


def gradient(step, y):
    """That of a step's batch, of a loss with a curvature and a least point."""
    return [step["curvature"] * (a - b) for a, b in zip(y, step["centre"], strict=True)]


def direction(name, constants, number, y, g, state):
    """What a client follows at its step of a number, counted from 1; `state` is what it remembers."""
    if name == "fedprox":
        return [a + constants["mu"] * (b - x) for a, b, x in zip(g, y, START, strict=True)]
    if name == "mime_lite":
        beta = constants["momentum"]
        return [(1 - beta) * a + beta * m for a, m in zip(g, MEMORY["mime_lite"], strict=True)]
    if name == "local_adam":
        one, two = constants["beta1"], constants["beta2"]
        state["first"] = [one * m + (1 - one) * a for m, a in zip(state["first"], g, strict=True)]
        state["second"] = [two * v + (1 - two) * a * a for v, a in zip(state["second"], g, strict=True)]
        return [
            m / (1 - one**number) / (math.sqrt(v / (1 - two**number)) + constants["epsilon"])
            for m, v in zip(state["first"], state["second"], strict=True)
        ]
    return g


def algorithm_vector(name):
    constants, y, state = ALGORITHMS[name], START, {"first": [0.0] * 3, "second": [0.0] * 3}
    for number, step in enumerate(STEPS, start=1):
        followed = direction(name, constants, number, y, gradient(step, y), state)
        y = [a - LEARNING_RATE * d for a, d in zip(y, followed, strict=True)]
    sent = [[x - a for x, a in zip(START, y, strict=True)]]
    if name == "mime_lite":
        tokens = sum(step["tokens"] for step in STEPS)
        weighted = [[step["tokens"] * g for g in gradient(step, START)] for step in STEPS]
        sent.append([sum(parts) / tokens for parts in zip(*weighted, strict=True)])
    return {
        "constants": constants,
        "download": [START, *([MEMORY[name]] if name in MEMORY else [])],
        "upload": [[round(value, 9) for value in tensor] for tensor in sent],
    }


def evaluation_vector():
    loss, tokens, correct, scored = map(sum, zip(*SCORED, strict=True))
    part = min(loss / tokens / LARGEST_LOSS, 1)
    told = [part, (2 * part - 1) ** 2, correct / scored, float(loss / tokens < LARGEST_LOSS)]
    upload = [value / math.sqrt(2) for value in [1, *(one - 0.5 for one in told)]]
    constants = {"largest_loss": LARGEST_LOSS}
    return {"constants": constants, "batches": SCORED, "upload": [[round(value, 9) for value in upload]]}


def algorithms_vector():
    return {
        "learning_rate": LEARNING_RATE,
        "steps": STEPS,
        "algorithms": {name: algorithm_vector(name) for name in ALGORITHMS},
        "evaluate": evaluation_vector(),
    }


def plan_key(purpose, *numbers):
    key = (0, STREAM["seed"])
    for number in (zlib.crc32(purpose.encode()), STREAM["round_number"], STREAM["client_index"], *numbers):
        key = threefry(key, (0, number))
    return key


def plan_order(count, epoch):
    """The shuffle `threefry-sort`, version 1."""
    key = plan_key("shuffle", epoch)
    return [i for _, i in sorted((threefry(key, (0, i)), i) for i in range(count))]


def plan_rows(count, rules):
    """The examples of each batch of a plan, -1 where a row only fills."""
    size, most = rules["batch_size"], rules["max_examples"]
    kept, rows = count if most is None else min(count, most), []
    for epoch in range(rules["epochs"]):
        among = kept if rules["cap_order"] == "cap_then_shuffle" else count
        rows += plan_order(among, epoch)[:kept]
        if not rules["batches_across_epochs"]:
            rows += [-1] * (-len(rows) % size)
    rows += [-1] * (-len(rows) % size)
    return [rows[start : start + size] for start in range(0, len(rows), size)][: rules["max_batches"]]


def plan_batches_vector():
    rules = [
        {**PLAN_RULES, **one} for one in ({}, {"max_examples": 4}, {"max_examples": 4, "cap_order": "cap_then_shuffle"})
    ]
    rules += [{**one, "batches_across_epochs": True, "max_batches": 4} for one in rules]
    return {
        **STREAM,
        "orders": {str(count): [plan_order(count, epoch) for epoch in range(2)] for count in (1, 2, 7, 20)},
        "batches": [{"examples": 7, **one, "rows": plan_rows(7, one)} for one in rules],
        "random": [[list(threefry(plan_key("dropout", step), (0, row))) for row in range(3)] for step in range(2)],
    }


def vectors():
    uploads = {name: upload_vector(name) for name in PLANS}
    others = {"artifact": artifact_vector(), "client_algorithms": algorithms_vector()}
    return uploads | others | {"plan_batches": plan_batches_vector()}


if __name__ == "__main__":
    for name, vector in vectors().items():
        (VECTORS / f"{name}.json").write_text(json.dumps(vector, indent=1) + "\n")
