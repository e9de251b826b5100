"""What a link between two namespaces gives to a plain TCP connection: its round trip, and bits a second.

python -m benchmarks.simulation.link_check serve ADDRESS
python -m benchmarks.simulation.link_check ask ADDRESS SECONDS
"""

import json
import socket
import statistics
import sys
import time

PORT = 12399
PINGS = 21


def serve(address: str) -> None:
    """Answer one connection: its single bytes at once, and what follows them by nothing."""
    with socket.create_server((address, PORT)) as server:
        print("ready", flush=True)
        connection, _ = server.accept()
        with connection:
            for _ in range(PINGS):
                connection.sendall(connection.recv(1))
            while connection.recv(1 << 20):
                pass


def ask(address: str, seconds: float) -> None:
    """Time single bytes there and back, then send for some seconds; the second half counts, when the connection has
    found its rate."""
    with socket.create_connection((address, PORT)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        trips = []
        for _ in range(PINGS):
            started = time.perf_counter()
            connection.sendall(b"x")
            connection.recv(1)
            trips.append(time.perf_counter() - started)
        started, halfway, sent = time.perf_counter(), 0.0, 0
        block = bytes(1 << 18)
        while (now := time.perf_counter()) < started + seconds:
            if not halfway and now > started + seconds / 2:
                halfway, sent = now, 0
            connection.sendall(block)
            sent += len(block)
        rate = sent / (time.perf_counter() - halfway)
    found = {"round_trip_ms": round(1e3 * statistics.median(trips), 3), "megabits": round(8e-6 * rate, 1)}
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    serve(sys.argv[2]) if sys.argv[1] == "serve" else ask(sys.argv[2], float(sys.argv[3]))
