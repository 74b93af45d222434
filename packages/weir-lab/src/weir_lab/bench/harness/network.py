"""A network of one's own on one machine: namespaces, a bridge, and cables of a given speed.

All of it is gone when the process that `enter`ed it ends, however that happens.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence

from weir.errors import WeirError
from weir.server.interpreter import environment, python

HOST = "10.7.0.1"
_PREFIX = 24
_MARK = "WEIR_BENCH_NAMESPACE"


class NoNetwork(WeirError):
    """This machine does not let us have a network of our own; the message says what to do."""


def enter(module: str, arguments: Sequence[str], needed: Sequence[str]) -> None:
    """Go on only inside namespaces of our own: run `module` anew in there unless it is already.

    They are of the network, of processes, so that nothing outlives us, and of mounts. Raises
    `NoNetwork` if one of the commands `needed` is missing, or we may not have namespaces.
    """
    if _MARK in os.environ:
        return
    for command in ("unshare", "ip", *needed):
        if shutil.which(command) is None:
            raise NoNetwork(
                f"there is no {command!r} here. On Debian, as root: "
                "scripts/apt-install $(cat scripts/powercut-packages)"
            )
    as_root = () if os.geteuid() == 0 else ("--user", "--map-root-user")
    spaces = ("--net", "--mount-proc", "--pid", "--fork", "--kill-child")
    words = ["unshare", *as_root, *spaces]
    _run(*words, "true")
    sys.stdout.flush()
    os.execvpe(words[0], [*words, *python(module, *arguments)], {**environment(), _MARK: "1"})


def addresses(count: int) -> list[str]:
    """Return so many addresses that are free on the network."""
    return [f"10.7.0.{10 + number}" for number in range(1, count + 1)]


class Network:
    """A bridge, on which this process has the address `HOST`."""

    def __init__(self) -> None:
        """Make it. Raises `NoNetwork` if we may not."""
        self._names = self._draw()
        ip("link", "set", "lo", "up")
        ip("link", "add", "bridge", "type", "bridge")
        ip("addr", "add", self.with_prefix(HOST), "dev", "bridge")
        ip("link", "set", "bridge", "up")

    def tap(self) -> str:
        """Return the name of a new port, for a machine that brings its own end of the cable."""
        name = next(self._names)
        ip("tuntap", "add", "dev", name, "mode", "tap")
        self._plug(name)
        return name

    def cable(self, pid: int, address: str) -> str:
        """Give a process with a network namespace of its own an address; return our port."""
        name, far = next(self._names), "far"
        ip("link", "add", name, "type", "veth", "peer", "name", far, "netns", str(pid))
        self._plug(name)
        inside = ("nsenter", "--net", "--target", str(pid))
        ip("link", "set", "lo", "up", before=inside)
        ip("addr", "add", self.with_prefix(address), "dev", far, before=inside)
        ip("link", "set", far, "up", before=inside)
        return name

    @staticmethod
    def throttle(port: str, mbit: int, pid: int) -> None:
        """Let a cable carry no more than so many Mbit/s in either direction."""
        speed = ("root", "tbf", "rate", f"{mbit}mbit", "burst", "64kb", "latency", "50ms")
        _run("tc", "qdisc", "add", "dev", port, *speed)
        inside = ("nsenter", "--net", "--target", str(pid))
        _run(*inside, "tc", "qdisc", "add", "dev", "far", *speed)

    @staticmethod
    def with_prefix(address: str) -> str:
        """Return an address as `ip` wants it."""
        return f"{address}/{_PREFIX}"

    @staticmethod
    def _plug(name: str) -> None:
        ip("link", "set", name, "master", "bridge", "up")

    @staticmethod
    def _draw() -> Iterator[str]:
        number = 0
        while True:
            number += 1
            yield f"port{number}"


def ip(*words: str, before: Sequence[str] = ()) -> None:
    """Run the command `ip`, behind what its command line begins with. Raises `NoNetwork`."""
    _run(*before, "ip", *words)


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoNetwork(
            f"{' '.join(words)}: {done.stderr.strip()}. Be root, and have a container started "
            "with --cap-add SYS_ADMIN --cap-add NET_ADMIN --device /dev/net/tun"
        )
