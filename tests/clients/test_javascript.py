"""TypeScript under clients/javascript gives what Python gives: programs of plans, tokens; and refuses what it must."""

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from google.protobuf import descriptor_pb2
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from fedlm.fl_core.deployment.plans.plan_modules import statement_on
from fedlm.fl_core.deployment.protocol import messages_pb2
from fedlm.fl_core.deployment.security.plan_keys import PLAN_KEY_FILE, PlanSigner, create_plan_key
from fedlm_client.jax_runtime import load
from fedlm_client.signature import MODULES, PLAN
from tests.clients.plan_client.test_refusals import program_of, replaced_step
from tests.clients.rules import TABLE
from tests.support import plans

FOLDER = Path(__file__).parents[2] / "clients/javascript"
CASES = (
    {"upload_bits": 8},
    {"model": "si_cifg_tiny", "upload_bits": 16},
    {"client_algorithm": "mime_lite", "upload_bits": 32},
)
TEXTS = [
    *(
        "",
        " ",
        "The quick, brown fox!",
        "na\u00efve Caf\u00e9 \u00c5ngstr\u00f6m",
        "e\u0301 E\u0301\u0302",
        "\u0130stanbul \u1e9e",
    ),
    *(
        "\u039f\u03a3 \u03a3\u03bf\u03c2",
        "\u4e2d\u6587\u5b57 and \u3042\u30ab \ud55c\uad6d",
        "\U0002a6d6\U0002b81d\U0002f800",
        "\u3400x\uf900",
    ),
    *(
        "tab\tline\nreturn\rfeed\x0cnull\x00bell\x07",
        "zero\u200bwidth\u200djoin\ufeff",
        "soft\u00adhyphen",
        "\ufffd\ue000\U000f0000",
    ),
    *(
        "\U0001f600\U0001f469\u200d\U0001f4bb\u2764\ufe0f",
        "\u00a0\u2003\u3000\u1680\u2028\u2029\u0085x",
        "a" * 100,
        "a" * 101,
        "\u00e9" * 51,
    ),
    *(
        "don't-stop_it's $5.00 <a@b.c> ^`~|+=",
        "\u2014\u00bf\u00a1\u2026\u3002\u300c\u300d\u00a7\u20ac\u00b0",
        "\u0915\u094d\u0937\u093f \u0e01\u0e33 \u0644\u064e",
    ),
    *(
        "\u01c5\ufb01\u00df\u0149",
        "\u1100\u1161 \uac01",
        "##ing ##",
        "[UNK] [PAD]",
        "x\u0300\u0301\u0302y",
        "\U00010400\U0001d54f",
    ),
]


def _value(rng, argument):
    if argument.role == "tokens":
        return plans.examples(argument.shape[0], argument.shape[1] - 1)
    if argument.role == "weight":
        return np.arange(argument.shape[0]) < argument.shape[0] - 1
    if argument.dtype == "uint32":
        return rng.integers(0, 2**32, argument.shape, np.uint32)
    return 0.1 * rng.normal(size=argument.shape)


def _plain(value):
    numbers = value.astype(np.uint8) if value.dtype == bool else value
    return {"shape": list(value.shape), "dtype": str(value.dtype), "data": numbers.ravel().tolist()}


def _write(folder):
    rng, cases = np.random.default_rng(0), {}
    for number, settings in enumerate(CASES):
        plan, manifest = plans.plan_of(**settings)
        for part in ("step", "finish"):
            content, program = getattr(plan, part), getattr(manifest, part)
            name = f"{number}.{part}"
            inputs = [np.asarray(_value(rng, one), one.dtype) for one in program.inputs]
            outputs = [np.asarray(one) for one in load(content, program)(inputs)]
            (folder / name).write_bytes(content)
            cases[name] = {"inputs": [_plain(one) for one in inputs], "outputs": [_plain(one) for one in outputs]}
    empty = jax.ShapeDtypeStruct((0, 1 << 28), jnp.float32)
    (folder / "empty").write_bytes(program_of(lambda x: jnp.sum(x, axis=1), empty)[0])
    (folder / "calling").write_bytes(plans.portable(plans.CALLING))
    (folder / "cases.json").write_text(json.dumps(cases))


def _tokenizer(texts, **rules):
    normalizer = normalizers.BertNormalizer(**rules)
    letters = sorted({letter for text in texts for letter in normalizer.normalize_str(text) + text} - {" "})
    words = ["the", "quick", "aa", "##aaa", "caf", "##ing", "don", "stop"]
    pieces = dict.fromkeys(["[UNK]", *words, *letters[::2], *(f"##{letter}" for letter in letters[1:])])
    vocabulary = {piece: place for place, piece in enumerate(pieces)}
    made = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=100))
    made.normalizer, made.pre_tokenizer = normalizer, pre_tokenizers.BertPreTokenizer()
    return made


