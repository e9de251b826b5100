"""What is particular to PowerSGD: what arrives is a projection of what was sent; see also the suite for all."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedlm.fl_core.deployment.server.reports.streaming_sum import Report, StreamingSum, SumSettings
from fedlm.fl_core.rounds.aggregation import AggregationRules
from fedlm.fl_core.rounds.local_sgd import TrainingSums, global_norm
from fedlm.fl_core.updates.compressors import compress_update, decompress_update
from fedlm.fl_core.updates.power_sgd import Factors, PowerSgd
from fedlm.fl_core.updates.update_bytes import pack_update


def received(rank, values, key=0):
    compressor, key = PowerSgd(rank), jax.random.key(key)
    (found,) = decompress_update(compressor, key, compress_update(compressor, key, [values]), [values])
    return np.asarray(found, np.float64)


def with_spectrum(rows, columns, values):
    """A matrix of these singular values."""
    rng = np.random.default_rng(0)
    left, _ = np.linalg.qr(rng.normal(size=(rows, len(values))))
    right, _ = np.linalg.qr(rng.normal(size=(columns, len(values))))
    return (left * values) @ right.T, left, right


@pytest.mark.long
@pytest.mark.parametrize("shape", [(60, 25), (30, 4, 12)])
def test_a_matrix_of_no_higher_rank_arrives_as_it_was(shape):
    matrix, _, _ = with_spectrum(shape[0], int(np.prod(shape[1:])), [3.0, 1.0])
    sent = matrix.reshape(shape).astype(np.float32)
    for rank in (2, 4):
        np.testing.assert_allclose(received(rank, sent), sent, atol=1e-5)


@pytest.mark.long
def test_what_arrives_is_a_projection_and_nearly_the_best_of_its_rank():
    spectrum = 0.5 ** np.arange(20)
    matrix, _, _ = with_spectrum(50, 40, spectrum)
    for rank in (1, 4):
        best = np.sqrt(np.square(spectrum[rank:]).sum())
        errors = []
        for key in range(20):
            found = received(rank, matrix.astype(np.float32), key)
            errors.append(np.linalg.norm(matrix - found))
            found_and_lost = np.linalg.norm(found) ** 2 + errors[-1] ** 2
            np.testing.assert_allclose(found_and_lost, np.square(spectrum).sum(), rtol=1e-5)
        assert best * 0.999 < np.median(errors) < 4 * best


def test_the_mean_over_clients_is_biased_towards_leading_directions():
    matrix, left, right = with_spectrum(30, 20, [1.0, 0.5, 0.1])
    mean = np.mean([received(1, matrix.astype(np.float32), key) for key in range(200)], axis=0)
    kept = np.diag(left.T @ mean @ right) / [1.0, 0.5, 0.1]
    assert 1 > kept[0] > kept[1] > kept[2] > 0
    assert kept[0] > 0.6
    assert kept[2] < 0.1


def test_what_factors_make_no_smaller_travels_as_it_is():
    rng = np.random.default_rng(1)
    for shape in ((), (7,), (1, 50), (50, 1), (3, 5)):
        values = rng.normal(size=shape).astype(np.float32)
        np.testing.assert_array_equal(received(4, values), values)
        assert PowerSgd(4).packed_bytes(shape) == 4 * values.size
    assert PowerSgd(4).packed_bytes((100, 30, 2)) == 4 * 4 * (100 + 60)


def test_factors_that_a_client_makes_up_are_clipped_by_the_norm_of_their_product():
    """They need not be orthonormal; and where terms cancel, what is left of them counts."""
    rng = np.random.default_rng(2)
    first, second = rng.normal(size=30), rng.normal(size=20)
    for share in (1.0, 1e-3, 1e-6):
        basis = 1e4 * np.stack([first, first + share * rng.normal(size=30)], axis=1).astype(np.float32)
        coefficients = 1e4 * np.stack([second, -second], axis=1).astype(np.float32)
        like = {"x": jnp.zeros((30, 20))}
        total = StreamingSum(SumSettings(like, PowerSgd(2), AggregationRules("uniform")), jax.random.key(0), 0.5)
        content = pack_update(PowerSgd(2), [Factors(jnp.asarray(basis), jnp.asarray(coefficients))], like)
        total.add(Report(0, content, 1, TrainingSums(1.0, 1.0, 1.0)))
        assert 0.49 < float(global_norm(total.finish().delta)) <= 0.5 * 1.0001
