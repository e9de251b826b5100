"""The models of the comparison in Keras 2.14, for TensorFlow Federated: the same shapes and the same numbers."""

import math

import numpy as np
import tensorflow as tf

from benchmarks.simulation.peers.task import Tree

HEADS = {"transformer_1m": 4, "transformer_11m": 8}


def create(name: str, params: Tree, length: int) -> tf.keras.Model:
    """Build a model by name, with the given parameters.

    Args:
      name: of a model whose kind is LSTM, CIFG or Transformer.
      params: its parameters, as fedlm has them.
      length: target tokens of a sequence.

    Returns:
      A model that maps int32 [batch, length] to logits.
    """
    vocabulary, width = params["embedding"]["table"].shape
    tokens = tf.keras.Input([length], dtype=tf.int32)
    tied = TiedEmbedding(vocabulary, width)
    x = tied(tokens)
    kind = name.partition("_")[0]
    if kind == "lstm":
        y = _lstm(params, x)
    elif kind == "cifg":
        y = _cifg(params, x)
    else:
        y = _transformer(params, x, HEADS[name])
    model = tf.keras.Model(tokens, tied(y, logits=True))
    tied.set_weights([params["embedding"]["table"], params["output_bias"]])
    return model


class TiedEmbedding(tf.keras.layers.Layer):
    """The embedding, and the output layer that shares its table."""

    def __init__(self, vocabulary: int, width: int):
        super().__init__()
        self.width = width
        self.table = self.add_weight("table", [vocabulary, width])
        self.bias = self.add_weight("bias", [vocabulary])

    def call(self, inputs: tf.Tensor, logits: bool = False) -> tf.Tensor:
        """Look tokens up, or score all tokens."""
        if logits:
            flat = tf.reshape(inputs, [-1, self.width])
            scores = tf.matmul(flat, self.table, transpose_b=True) + self.bias
            return tf.reshape(scores, [-1, inputs.shape[1], self.table.shape[0]])
        return tf.gather(self.table, inputs) * math.sqrt(self.width)


class CifgCell(tf.keras.layers.Layer):
    """A step of the recurrence; its inputs are already multiplied by the input's matrix."""

    def __init__(self, hidden: int, width: int):
        super().__init__()
        self.state_size, self.output_size = [width, hidden], width
        self.recurrent = self.add_weight("recurrent", [width, 3 * hidden])
        self.projection = self.add_weight("projection", [hidden, width])

    def call(self, inputs: tf.Tensor, states: list[tf.Tensor]) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Take one step."""
        h, c = states
        i, g, o = tf.split(inputs + tf.matmul(h, self.recurrent), 3, axis=-1)
        c = c + tf.sigmoid(i) * (tf.tanh(g) - c)
        h = tf.matmul(tf.sigmoid(o) * tf.tanh(c), self.projection)
        return h, [h, c]


class Attention(tf.keras.layers.Layer):
    """Causal self-attention of queries, keys and values that lie side by side in the last axis."""

    def __init__(self, heads: int):
        super().__init__()
        self.heads = heads

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Attend."""
        length, width = inputs.shape[1], inputs.shape[2] // 3
        split = tf.reshape(inputs, [-1, length, 3, self.heads, width // self.heads])
        q, k, v = tf.unstack(tf.transpose(split, [2, 0, 3, 1, 4]))
        scores = tf.matmul(q * (width // self.heads) ** -0.5, k, transpose_b=True)
        causal = np.tril(np.ones([length, length], bool))
        y = tf.matmul(tf.nn.softmax(tf.where(causal, scores, -1e9)), v)
        return tf.reshape(tf.transpose(y, [0, 2, 1, 3]), [-1, length, width])


def _lstm(params: Tree, x: tf.Tensor) -> tf.Tensor:
    recurrent = params["recurrent"]["kernel"]
    layer = tf.keras.layers.LSTM(recurrent.shape[0], return_sequences=True)
    y = layer(x)
    layer.set_weights([params["input"]["kernel"], recurrent, params["input"]["bias"]])
    return _dense(params["projection"], y)


def _cifg(params: Tree, x: tf.Tensor) -> tf.Tensor:
    layer = params["recurrent"]
    projection = layer["projection"]["kernel"]
    cell = CifgCell(*projection.shape)
    y = tf.keras.layers.RNN(cell, return_sequences=True)(_dense(layer["input"], x))
    cell.set_weights([layer["recurrent"]["kernel"], projection])
    return y


def _transformer(params: Tree, x: tf.Tensor, heads: int) -> tf.Tensor:
    x = x + _positions(x.shape[1], x.shape[2])
    for block in params["blocks"]:
        kernels = [block[name]["kernel"] for name in ("query", "key", "value")]
        joined = _dense({"kernel": np.concatenate(kernels, axis=1)}, _layer_norm(block["attention_norm"], x))
        x = x + _dense(block["attention_output"], Attention(heads)(joined))
        hidden = _dense(block["mlp_input"], _layer_norm(block["mlp_norm"], x), activation="relu")
        x = x + _dense(block["mlp_output"], hidden)
    return _layer_norm(params["final_norm"], x)


def _dense(layer: Tree, x: tf.Tensor, activation: str | None = None) -> tf.Tensor:
    dense = tf.keras.layers.Dense(layer["kernel"].shape[1], activation=activation, use_bias="bias" in layer)
    y = dense(x)
    dense.set_weights([layer[name] for name in ("kernel", "bias") if name in layer])
    return y


def _layer_norm(layer: Tree, x: tf.Tensor) -> tf.Tensor:
    norm = tf.keras.layers.LayerNormalization(epsilon=1e-6)
    y = norm(x)
    norm.set_weights([layer["scale"], layer["shift"]])
    return y


def _positions(length: int, width: int) -> np.ndarray:
    angle = np.arange(length)[:, None] * np.exp(-math.log(10_000.0) * np.arange(0, width, 2) / width)
    return np.concatenate([np.sin(angle), np.cos(angle)], axis=-1).astype(np.float32)