def _write_tokens(folder):
    rules = [
        {"clean_text": clean, "handle_chinese_chars": chinese, "strip_accents": accents, "lowercase": lowercase}
        for clean, chinese, accents, lowercase in [
            (True, True, None, True),
            (True, True, False, True),
            (False, True, True, False),
            (True, False, None, False),
        ]
    ]
    cases = []
    for one in rules:
        made = _tokenizer(TEXTS, **one)
        ids = [found.ids for found in made.encode_batch(TEXTS, add_special_tokens=False)]
        cases.append({"tokenizer": made.to_str(), "ids": ids})
    (folder / "tokens.json").write_text(json.dumps({"texts": TEXTS, "cases": cases}))


def _write_plans(folder):
    """An honest plan, and hostile ones, each with what a client must say."""
    create_plan_key(folder / "keys")
    create_plan_key(folder / "others")
    sign, other = (PlanSigner(folder / name / PLAN_KEY_FILE).sign for name in ("keys", "others"))
    plan, manifest = plans.plan_of()
    tokenizer = _tokenizer(["the cat sat on a mat"], lowercase=True).to_str().encode()
    model = plans.sent_values(manifest).tobytes()

    def case(name, error, change=lambda found: None, signed=sign, step=plan.step, finish=plan.finish):
        found = json.loads(plan.manifest)
        found["tokenizer"] = {"sha256": hashlib.sha256(tokenizer).hexdigest(), "bytes": len(tokenizer)}
        for part, content in (("step", step), ("finish", finish)):
            found["programs"][part] |= {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
        change(found)
        described = json.dumps(found).encode()
        offer = {"manifest": described, "signature": signed(described), "step": step, "finish": finish}
        offer |= {"tokenizer": tokenizer, "model": model}
        return {
            "name": name,
            "error": error,
            "offer": {part: base64.b64encode(content).decode() for part, content in offer.items()},
        }

    def forever(x):
        return jax.lax.while_loop(lambda c: c[0] >= 0, lambda c: (jnp.abs(c[0]) * 0.5,), (jnp.abs(x[0, 0]),))[0]

    shapes = program_of(lambda x: x + 1, jax.ShapeDtypeStruct((3,), jnp.float32))[0]
    large = replaced_step(manifest, lambda x: jnp.sum(jnp.broadcast_to(x[0, 0], (1 << 28,)) * jnp.arange(1 << 28)))
    hostile = [
        case("unsigned", "not signed", signed=lambda content: b""),
        case("another key", "not of a key", signed=other),
        case("altered", "not of a key", signed=lambda content: sign(content[:-1])),
        case("a custom call", "custom_call.*does not run", step=plans.portable(plans.CALLING)),
        case("other shapes", "takes other tensors than its manifest says", step=shapes),
        case("another program", "not the one", lambda found: found["programs"]["step"].update(sha256="00" * 32)),
        case("no program", "no bytecode", step=b"x" * 100),
        case(
            "no end",
            "more than 2 seconds|longer than",
            lambda found: found["limits"].update(call_seconds=2.0),
            step=replaced_step(manifest, forever),
        ),
        case("memory", "more memory", lambda found: found["limits"].update(memory_bytes=1 << 26), step=large),
        case("memory by word", "--memory-bytes", lambda found: found["limits"].update(memory_bytes=1 << 40)),
        case("time by word", "--call-seconds", lambda found: found["limits"].update(call_seconds=1e9)),
        case("version", "of version 2", lambda found: found.update(version=2)),
        case("shuffle", "shuffles by", lambda found: found["shuffle"].update(version=2)),
        case("batches", "step takes tokens 0", lambda found: found["batches"].update(batch_size=5)),
        case("state", "step takes state 0", lambda found: found["state"][0].update(shape=[1])),
        case("beginnings", "begins as a tensor", lambda found: found["state"][0].update(begins=1)),
        case("outputs", "step gives other", lambda found: found["programs"]["step"]["outputs"].pop()),
        case("role", "none of what", lambda found: found["programs"]["step"]["inputs"][0].update(role="files")),
        case("pieces", "as long as", lambda found: found["programs"]["finish"]["outputs"][1].update(shape=[9])),
        case("header", "header of an upload", lambda found: found["upload"].update(header="00" * 8)),
        case("negative", "a count", lambda found: found["programs"]["step"]["inputs"][0].update(shape=[-1])),
        case("dtype", "object", lambda found: found["programs"]["step"]["inputs"][0].update(dtype="object")),
        case("large batches", "at most", lambda found: found["batches"].update(batch_size=1 << 40)),
        case("no token", "number of a token", lambda found: found["batches"].update(pad=1 << 31)),
        case("dimensions", "65 dimensions", lambda found: found["state"][0].update(shape=[1] * 65)),
        case(
            "large tensors",
            "plan's tensors take",
            lambda found: found["download"]["tensors"].append({"name": "x", "shape": [1 << 40], "dtype": "float32"}),
        ),
        case("no limits", "cannot be read", lambda found: found.pop("limits")),
        *(
            case(
                f"a tokenizer of {size} bytes",
                "a count",
                lambda found, size=size: found["tokenizer"].update(bytes=size),
            )
            for size in (None, -1, 0, 1.5, "12", 1 << 53)
        ),
        case("no size of a tokenizer", "a count", lambda found: found["tokenizer"].pop("bytes")),
        case("tokenizer", "not the one that the plan names", lambda found: found["tokenizer"].update(sha256="0" * 64)),
    ]
    honest = case("honest", "")
    digest = hashlib.sha256(base64.b64decode(honest["offer"]["manifest"])).hexdigest()
    known = {"keys": (folder / "keys/plan.pub").read_text(), "honest": honest, "hostile": hostile}
    known["models"] = _models(SimpleNamespace(digest=digest), sign, other)
    (folder / "plans.json").write_text(json.dumps(known))


def _models(plan, sign, other):
    """A model of LiteRT that a server says to be a plan's, and others, each with what a client must say."""
    content, runtime = b"a model of LiteRT" * 100, ("litert", "litert", "1")

    def case(name, error, change=lambda found: None, signed=sign, purpose=MODULES, sent=content, of=plan):
        found = json.loads(statement_on(of, *runtime, content, content))
        change(found)
        statement = json.dumps(found).encode()
        offer = {"statement": statement, "signature": signed(statement, purpose), "content": sent}
        return {
            "name": name,
            "error": error,
            "offer": {part: base64.b64encode(content).decode() for part, content in offer.items()},
        }

    not_it, another = "is not the one that its statement names", "but this client takes those of"
    return [
        case("honest", "it is loaded"),
        case("unsigned", "statement on the plan's modules is not signed", signed=lambda *given: b""),
        case("another key", "not of a key", signed=other),
        case("signed as a plan", "not of a key", purpose=PLAN),
        case("altered", "not of a key", signed=lambda content, purpose: sign(content[:-1], purpose)),
        case("another plan", another, of=SimpleNamespace(digest="0" * 64)),
        case("another runtime", another, lambda found: found.update(runtime="iree")),
        case("another version", another, lambda found: found.update(runtime_version="2")),
        case("another target", another, lambda found: found.update(target="x86-64")),
        case("another format", another, lambda found: found.update(format="fedlm-plan")),
        case("truncated", not_it, sent=content[:-1]),
        case("longer", not_it, sent=content + b"x"),
        case("another of the same size", not_it, sent=content[::-1]),
        case("of a false size", not_it, lambda found: [one.update(bytes=7) for one in found["modules"].values()]),
        case(
            "too large",
            "but this client allows",
            lambda found: [one.update(bytes=1 << 40) for one in found["modules"].values()],
        ),
        case("two models", "names two models", lambda found: found["modules"]["finish"].update(sha256="0" * 64)),
        case("no modules", "cannot be read", lambda found: found.update(modules=None)),
    ]


def test_messages_in_typescript_are_those_of_the_protocol():
    # The generator leaves out names in JSON, which follow from the others.
    (described,) = re.findall(r'fileDesc\("([\w+/]+)"\)', (FOLDER / "src/messages_pb.ts").read_text())
    made = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(described + "=" * (-len(described) % 4)))
    expected = descriptor_pb2.FileDescriptorProto.FromString(messages_pb2.DESCRIPTOR.serialized_pb)
    expected.name = made.name
    assert made == expected


@pytest.mark.long
def test_typescript_gives_what_python_gives(tmp_path):
    if shutil.which("node") is None or not (FOLDER / "node_modules").exists():
        pytest.skip("Node, or TypeScript for it, is missing; `npm ci` in clients/javascript installs it")
    subprocess.run([FOLDER / "node_modules/.bin/tsc", "-p", FOLDER], check=True)
    for write in (_write, _write_tokens, _write_plans):
        write(tmp_path)
    shutil.copy(TABLE, tmp_path)
    words = ["node", "--test", str(FOLDER / "build/tests/")]
    done = subprocess.run(words, env=os.environ | {"PLAN_PROGRAMS": str(tmp_path)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
