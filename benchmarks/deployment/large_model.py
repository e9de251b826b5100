"""The memory of a server whose model is large: rounds of a few clients, with a checkpoint after each, over TLS.

Server and clients are processes on loopback. Clients train nothing: they download float32 and upload float32, all at
once. Memory is the server's resident set at its peak, in models of float32: less what it was before there was a model
(Python, JAX and their libraries), and as a whole. The server's optimizer is FedAvg, which has no state.

    python -m benchmarks.deployment.large_model
    python -m benchmarks.deployment.large_model --parameters 850_000_000 --clients 6

Uploads and downloads take the disk: one model for each client that sends, and one for the download.
"""

import argparse
import contextlib
import json
import tempfile
from pathlib import Path
from typing import Any

import jax
import numpy as np
from isal import isal_zlib

from benchmarks.deployment import load, servers
from benchmarks.deployment.processes import Worker
from benchmarks.deployment.rounds import make_keys
from benchmarks.deployment.shapes import Shape, model_of
from benchmarks.machine import describe_machine
from fedlm.fl_core.atomic_files import write_atomically
from fedlm.fl_core.updates.registry import make_compressor
from fedlm.fl_core.updates.update_bytes import upload_header

RESULTS = Path(__file__).parent / "results" / "large_model.json"
_BLOCK = 1 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=int, nargs="+", default=[250_000_000], help="of the models")
    parser.add_argument("--clients", type=int, nargs="+", default=[2, 6], help="of a round, by turns")
    parser.add_argument("--rounds", type=int, default=2, help="of each")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the numbers go")
    arguments = parser.parse_args()
    found = [
        measure(parameters, clients, arguments.rounds)
        for parameters in arguments.parameters
        for clients in arguments.clients
    ]
    text = json.dumps({"machine": describe_machine(), "rounds": found}, indent=2)
    write_atomically(arguments.results, text + "\n")
    print(text)


def measure(parameters: int, clients: int, rounds: int) -> dict[str, Any]:
    """Run rounds, and say what memory the server took at most.

    Args:
      parameters: of the model.
      clients: of a round.
      rounds: how many.

    Returns:
      A tree for JSON.
    """
    shape = Shape("large", parameters, clients, clients, 32, "fedavg", 1)
    with contextlib.ExitStack() as stack:
        keys = make_keys(Path(stack.enter_context(tempfile.TemporaryDirectory())), shape)
        server = stack.enter_context(contextlib.closing(Worker(servers.fedlm, shape, 0.2, keys)))
        arguments = (server.first["port"], shape, _upload(parameters), keys)
        loading = stack.enter_context(contextlib.closing(Worker(load.rounds, *arguments)))
        accepted = [loading.ask("round", seconds=3600)["accepted"] for _ in range(rounds)]
        # The next round is offered once the last checkpoint is on disk.
        loading.send("round")
        loading.wait(3600)
        peak, before = server.peak_memory(), server.first["memory"]
    size = 4 * parameters
    return {
        "parameters": parameters,
        "clients": clients,
        "accepted": accepted,
        "mib_before": round(before / 2**20, 1),
        "peak_mib": round(peak / 2**20, 1),
        "models_beside_libraries": round((peak - before) / size, 3),
        "models_in_all": round(peak / size, 3),
    }


def _upload(parameters: int) -> load.Repeated:
    like = jax.eval_shape(model_of(parameters).init, jax.random.key(0))
    block = (1e-6 * np.random.default_rng(0).standard_normal(_BLOCK)).astype(np.float32).tobytes()
    upload = load.Repeated(upload_header(make_compressor("float32"), like), block, 4 * parameters, b"")
    checksum = 0
    for piece in upload.pieces():
        checksum = isal_zlib.crc32(piece, checksum)
    return upload._replace(tail=checksum.to_bytes(4, "little"))


if __name__ == "__main__":
    main()
