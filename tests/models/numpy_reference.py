"""The architectures in float64 NumPy, one example, position and head at a time, as the papers write them."""

import functools

import numpy as np


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def si_sigmoid(x):
    positive = np.maximum(x, 0)
    return positive / positive.max() if positive.max() > 0 else 0 * x


def si_tanh(x):
    largest = np.abs(x).max()
    return x / largest if largest > 0 else 0 * x


def softmax(scores):
    exponentials = np.exp(scores - scores.max())
    return exponentials / exponentials.sum()


def normalised_relu(scores):
    positive = np.maximum(scores, 0)
    return positive / positive.sum() if positive.sum() > 0 else 0 * scores


def layer_norm(params, x):
    return (x - x.mean()) / np.sqrt(x.var() + 1e-6) * params["scale"] + params["shift"]


def position_encoding(position, width):
    """Vaswani et al. 2017, section 3.5, with all sines before all cosines."""
    half = width // 2
    out = np.zeros(width)
    for k in range(half):
        angle = position / 10_000 ** (2 * k / width)
        out[k], out[half + k] = np.sin(angle), np.cos(angle)
    return out


def unit_rms(x):
    return x / np.sqrt(np.mean(x**2)) if np.any(x) else 0 * x


def rms_norm(params, x):
    return unit_rms(x) * (1 + params["scale"])


def cifg_logits(params, tokens, gate=sigmoid, cell=np.tanh, final=lambda params, h: h):
    table = params["embedding"]["table"]
    output = params["output"]["table"] if "output" in params else table
    w, b = params["recurrent"]["input"]["kernel"], params["recurrent"]["input"]["bias"]
    r, p = params["recurrent"]["recurrent"]["kernel"], params["recurrent"]["projection"]["kernel"]
    hidden, width = p.shape
    logits = np.zeros((*tokens.shape, len(table)))
    for row, example in enumerate(tokens):
        h, c = np.zeros(width), np.zeros(hidden)
        for t, token in enumerate(example):
            z = w.T @ (np.sqrt(width) * table[token]) + r.T @ h + b
            i, g, o = gate(z[:hidden]), cell(z[hidden : 2 * hidden]), gate(z[2 * hidden :])
            c = (1 - i) * c + i * g
            h = p.T @ (o * cell(c))
            logits[row, t] = output @ final(params, h) + params["output_bias"]
    return logits


def layer_norm_cifg_logits(params, tokens):
    table, layer = params["embedding"]["table"], params["recurrent"]
    w, r, p = (layer[name]["kernel"] for name in ("input", "recurrent", "projection"))
    hidden, width = p.shape
    gate_norms = [
        {name: numbers[gate * hidden : (gate + 1) * hidden] for name, numbers in layer["gate_norm"].items()}
        for gate in range(3)
    ]
    logits = np.zeros((*tokens.shape, len(table)))
    for row, example in enumerate(tokens):
        h, c = np.zeros(width), np.zeros(hidden)
        for t, token in enumerate(example):
            z = (w.T @ (np.sqrt(width) * table[token]) + r.T @ h).reshape(3, hidden)
            i, g, o = (layer_norm(norm, gate) for norm, gate in zip(gate_norms, z, strict=True))
            c = (1 - sigmoid(i)) * c + sigmoid(i) * np.tanh(g)
            h = p.T @ (sigmoid(o) * np.tanh(layer_norm(layer["cell_norm"], c)))
            logits[row, t] = table @ h + params["output_bias"]
    return logits


def attention(block, x, heads, weights_of, drop=lambda weights: weights):
    length, width = x.shape
    size = width // heads
    q, k, v = (x @ block[name]["kernel"] for name in ("query", "key", "value"))
    weights = np.zeros((heads, length, length))
    for head in range(heads):
        columns = slice(head * size, (head + 1) * size)
        for t in range(length):
            scores = np.array([q[t, columns] @ k[s, columns] / np.sqrt(size) for s in range(t + 1)])
            weights[head, t, : t + 1] = weights_of(scores)
    weights = drop(weights)
    mixed = np.zeros((length, width))
    for head in range(heads):
        columns = slice(head * size, (head + 1) * size)
        mixed[:, columns] = weights[head] @ v[:, columns]
    return mixed @ block["attention_output"]["kernel"]


