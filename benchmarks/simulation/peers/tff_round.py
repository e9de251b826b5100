"""Contestant: TensorFlow Federated's weighted federated averaging, in the reference environment, of a Keras model.

Usage: python -m benchmarks.simulation.peers.tff_round TASK [CONCURRENT_CALLS]
"""

import os
import sys

from benchmarks.simulation.peers.protocol import RoundAnswer, private_standard_output, serve, timed
from benchmarks.simulation.peers.task import Task, load_task

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


class TffRound:
    """`build_weighted_fed_avg` on the default local executor."""

    variants = ("tff",)
    packages = ("tensorflow-federated", "tensorflow", "keras", "numpy")

    def __init__(self, task: Task, concurrent_calls: int):
        import tensorflow as tf
        import tensorflow_federated as tff

        from benchmarks.simulation.peers.keras_models import create

        settings, length = task.settings, task.evaluation.shape[1] - 1
        calls = "any number of" if concurrent_calls < 0 else concurrent_calls
        self.configuration = f"C++ executor in a process of its own (the default), {calls} concurrent calls"
        tff.backends.native.set_sync_local_cpp_execution_context(max_concurrent_computation_calls=concurrent_calls)
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self._model = create(settings.model, task.params, length)
        # Traced before TensorFlow Federated makes models in graphs of its own, which spoils the classes of Keras for
        # whoever calls a model eagerly later.
        inputs, targets = task.evaluation[:, :-1], task.evaluation[:, 1:]
        self._loss = tf.function(lambda: loss(targets, self._model(inputs))).get_concrete_function()
        spec = tuple(tf.TensorSpec([None, length], tf.int32) for _ in range(2))

        def model_fn() -> tff.learning.models.VariableModel:
            model = create(settings.model, task.params, length)
            return tff.learning.models.from_keras_model(model, loss, input_spec=spec)

        self._process = tff.learning.algorithms.build_weighted_fed_avg(
            model_fn,
            client_optimizer_fn=tff.learning.optimizers.build_sgdm(settings.learning_rate),
            server_optimizer_fn=tff.learning.optimizers.build_sgdm(1.0),
        )
        weights = tff.learning.models.ModelWeights.from_model(self._model)
        self._state = self._process.set_model_weights(self._process.initialize(), weights)
        self._data = [
            tf.data.Dataset.from_tensor_slices((rows[:, :-1], rows[:, 1:]))
            .shuffle(len(rows))
            .batch(settings.batch_size)
            for rows in task.clients
        ]
        self._steps = task.steps

    def run_round(self, variant: str) -> RoundAnswer:
        """See `protocol.Contestant`."""
        seconds, output = timed(lambda: self._process.next(self._state, self._data))
        self._process.get_model_weights(output.state).assign_weights_to(self._model)
        return RoundAnswer(seconds, self._steps, float(self._loss()))


def main(path: str, concurrent_calls: str = "-1") -> None:
    answers = private_standard_output()
    serve(TffRound(load_task(path), int(concurrent_calls)), sys.stdin, answers)


if __name__ == "__main__":
    main(*sys.argv[1:])
