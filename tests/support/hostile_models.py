"""Models of LiteRT that are not what a plan says, or do what a client must not let them."""

import hashlib
import json

import flatbuffers
import pytest

from fedlm.fl_core.deployment.plans.plan import Plan

schema = pytest.importorskip(
    "ai_edge_litert.schema_py_generated", reason="ai-edge-litert is not installed; `make` installs it"
)


def _of(part):
    """Changes a part of a manifest, which a function finds."""
    return lambda **changes: lambda found: part(found).update(changes)


_batches, _state = _of(lambda found: found["batches"]), _of(lambda found: found["state"][0])
_input = _of(lambda found: found["signatures"]["train"]["inputs"][0])
MANIFESTS = [
    (lambda found: found.update(version=2), "of version 2"),
    (lambda found: found["shuffle"].update(version=2), "shuffles by"),
    (_batches(batch_size=5), "train takes tokens 0"),
    (_batches(batch_size=1 << 40), "at most"),
    (_batches(pad=1 << 31), "a count|number of a token"),
    (_state(shape=[1]), "train takes state 0"),
    (_state(begins=1), "begins as a tensor"),
    (_state(shape=[1] * 65), "65 dimensions"),
    (_input(role="files"), "which this client does not have"),
    (_input(shape=[-1]), "a count"),
    (_input(dtype="object"), "object"),
    (lambda found: found["signatures"]["train"]["outputs"].pop(), "train gives the wrong tensors"),
    (lambda found: found["signatures"]["finish"]["outputs"][1].update(shape=[9]), "as long as"),
    (lambda found: found["upload"].update(header="00" * 8), "header of an upload"),
    (lambda found: found.pop("limits"), "cannot be read"),
]
"""Changes of a manifest after which it contradicts itself, with what every client says then."""


def hostile(plan, change, **limits):
    """A plan with another model, which its manifest names, and other limits."""
    model = change if isinstance(change, bytes) else changed(plan.model, change)
    manifest = json.loads(plan.manifest)
    manifest["model"] = {"sha256": hashlib.sha256(model).hexdigest(), "bytes": len(model)}
    manifest["limits"] |= limits
    return Plan(json.dumps(manifest).encode(), model)


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
    size = _constant(model, 3 << 27)
    _begin(model, train, "BROADCAST_TO", [_rate(train), size], [3 << 27], code_version=2)


def failing(model, train):
    """Begin with an index beyond the end of `weight`."""
    index = _constant(model, 99)
    weight = next(one.tensorIndex for one in train.inputs if one.name == b"weight")
    _begin(model, train, "GATHER", [weight, index], [1])


def slow(model, train):
    """Begin with arithmetic that takes a core for minutes."""
    size = _constant(model, 1 << 20)
    place = _begin(model, train, "BROADCAST_TO", [_rate(train), size], [1 << 20], code_version=2)
    for number in range(10_000):
        place = _begin(model, train, "POW", [place, place], [1 << 20], at=number + 1)


def keeping(model, train):
    """Begin with a variable, which could keep what a step was given for the next."""
    name = schema.VarHandleOptionsT()
    name.container, name.sharedName = b"", b"kept"
    _begin(model, train, "VAR_HANDLE", [], [], options=name)


def calling(model, train):
    """Begin with code that is none of LiteRT's."""
    _begin(model, train, "CUSTOM", [_rate(train)], [])
    model.operatorCodes[-1].customCode = b"ReadsFiles"


def reading_files(model, train):
    """Have constants in another file."""
    group = schema.ExternalBufferGroupT()
    group.name = b"/etc/passwd"
    model.externalBufferGroups = [group]


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


def _constant(model, number):
    """A tensor of one number in each function, the last of those that it has; gives its place in `train`."""
    buffer = schema.BufferT()
    buffer.data = list(number.to_bytes(4, "little"))
    model.buffers.append(buffer)
    graph = _graph_of_train(model)
    made = _tensor(schema.TensorType.INT32, len(model.buffers) - 1)
    made.shape = [1]
    graph.tensors.append(made)
    return len(graph.tensors) - 1


def _begin(model, train, name, inputs, shape, at=0, code_version=1, options=None):
    """Have `train` begin with an operation; gives the place of its result."""
    graph = model.subgraphs[train.subgraphIndex]
    code = _code(getattr(schema.BuiltinOperator, name))
    code.version = code_version
    model.operatorCodes.append(code)
    made, operator = _tensor(schema.TensorType.FLOAT32), schema.OperatorT()
    made.shape = shape
    graph.tensors.append(made)
    operator.opcodeIndex, operator.inputs = len(model.operatorCodes) - 1, inputs
    operator.outputs = [len(graph.tensors) - 1]
    kind = f"{''.join(map(str.capitalize, name.split('_')))}Options"
    if options is None and hasattr(schema, f"{kind}T"):
        options = getattr(schema, f"{kind}T")()
    if options is not None:
        operator.builtinOptionsType, operator.builtinOptions = getattr(schema.BuiltinOptions, kind), options
    graph.operators.insert(at, operator)
    return operator.outputs[0]


def _graph_of_train(model):
    return model.subgraphs[next(one for one in model.signatureDefs if one.signatureKey == b"train").subgraphIndex]


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
