"""A network of its own for each node of a set, on one machine: what is needed to cut one off.

Every node lives in a network namespace, joined to a bridge by a pair of virtual interfaces. Clients
talk from where the bridge is, so that they go on reaching a node which the others do not. All of it
is made in a namespace that belongs to the process alone, and goes with it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from weir.errors import WeirError
from weir.server.interpreter import environment, python
from weir.testing.nodes import Berth

_MARK = "WEIR_CHAOS_NETWORK"
_BRIDGE = "weir0"
_PATIENCE_S = 5.0
_LOOK_S = 0.005


class NoNetwork(WeirError):
    """Networks cannot be made here; the message says what is needed."""


def enter(arguments: Sequence[str]) -> None:
    """Become `weir` with these arguments, in a network namespace of its own; once is enough.

    Without root that needs user namespaces for everybody. Raises `NoNetwork` without either.
    """
    if os.environ.get(_MARK) == str(os.getpid()):
        return
    how = ["--net"] if os.geteuid() == 0 else ["--user", "--map-root-user", "--net"]
    try:
        able = subprocess.run(["unshare", *how, "ip", "link"], capture_output=True, check=False)
    except FileNotFoundError:
        raise NoNetwork(
            "cutting nodes off needs `unshare` (util-linux) and `ip` (iproute2): install them"
        ) from None
    if able.returncode:
        raise NoNetwork(
            "cutting nodes off needs network namespaces: run this as root, or let users make "
            f"namespaces (sysctl kernel.unprivileged_userns_clone=1): {able.stderr.decode()}"
        )
    sys.stdout.flush()
    # The mark names the process, which stays the same: a child of it would have to enter again.
    env = {**environment(), _MARK: str(os.getpid())}
    os.execvpe("unshare", ["unshare", *how, *python("weir.cli", *arguments)], env)


class Networks:
    """The networks of `nodes` nodes, until `close`."""

    def __init__(self, nodes: int) -> None:
        """Make them; `enter` comes first. Raises `NoNetwork`."""
        self._keepers: list[subprocess.Popen[bytes]] = []
        try:
            _ip("link", "set", "lo", "up")
            _ip("link", "add", _BRIDGE, "type", "bridge")
            _ip("addr", "add", f"{_address(0)}/24", "dev", _BRIDGE)
            _ip("link", "set", _BRIDGE, "up")
            for node in range(1, nodes + 1):
                self._add(node)
        except BaseException:
            self.close()
            raise

    @property
    def berths(self) -> list[Berth]:
        """Where each node listens, and what its command begins with."""
        return [
            Berth(_address(node), _inside(keeper)) for node, keeper in enumerate(self._keepers, 1)
        ]

    def cut(self, node: int) -> None:
        """Let nothing through between a node and the others."""
        self._routes(node, "add")

    def heal(self, node: int) -> None:
        """Undo `cut`."""
        self._routes(node, "del")

    def close(self) -> None:
        """Give up the namespaces; what runs in one keeps it."""
        for keeper in self._keepers:
            keeper.kill()
            keeper.wait()
            assert keeper.stdin is not None
            keeper.stdin.close()

    def _add(self, node: int) -> None:
        # It keeps the namespace while nodes come and go, and ends with this process.
        keeper = subprocess.Popen(["unshare", "--net", "cat"], stdin=subprocess.PIPE)
        self._keepers.append(keeper)
        own, until = os.readlink("/proc/self/ns/net"), time.monotonic() + _PATIENCE_S
        while os.readlink(Path("/proc", str(keeper.pid), "ns/net")) == own:
            if keeper.poll() is not None or time.monotonic() > until:
                raise NoNetwork("no network namespace came up: see what `unshare --net true` says")
            time.sleep(_LOOK_S)
        name, inside = f"weir{node}", _inside(keeper)
        _ip("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", str(keeper.pid))
        _ip("link", "set", name, "master", _BRIDGE)
        _ip("link", "set", name, "up")
        _ip("link", "set", "lo", "up", before=inside)
        _ip("addr", "add", f"{_address(node)}/24", "dev", "eth0", before=inside)
        _ip("link", "set", "eth0", "up", before=inside)

    def _routes(self, node: int, verb: str) -> None:
        for other, keeper in enumerate(self._keepers, 1):
            if other != node:
                self._route(verb, self._keepers[node - 1], other)
                self._route(verb, keeper, node)

    def _route(self, verb: str, keeper: subprocess.Popen[bytes], to: int) -> None:
        _ip("route", verb, "blackhole", f"{_address(to)}/32", before=_inside(keeper))


def _address(node: int) -> str:
    """Return a node's address; 0 is the bridge's own."""
    return f"10.77.0.{node or 254}"


def _inside(keeper: subprocess.Popen[bytes]) -> tuple[str, ...]:
    return ("nsenter", "--target", str(keeper.pid), "--net")


def _ip(*words: str, before: tuple[str, ...] = ()) -> None:
    done = subprocess.run([*before, "ip", *words], capture_output=True, check=False)
    if done.returncode:
        raise NoNetwork(f"`ip {' '.join(words)}` failed: {done.stderr.decode().strip()}")
