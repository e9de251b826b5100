"""TypeScript under clients/javascript gives what Python gives: training by plans, tokens; and refuses what it must."""

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from fedlm.fedlm_client import messages_pb2
from fedlm.fedlm_client.plans.confined import LoadedPlan
from fedlm.fl_core.deployment.security.plan_keys import PLAN_KEY_FILE, PlanSigner, create_plan_key
from tests.clients.rules import RULES, TABLE
from tests.support import hostile_models, plans

FOLDER = Path(__file__).parents[2] / "clients/javascript"
CASES = (
    {"upload_bits": 8},
    {"model": "si_cifg_tiny", "upload_bits": 16},
    {"client_algorithm": "mime_lite", "upload_bits": 32},
    {"client_algorithm": "evaluate", "update_clip_norm": 1.0, "upload_bits": 32},
    {"model": "gru4rec", "dropout": 0.2, "upload_bits": 32},
)


def _encoded(content):
    return base64.b64encode(content).decode()


class _Noted:
    """A trainer whose steps are noted."""

    def __init__(self, trainer):
        self._trainer, self.steps = trainer, []
        self.begin, self.finish = trainer.begin, trainer.finish

    def step(self, tokens, weight, random, rate):
        given = {"tokens": tokens, "weight": weight, "random": random}
        self.steps.append({name: one.ravel().tolist() for name, one in given.items()})
        self._trainer.step(tokens, weight, random, rate)


def _write(folder):
    cases = {}
    for settings in CASES:
        plan, manifest = plans.plan_of(**settings)
        values = plans.sent_values(manifest)
        with LoadedPlan(manifest, plan.manifest, plan.model) as trainer:
            noted = _Noted(trainer)
            sums, body = plans.train(noted, manifest, values, plans.examples(11, manifest.batches.length))
        cases[str(settings)] = {
            "manifest": _encoded(plan.manifest),
            "model": _encoded(plan.model),
            "values": values.tolist(),
            "steps": noted.steps,
            "rate": plans.RATE,
            "stream": [plans.SEED, plans.ROUND, plans.CLIENT],
            "sums": sums,
            "body": _encoded(body),
        }
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
        made = _tokenizer(RULES["tokens"], **one)
        ids = [found.ids for found in made.encode_batch(RULES["tokens"], add_special_tokens=False)]
        cases.append({"tokenizer": made.to_str(), "ids": ids})
    (folder / "tokens.json").write_text(json.dumps({"texts": RULES["tokens"], "cases": cases}))


def _write_plans(folder):
    """An honest plan, and hostile ones, each with what a client must say."""
    create_plan_key(folder / "keys")
    create_plan_key(folder / "others")
    sign, other = (PlanSigner(folder / name / PLAN_KEY_FILE).sign for name in ("keys", "others"))
    plan, manifest = plans.plan_of()
    tokenizer = _tokenizer(["the cat sat on a mat"], lowercase=True).to_str().encode()
    parameters = plans.sent_values(manifest).tobytes()

    def case(name, error, change=lambda found: None, signed=sign, model=plan.model):
        if callable(model):
            model = hostile_models.changed(plan.model, model)
        found = json.loads(plan.manifest)
        found["tokenizer"] = {"sha256": hashlib.sha256(tokenizer).hexdigest(), "bytes": len(tokenizer)}
        found["model"] = {"sha256": hashlib.sha256(model).hexdigest(), "bytes": len(model)}
        change(found)
        described = json.dumps(found).encode()
        offer = {"manifest": described, "signature": signed(described), "model": model}
        offer |= {"tokenizer": tokenizer, "parameters": parameters}
        return {"name": name, "error": error, "offer": {part: _encoded(content) for part, content in offer.items()}}

    quick = lambda found: found["limits"].update(call_seconds=2.0)  # noqa: E731
    hostile = [
        case("unsigned", "not signed", signed=lambda content: b""),
        case("another key", "not by a key", signed=other),
        case("altered", "not by a key", signed=lambda content: sign(content[:-1])),
        case("another model", "not the one", lambda found: found["model"].update(sha256="00" * 32)),
        case("no model", "does not run", model=b"TFL3" * 1000),
        case("half a model", "does not run", model=plan.model[: len(plan.model) // 2]),
        case("no signature", "lacks one of the signatures", model=hostile_models.without_a_signature),
        case("no tensor", "as no tensor, but its manifest as", model=hostile_models.without_a_tensor),
        case("other shapes", r"takes state/\w+ as float32\[", model=hostile_models.of_another_shape),
        case("a failing call", r"does not run \(ERROR: ", model=hostile_models.failing),
        case("other code", "does not run", model=hostile_models.calling),
        case("no end", "more than 2 seconds", quick, model=hostile_models.without_end),
        case("memory", "more memory", model=hostile_models.too_large),
        case("memory by word", "--memory-bytes", lambda found: found["limits"].update(memory_bytes=1 << 40)),
        case("time by word", "--call-seconds", lambda found: found["limits"].update(call_seconds=1e9)),
        *(case(f"manifest {n}", why, change) for n, (change, why) in enumerate(hostile_models.MANIFESTS)),
        case(
            "large tensors",
            "plan's tensors take",
            lambda found: found["download"]["tensors"].append({"name": "x", "shape": [1 << 40], "dtype": "float32"}),
        ),
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
    known = {"keys": (folder / "keys/plan.pub").read_text(), "honest": honest, "hostile": hostile}
    (folder / "plans.json").write_text(json.dumps(known))


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
