"""Hosts on one machine: network namespaces that a switch connects, with a rate and a delay of the link of each.

Every host is a namespace with a loopback and one interface, `eth0`, whose other end lies in the switch's namespace.
The rate is set by `tc` at both ends of each link (`tbf`). Where there is no delay, the switch is a bridge of the
kernel; otherwise it is `delaying_switch`, since not every kernel has the queue `netem`. Nothing connects a namespace
with the network of the machine.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

PREFIX = "fedlm-hosts"
BURST_BYTES = 128 << 10
"""Of a bucket: more than the kernel hands over at once (64 KiB), so that `tbf` need not cut it up."""
LEAST_QUEUE_BYTES = 1 << 20
ROOT = Path(__file__).parents[2]
_FILES = Path("/etc/netns")
CONGESTION_CONTROL = "reno"
"""Of the namespaces' TCP: it reacts to losses, as cubic does, and the kernel offers it in every namespace."""
_WITHOUT_IPV6 = "for one in all default; do test ! -d $0/$one || echo 1 > $0/$one/disable_ipv6; done"


class NamespaceError(Exception):
    """There can be no hosts on this machine; the message says why."""


@dataclass(frozen=True)
class Link:
    """What connects a host with the switch.

    Attributes:
      name: for tables.
      megabits: that pass in a second each way; None where nothing limits them.
      round_trip_ms: delay that is added from a host to another and back, in milliseconds.
    """

    name: str
    megabits: float | None = None
    round_trip_ms: float = 0.0

    @property
    def queue_bytes(self) -> int:
        """Bytes that may wait at an end of the link: what is under way in a round trip, and at least 1 MiB."""
        return max(LEAST_QUEUE_BYTES, int((self.megabits or 0) * 125 * self.round_trip_ms))


class Counters(NamedTuple):
    """Bytes that an interface has received and sent since it was made."""

    received: int
    sent: int


def parse_counters(text: str) -> dict[str, Counters]:
    """Read `/proc/net/dev`.

    Args:
      text: its lines: two of a heading, then `NAME: received_bytes (7 more of receiving) sent_bytes ...`.

    Returns:
      The counters of each interface.

    Raises:
      ValueError: a line has another form.
    """
    counters = {}
    for line in text.splitlines()[2:]:
        name, colon, rest = line.partition(":")
        numbers = rest.split()
        if not colon or len(numbers) != 16:
            raise ValueError(f"no line of /proc/net/dev: {line!r}")
        counters[name.strip()] = Counters(int(numbers[0]), int(numbers[8]))
    return counters


def read_counters() -> dict[str, Counters]:
    """Read the counters of the namespace that this process is in."""
    return parse_counters(Path("/proc/self/net/dev").read_text(encoding="ascii"))


def why_impossible() -> str | None:
    """Say why there can be no hosts on this machine; None where there can."""
    if not sys.platform.startswith("linux"):
        return f"network namespaces are Linux's, but this is {sys.platform}"
    if os.geteuid() != 0:
        return "only root may make network namespaces; run it as root, in a virtual machine for example"
    missing = [name for name in ("ip", "tc") if shutil.which(name) is None]
    if missing:
        return f"there is no {' and no '.join(missing)}; install iproute2 (Debian: apt-get install iproute2)"
    return None


