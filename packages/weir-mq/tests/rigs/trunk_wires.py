"""Trunks between nodes of one shard each in one process: what they pass on waits to be carried."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from itertools import count

from weir.broker.api import events as ev
from weir.model.ids import place_of
from weir.protocol import trunk
from weir.protocol.trunk import Kind, TrunkStream


class TrunkWires:
    """All trunks of a set: frames by asking and serving node, and whose sessions are whose."""

    def __init__(self, handle: Callable[[int, ev.Event], None]) -> None:
        """Tell the shard of a node, by its number, what happens: nothing, if it is down."""
        self._handle = handle
        self._asked: dict[tuple[int, int], list[bytes]] = defaultdict(list)
        self._answered: dict[tuple[int, int], list[bytes]] = defaultdict(list)
        self._open: set[tuple[int, int]] = set()
        #: By node and session there, the node that passes on for it and the session at that.
        self._remote_peers: dict[tuple[int, int], tuple[int, int]] = {}
        self._numbers = count(1 << 32)

    def join(self, asking: int, serving: int) -> None:
        """Let a node ask another."""
        self._open.add((asking, serving))
        self._handle(asking, ev.TrunkOpened(place_of(serving, 0)))

    def cut(self, asking: int, serving: int) -> None:
        """End a trunk: what is on its way is lost."""
        self._open.discard((asking, serving))
        self._asked.pop((asking, serving), None)
        self._answered.pop((asking, serving), None)
        for key in [
            key for key, remote_peer in self._remote_peers.items() if remote_peer[0] == asking
        ]:
            if key[0] == serving:
                del self._remote_peers[key]
                self._handle(serving, ev.Closed(key[1]))
        self._handle(asking, ev.TrunkClosed(place_of(serving, 0)))

    def passed(self, asking: int, serving: int, data: bytes) -> None:
        """Take what a node passes on."""
        if (asking, serving) in self._open:
            self._asked[asking, serving].append(data)

    def takes(self, serving: int, session: int, kind: Kind, data: bytes) -> bool:
        """Take what goes back to a session; False, if it is nobody's of another node."""
        remote_peer = self._remote_peers.get((serving, session))
        if remote_peer is None:
            return False
        asking, remote = remote_peer
        frame = b"".join(trunk.encode(kind, remote, data))
        self._answered[asking, serving].append(frame)
        return True

    def carry(self) -> bool:
        """Carry all there is; return whether there was anything."""
        moved = False
        for pair, sent in sorted(self._asked.items()):
            if sent:
                moved, self._asked[pair] = True, []
                self._serve(*pair, b"".join(sent))
        for (asking, serving), sent in sorted(self._answered.items()):
            if sent:
                moved, self._answered[asking, serving] = True, []
                frames = TrunkStream().receive(b"".join(sent))
                self._handle(asking, ev.PassedBack(place_of(serving, 0), frames))
        return moved

    def _serve(self, asking: int, serving: int, data: bytes) -> None:
        for kind, remote, body in TrunkStream().receive(data):
            known = (
                key
                for key, remote_peer in self._remote_peers.items()
                if remote_peer == (asking, remote)
            )
            number = next((session for node, session in known if node == serving), 0)
            if kind == Kind.OPENED:
                number = next(self._numbers)
                self._remote_peers[serving, number] = asking, remote
                principal, how = trunk.decode_opened(body)
                place = place_of(asking, 0)
                self._handle(
                    serving,
                    ev.Opened(number, principal, place, how.address, how.admitted_at, how.token),
                )
            elif kind == Kind.CLOSED:
                self._remote_peers.pop((serving, number), None)
                self._handle(serving, ev.Closed(number))
            elif number:
                self._handle(serving, ev.Received(number, [body]))