def transformer_logits(params, tokens, heads, weights_of=softmax, final=layer_norm):
    table = params["embedding"]["table"]
    width = table.shape[1]
    logits = np.zeros((*tokens.shape, len(table)))
    for row, example in enumerate(tokens):
        x = np.array([np.sqrt(width) * table[token] + position_encoding(t, width) for t, token in enumerate(example)])
        for block in params["blocks"]:
            x = x + attention(block, np.array([layer_norm(block["attention_norm"], y) for y in x]), heads, weights_of)
            for t in range(len(example)):
                inner = np.maximum(layer_norm(block["mlp_norm"], x[t]) @ block["mlp_input"]["kernel"], 0)
                x[t] = x[t] + inner @ block["mlp_output"]["kernel"]
        for t in range(len(example)):
            logits[row, t] = table @ final(params["final_norm"], x[t]) + params["output_bias"]
    return logits


def gru(layer, xs):
    """As the documentation of torch.nn.GRU writes it, with the second vector of biases zero."""
    hidden = layer["recurrent"]["kernel"].shape[0]
    r, z, n = (slice(k * hidden, (k + 1) * hidden) for k in range(3))
    w, b, u = layer["input"]["kernel"], layer["input"]["bias"], layer["recurrent"]["kernel"]
    u_r, u_z, u_n = u[:, r], u[:, z], u[:, n]
    h, found = np.zeros(hidden), []
    for x in xs:
        reset = sigmoid(w[:, r].T @ x + b[r] + u_r.T @ h)
        update = sigmoid(w[:, z].T @ x + b[z] + u_z.T @ h)
        candidate = np.tanh(w[:, n].T @ x + b[n] + reset * (u_n.T @ h))
        h = (1 - update) * candidate + update * h
        found.append(h)
    return found


def lstm(layer, xs):
    """As the documentation of torch.nn.LSTM writes it; the second bias of the forget gate is 1, others are 0."""
    hidden = layer["recurrent"]["kernel"].shape[0]
    w, b, u = layer["input"]["kernel"], layer["input"]["bias"], layer["recurrent"]["kernel"]
    h, c, found = np.zeros(hidden), np.zeros(hidden), []
    for x in xs:
        i, f, g, o = np.split(w.T @ x + b + u.T @ h, 4)
        c = sigmoid(f + 1) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        found.append(h)
    return found


def recurrent_recommender_logits(params, tokens, layer, drop=lambda x, row, place: x):
    table = params["embedding"]["table"]
    output = params["output"]["table"] if "output" in params else table
    logits = np.zeros((*tokens.shape, len(table)))
    for row, example in enumerate(tokens):
        xs = [np.sqrt(table.shape[1]) * table[token] for token in example]
        xs = drop(np.array(xs), row, 0)
        for number, parameters in enumerate(params["recurrent"]):
            xs = drop(np.array(layer(parameters, xs)), row, 1 + number)
        for t, x in enumerate(xs):
            logits[row, t] = output @ (params["projection"]["kernel"].T @ x + params["projection"]["bias"])
    return logits


def sasrec_logits(params, tokens, heads, drop=lambda x, row, place: x):
    table, positions = params["embedding"]["table"], params["positions"]["table"]
    output = params["output"]["table"] if "output" in params else table
    width = table.shape[1]
    logits = np.zeros((*tokens.shape, len(table)))
    for row, example in enumerate(tokens):
        x = np.array([np.sqrt(width) * (table[token] + positions[t]) for t, token in enumerate(example)])
        x = drop(x, row, 0)
        for layer, block in enumerate(params["blocks"]):
            without_output = block | {"attention_output": {"kernel": np.eye(width)}}
            normalised = np.array([layer_norm(block["attention_norm"], y) for y in x])
            weights = functools.partial(drop, row=row, place=3 * layer + 1)
            x = x + drop(attention(without_output, normalised, heads, softmax, weights), row, 3 * layer + 2)
            mlp, into, out_of = np.zeros_like(x), block["mlp_input"], block["mlp_output"]
            for t in range(len(example)):
                inner = into["kernel"].T @ layer_norm(block["mlp_norm"], x[t]) + into["bias"]
                mlp[t] = out_of["kernel"].T @ np.maximum(inner, 0) + out_of["bias"]
            x = x + drop(mlp, row, 3 * layer + 3)
        for t in range(len(example)):
            logits[row, t] = output @ layer_norm(params["final_norm"], x[t])
    return logits