class Network:
    """Hosts and the switch between them, while the context lasts.

    Example:
      >>> network = Network(2, Link("slow", megabits=100, round_trip_ms=1))
      >>> network.address(0), network.address(1)
      ('10.77.0.1', '10.77.0.2')
      >>> network.command(1)[:3]
      ['ip', 'netns', 'exec']
    """

    def __init__(self, hosts: int, link: Link) -> None:
        """Describe a network; entering the context makes it.

        Args:
          hosts: how many, up to 200.
          link: what connects each with the switch.
        """
        if not 1 <= hosts <= 200:
            raise ValueError(f"{hosts} hosts, but there may be 1 to 200")
        self._hosts, self._link = hosts, link
        self._switch = f"{PREFIX}-{os.getpid()}-switch"
        self._relay: subprocess.Popen | None = None

    def address(self, host: int) -> str:
        """Give the address of a host, counted from 0."""
        return f"10.77.0.{host + 1}"

    def command(self, host: int) -> list[str]:
        """Give the words that run a command on a host when they stand before it."""
        return ["ip", "netns", "exec", self._name(host)]

    def __enter__(self) -> "Network":
        """Make the namespaces; raises NamespaceError where that is impossible, and leaves none."""
        reason = why_impossible()
        if reason is not None:
            raise NamespaceError(reason)
        remove_forgotten()
        try:
            self._make()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()

    def _name(self, host: int) -> str:
        return f"{PREFIX}-{os.getpid()}-{host}"

    def _make(self) -> None:
        _run("ip", "netns", "add", self._switch)
        _set_up(self._switch)
        for host in range(self._hosts):
            self._make_host(host)
        for host in range(self._hosts):
            for other in set(range(self._hosts)) - {host}:
                neighbour = (self.address(other), "lladdr", _hardware_address(other), "dev", "eth0", "nud", "permanent")
                _run("ip", "-n", self._name(host), "neigh", "add", *neighbour)
        self.change(self._link)

    def change(self, link: Link) -> None:
        """Put another link in place of every host's, while connections last."""
        self._stop_relay()
        subprocess.run(["ip", "-n", self._switch, "link", "delete", "bridge"], capture_output=True, check=False)
        self._link = link
        for host in range(self._hosts):
            for namespace, interface in ((self._name(host), "eth0"), (self._switch, f"port{host}")):
                self._shape(namespace, interface)
        if link.round_trip_ms:
            self._start_relay()
        else:
            self._make_bridge()

    def _shape(self, namespace: str, interface: str) -> None:
        remove = ["tc", "-n", namespace, "qdisc", "delete", "dev", interface, "root"]
        subprocess.run(remove, capture_output=True, check=False)
        if self._link.megabits is not None:
            shape = f"rate {self._link.megabits}mbit burst {BURST_BYTES} limit {self._link.queue_bytes}"
            _run(*f"tc -n {namespace} qdisc add dev {interface} root tbf {shape}".split())

    def _make_host(self, host: int) -> None:
        name, port = self._name(host), f"port{host}"
        _run("ip", "netns", "add", name)
        # A process finds its own address by the name of the machine: `ip netns exec` puts this file in place of /etc's.
        (_FILES / name).mkdir(parents=True, exist_ok=True)
        names = f"127.0.0.1 localhost\n{self.address(host)} {socket.gethostname()}\n"
        (_FILES / name / "hosts").write_text(names, encoding="utf-8")
        _set_up(name)
        _run(*f"ip -n {self._switch} link add {port} type veth peer name eth0 netns {name}".split())
        _run(*f"ip -n {name} link set eth0 address {_hardware_address(host)} up".split())
        _run(*f"ip -n {name} address add {self.address(host)}/24 dev eth0".split())
        _run(*f"ip -n {self._switch} link set {port} up".split())

    def _make_bridge(self) -> None:
        _run(*f"ip -n {self._switch} link add bridge type bridge".split())
        for host in range(self._hosts):
            _run(*f"ip -n {self._switch} link set port{host} master bridge".split())
        _run(*f"ip -n {self._switch} link set bridge up".split())

    def _start_relay(self) -> None:
        one_way = self._link.round_trip_ms / 2e3
        command = [sys.executable, "-m", "benchmarks.simulation.delaying_switch", str(self._hosts), str(one_way)]
        self._relay = subprocess.Popen(
            ["ip", "netns", "exec", self._switch, *command], cwd=ROOT, stdout=subprocess.PIPE, start_new_session=True
        )
        assert self._relay.stdout is not None
        if not self._relay.stdout.readline():
            raise NamespaceError("the switch that delays packets did not start; what it printed stands above")

    def _stop_relay(self) -> None:
        if self._relay is not None:
            self._relay.kill()
            self._relay.wait()
            self._relay = None

    def _remove(self) -> None:
        self._stop_relay()
        for name in (*map(self._name, range(self._hosts)), self._switch):
            _remove_namespace(name)


def remove_forgotten() -> None:
    """Remove the namespaces of measurements that were killed and could not remove them."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False).stdout
    for line in listed.splitlines():
        name = line.split()[0] if line.split() else ""
        owner = owner_of(name)
        if owner is not None and not Path(f"/proc/{owner}").exists():
            _remove_namespace(name)


def owner_of(name: str) -> int | None:
    """Say which process made a namespace of this name; None where it is not one of these.

    Example:
      >>> owner_of("fedlm-hosts-17-switch"), owner_of("someone-elses")
      (17, None)
    """
    number = name.removeprefix(f"{PREFIX}-").partition("-")[0]
    return int(number) if name.startswith(f"{PREFIX}-") and number.isdecimal() else None


def _remove_namespace(name: str) -> None:
    """End the processes of a namespace and remove it, if it is there."""
    inside = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=False)
    for pid in inside.stdout.split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)
    shutil.rmtree(_FILES / name, ignore_errors=True)


def _set_up(name: str) -> None:
    _run("ip", "-n", name, "link", "set", "lo", "up")
    # Neighbours that look for each other by IPv6 would be counted too.
    _run("ip", "netns", "exec", name, "sh", "-c", _WITHOUT_IPV6, "/proc/sys/net/ipv6/conf")
    tcp = f"echo {CONGESTION_CONTROL} > /proc/sys/net/ipv4/tcp_congestion_control"
    _run("ip", "netns", "exec", name, "sh", "-c", tcp)


def _hardware_address(host: int) -> str:
    return f"02:00:00:00:00:{host + 1:02x}"


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        what = (done.stderr or done.stdout).strip().splitlines()
        raise NamespaceError(f"`{' '.join(command)}` failed: {what[0] if what else f'status {done.returncode}'}")
