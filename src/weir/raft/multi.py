"""Many groups over few links: who is due, and one heartbeat a link instead of one a group."""

from __future__ import annotations

from collections.abc import Callable

from weir.raft.messages import LinkMessage
from weir.raft.node import Node


class Multi:
    """All the groups of one host. Peers are opaque numbers; `peer_of` tells where a member is."""

    def __init__(self, peer_of: Callable[[int], int], heartbeat_ms: int = 100) -> None:
        self._peer_of = peer_of
        self._nodes: dict[int, Node] = {}
        #: The fence that beats ask peers to promise; opaque.
        self.fence_asked = 0
        #: The highest fence this side promises to whoever asks.
        self.fence_bound = 0

    def add(self, group: int, node: Node) -> None:
        """Let `node` take part; from now on it is not ticked by its host."""
        self._nodes[group] = node

    def remove(self, group: int) -> None:
        """Forget a group."""
        self._nodes.pop(group, None)

    def tick(self, elapsed_ms: int) -> None:
        """Let time pass for all groups."""
        for node in self._nodes.values():
            node.tick(elapsed_ms)

    def take_active(self) -> list[int]:
        """Groups with has_ready."""
        return [group for group, node in self._nodes.items() if node.has_ready]

    def take_beats(self) -> list[tuple[int, LinkMessage]]:
        """What to send on links now: call it whenever groups were served, and after tick()."""
        return []

    def step_link(self, peer: int, message: LinkMessage) -> None:
        """Take what came from `peer`."""

    def link_up(self, peer: int) -> None:
        """Messages can reach `peer` from now on."""

    def link_down(self, peer: int) -> None:
        """Messages cannot reach `peer`, and what was under way may be lost."""

    def promised(self, peer: int) -> int:
        """The fence that `peer` has promised on its newest reply; 0 if none since it came up."""
        return 0
