"""A network of its own for each node of a set, on one machine: what is needed to cut one off.

Every node lives in a network namespace, joined to a bridge by a pair of virtual interfaces. Clients
talk from where the bridge is, so that they go on reaching a node which the others do not. All of it
is made in a namespace that belongs to the process alone, and goes with it.
"""

from __future__ import annotations

from weir.testing.nodes import Berth
from weir_lab.network.namespaces import Namespace, ip

_BRIDGE = "weir0"


class Networks:
    """The networks of `nodes` nodes, until `close`."""

    def __init__(self, nodes: int) -> None:
        """Make them; `namespaces.enter` comes first. Raises `NoNetwork`."""
        self._spaces: list[Namespace] = []
        try:
            ip("link", "set", "lo", "up")
            ip("link", "add", _BRIDGE, "type", "bridge")
            ip("addr", "add", f"{_address(0)}/24", "dev", _BRIDGE)
            ip("link", "set", _BRIDGE, "up")
            for node in range(1, nodes + 1):
                self._add(node)
        except BaseException:
            self.close()
            raise

    @property
    def berths(self) -> list[Berth]:
        """Where each node listens, and what its command begins with."""
        return [Berth(_address(node), space.before) for node, space in enumerate(self._spaces, 1)]

    def cut(self, node: int) -> None:
        """Let nothing through between a node and the others."""
        self._routes(node, "add")

    def heal(self, node: int) -> None:
        """Undo `cut`."""
        self._routes(node, "del")

    def close(self) -> None:
        """Give up the namespaces; what runs in one keeps it."""
        for space in self._spaces:
            space.close()

    def _add(self, node: int) -> None:
        space = Namespace()
        self._spaces.append(space)
        name = f"weir{node}"
        ip("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", str(space.pid))
        ip("link", "set", name, "master", _BRIDGE)
        ip("link", "set", name, "up")
        ip("link", "set", "lo", "up", before=space.before)
        ip("addr", "add", f"{_address(node)}/24", "dev", "eth0", before=space.before)
        ip("link", "set", "eth0", "up", before=space.before)

    def _routes(self, node: int, verb: str) -> None:
        for other, space in enumerate(self._spaces, 1):
            if other != node:
                self._route(verb, self._spaces[node - 1], other)
                self._route(verb, space, node)

    def _route(self, verb: str, space: Namespace, to: int) -> None:
        ip("route", verb, "blackhole", f"{_address(to)}/32", before=space.before)


def _address(node: int) -> str:
    """Return a node's address; 0 is the bridge's own."""
    return f"10.77.0.{node or 254}"
