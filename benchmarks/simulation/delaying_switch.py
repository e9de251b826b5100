"""A switch that delays what passes: it reads the frames of each port and sends them on after a fixed time.

The kernel hands over several packets of a TCP connection as one frame of up to 64 KiB and takes them back as one, so
that a gigabit a second is some 2,000 frames. Frames go by the last byte of their hardware address: 1 is port 0.

    python -m benchmarks.simulation.delaying_switch PORTS SECONDS    (in a namespace with port0, port1, ...)
"""

import collections
import contextlib
import os
import select
import socket
import sys
import time

ETH_P_ALL = 0x0003
SOL_PACKET, PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING = 263, 15, 23
SO_RCVBUFFORCE, SO_SNDBUFFORCE = 33, 32
HEADER_BYTES = 10
"""Of what the kernel puts before a frame: how it is to be cut into packets, and where checksums are missing."""
GREATEST_FRAME_BYTES = 128 << 10
BUFFER_BYTES = 64 << 20
SPIN_SECONDS = 60e-6
"""Before a frame is due, that the switch waits awake: sleeping takes about as much longer than asked for."""


def destination(frame: bytes, ports: int) -> int | None:
    """Say to which port a frame goes.

    Args:
      frame: with the kernel's header before it.
      ports: how many there are.

    Returns:
      The port, counted from 0; None for a frame to nobody here.
    """
    address = frame[HEADER_BYTES : HEADER_BYTES + 6]
    port = address[5] - 1 if len(address) == 6 and address[:5] == b"\x02\0\0\0\0" else -1
    return port if 0 <= port < ports else None


def open_port(port: int) -> socket.socket:
    """Open the raw socket of an interface `portN`."""
    opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    opened.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    opened.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    opened.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER_BYTES)
    opened.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, BUFFER_BYTES)
    opened.bind((f"port{port}", 0))
    opened.setblocking(False)
    return opened


def main(ports: int, delay: float) -> None:
    sockets = [open_port(port) for port in range(ports)]
    waiting: collections.deque[tuple[float, int, bytes]] = collections.deque()
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    print("ready", flush=True)
    while True:
        left = waiting[0][0] - time.monotonic() - SPIN_SECONDS if waiting else None
        readable = select.select(sockets, [], [], left if left is None else max(0.0, left))[0]
        for one in readable:
            receive(one, waiting, ports, delay)
        while waiting and waiting[0][0] <= time.monotonic():
            _, port, frame = waiting.popleft()
            # A full queue drops the frame, as a switch does.
            with contextlib.suppress(BlockingIOError, OSError):
                sockets[port].send(frame)


def receive(
    port: socket.socket, waiting: "collections.deque[tuple[float, int, bytes]]", ports: int, delay: float
) -> None:
    """Take the frames that lie at a port, up to 64, and note when each is due, in their order."""
    for _ in range(64):
        try:
            frame = port.recv(GREATEST_FRAME_BYTES)
        except BlockingIOError:
            return
        to = destination(frame, ports)
        if to is not None:
            waiting.append((time.monotonic() + delay, to, frame))


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
