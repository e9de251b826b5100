"""Hostile models of LiteRT, each signed as an operator would, for the Python of `make litert`.

Its words are the folder of an exported plan, that of the key, where to write, and the plans that the models are said to
be of.
"""

import hashlib
import json
import sys
from pathlib import Path

import flatbuffers
from ai_edge_litert import schema_py_generated as schema

from fedlm.fl_core.deployment.plans.litert.folder import read_litert_plan, write_litert_plan
from fedlm.fl_core.deployment.plans.litert.model import LitertPlan
from fedlm.fl_core.deployment.security.plan_keys import PLAN_KEY_FILE, PlanSigner


def changed(model, change):
    """A model of which one function was changed, by what is called with the model and the definition of `train`."""
    read = schema.ModelT.InitFromPackedBuf(model, 0)
    change(read, next(one for one in read.signatureDefs if one.signatureKey == b"train"))
    builder = flatbuffers.Builder(len(model))
    builder.Finish(read.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def without_a_tensor(model, train):
    gone, graph = train.outputs.pop().tensorIndex, model.subgraphs[train.subgraphIndex]
    graph.outputs = [one for one in graph.outputs if one != gone]


def without_a_signature(model, train):
    train.signatureKey = b"other"


def of_another_shape(model, train):
    """Exchange two arguments, of which one has another shape."""
    tensors = model.subgraphs[train.subgraphIndex].tensors
    first = train.inputs[0]
    other = next(
        one for one in train.inputs if list(tensors[one.tensorIndex].shape) != list(tensors[first.tensorIndex].shape)
    )
    first.tensorIndex, other.tensorIndex = other.tensorIndex, first.tensorIndex


def too_large(model, train):
    """Begin with a tensor of 1.5 GiB."""
    graph, size = model.subgraphs[train.subgraphIndex], schema.BufferT()
    model.operatorCodes.append(_code(schema.BuiltinOperator.FILL))
    size.data = list((3 << 27).to_bytes(4, "little"))
    model.buffers.append(size)
    dimensions, made = _tensor(schema.TensorType.INT32, len(model.buffers) - 1), _tensor(schema.TensorType.FLOAT32)
    dimensions.shape, made.shape = [1], [3 << 27]
    graph.tensors += [dimensions, made]
    fill, place = schema.OperatorT(), len(graph.tensors)
    fill.opcodeIndex, fill.inputs, fill.outputs = len(model.operatorCodes) - 1, [place - 2, _rate(train)], [place - 1]
    fill.builtinOptionsType, fill.builtinOptions = schema.BuiltinOptions.FillOptions, schema.FillOptionsT()
    graph.operators.insert(0, fill)


def failing(model, train):
    """Begin with an index beyond the end of `weight`."""
    graph, index = model.subgraphs[train.subgraphIndex], schema.BufferT()
    model.operatorCodes.append(_code(schema.BuiltinOperator.GATHER))
    index.data = list((99).to_bytes(4, "little"))
    model.buffers.append(index)
    graph.tensors += [_tensor(schema.TensorType.INT32, len(model.buffers) - 1), _tensor(schema.TensorType.FLOAT32)]
    gather, place = schema.OperatorT(), len(graph.tensors)
    weight = next(one.tensorIndex for one in train.inputs if one.name == b"weight")
    gather.opcodeIndex, gather.inputs, gather.outputs = len(model.operatorCodes) - 1, [weight, place - 2], [place - 1]
    gather.builtinOptionsType, gather.builtinOptions = schema.BuiltinOptions.GatherOptions, schema.GatherOptionsT()
    graph.operators.insert(0, gather)


def without_end(model, train):
    """Begin with a loop whose condition is true."""
    model.operatorCodes.append(_code(schema.BuiltinOperator.WHILE))
    model.operatorCodes.append(_code(schema.BuiltinOperator.ADD))
    yes = schema.BufferT()
    yes.data = [1]
    model.buffers.append(yes)
    condition, body = len(model.subgraphs), len(model.subgraphs) + 1
    model.subgraphs += [
        _graph([_tensor(schema.TensorType.FLOAT32), _tensor(schema.TensorType.BOOL, len(model.buffers) - 1)], [0], [1]),
        _graph([_tensor(schema.TensorType.FLOAT32)] * 2, [0], [1]),
    ]
    add = schema.OperatorT()
    add.opcodeIndex, add.inputs, add.outputs = len(model.operatorCodes) - 1, [0, 0], [1]
    add.builtinOptionsType, add.builtinOptions = schema.BuiltinOptions.AddOptions, schema.AddOptionsT()
    model.subgraphs[body].operators = [add]
    graph = model.subgraphs[train.subgraphIndex]
    graph.tensors.append(_tensor(schema.TensorType.FLOAT32))
    loop = schema.OperatorT()
    loop.opcodeIndex, loop.inputs, loop.outputs = len(model.operatorCodes) - 2, [_rate(train)], [len(graph.tensors) - 1]
    loop.builtinOptionsType, loop.builtinOptions = schema.BuiltinOptions.WhileOptions, schema.WhileOptionsT()
    loop.builtinOptions.condSubgraphIndex, loop.builtinOptions.bodySubgraphIndex = condition, body
    graph.operators.insert(0, loop)


def _rate(train):
    return next(one.tensorIndex for one in train.inputs if one.name == b"learning_rate")


def _code(number):
    made = schema.OperatorCodeT()
    made.builtinCode, made.deprecatedBuiltinCode, made.version = number, min(number, 127), 1
    return made


def _tensor(kind, buffer=0):
    made = schema.TensorT()
    made.shape, made.type, made.buffer = [], kind, buffer
    return made


def _graph(tensors, inputs, outputs):
    made = schema.SubGraphT()
    made.tensors, made.inputs, made.outputs, made.operators = tensors, inputs, outputs, []
    return made


def main(folder, keys, out, *plans):
    found, signer = read_litert_plan(Path(folder)), PlanSigner(Path(keys) / PLAN_KEY_FILE)
    model, tokenizer = found.plan.model, (Path(folder) / "tokenizer.json").read_bytes()
    hostile = {"garbage": b"TFL3" * 1000, "cut": model[: len(model) // 2]}
    for change in (without_a_tensor, without_a_signature, of_another_shape, failing, too_large, without_end):
        hostile[change.__name__] = changed(model, change)
    for name, content in hostile.items():
        described = {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
        manifest = json.dumps(found.manifest | {"model": described, "plans": plans}).encode()
        write_litert_plan(Path(out) / name / "litert", LitertPlan(manifest, content), signer.sign(manifest), tokenizer)


if __name__ == "__main__":
    main(*sys.argv[1:])
