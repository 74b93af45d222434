"""Paths between processes that are cut, where the controller forwards packets.

A sender that gets no answer from a receiver hands its packets to the controller, which passes them
on over the receiver's own connection, and passes the answers back. Nothing of that is an entry:
what is lost is forwarded again, until the receiver has it. A receiver that does not answer by this
way either, in the time in which all must answer the controller, has failed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Set
from dataclasses import dataclass
from enum import Enum

from weir_toc import packet as wire
from weir_toc.errors import ControlError, PacketError

#: Pairs that are known at once. What a member may let forward in an interval of `PERIOD_NS`, in
#: bytes, and what may wait for one receiver that is slow to read.
PATHS_MAX = 10_000
PERIOD_NS, MEMBER_BYTES_MAX = 10_000_000, 1 << 20
WAITING_BYTES_MAX = 1 << 20


class Kind(Enum):
    """What packets are that a node lets forward."""

    #: They ask for answers.
    REQUEST = "request"
    #: They answer others.
    ANSWER = "answer"
    #: They answer others, and ask their receiver to confirm that it keeps a smaller window.
    QUESTION = "question"


def check_forward(node: int, to: int, packets: list[bytes]) -> Kind:
    """Return what these packets of a node are.

    Raises ControlError unless all are whole packets from this node to that receiver.
    """
    kinds, flags = set(), 0
    for data in packets:
        try:
            packet = wire.decode(data, 0)
        except PacketError as error:
            raise ControlError(f"a packet that cannot be forwarded: {error}") from error
        if (packet.source, packet.to) != (node, to):
            raise ControlError(f"node {node} forwards a packet of {packet.source} to {packet.to}")
        kinds.add(packet.opcode)
        flags |= packet.flags
    if kinds and kinds <= wire.FORWARDED_ANSWERS:
        return Kind.QUESTION if flags & wire.CONFIRM else Kind.ANSWER
    if kinds and kinds <= wire.FORWARDED:
        return Kind.REQUEST
    raise ControlError(f"opcodes {sorted(kinds)} are not forwarded at once")


@dataclass(slots=True)
class _Path:
    #: When the first packets were passed on that are not answered; 0 if all are.
    unanswered_since: int
    #: When the sender last asked.
    asked_at: int


class CutPaths:
    """The pairs for which one leader forwards. Times are those of `Pacing`."""

    def __init__(self, answer: int) -> None:
        """`answer` is how long a receiver may take to answer, in nanoseconds."""
        self._answer = answer
        self._paths: dict[tuple[int, int], _Path] = {}
        #: What each member has forwarded since the current period began, in bytes.
        self._spent: dict[int, int] = defaultdict(int)
        self._period = 0
        #: How often packets were passed on.
        self.passed = 0

    def ask(self, now: int, source: int, to: int, size: int) -> bool:
        """Take a request of `size` bytes; return whether it may be passed on.

        It may not if this member has asked for too much: it asks again.
        """
        if now - self._period >= PERIOD_NS:
            self._period = now
            self._spent.clear()
        path = self._paths.get((source, to))
        is_too_much = self._spent[source] + size > MEMBER_BYTES_MAX
        if is_too_much or (path is None and len(self._paths) >= PATHS_MAX):
            return False
        self._spent[source] += size
        if path is None:
            path = self._paths[source, to] = _Path(now, now)
        path.unanswered_since = path.unanswered_since or now
        path.asked_at = now
        return True

    def answered(self, source: int, to: int) -> None:
        """`to` has answered what `source` let forward."""
        path = self._paths.get((source, to))
        if path is not None:
            path.unanswered_since = 0

    def unreachable(self, now: int, processes: Set[int]) -> set[int]:
        """Return the receivers that have not answered in time; `processes` are those that go on.

        A sender that asks no more has got its answer by the network, or is gone.
        """
        found = set()
        for (source, to), path in [*self._paths.items()]:
            is_over = now - path.asked_at >= self._answer // 2
            if is_over or source not in processes or to not in processes:
                del self._paths[source, to]
            elif path.unanswered_since and now - path.unanswered_since >= self._answer:
                del self._paths[source, to]
                found.add(to)
        return found

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Return the senders and receivers between which packets are forwarded now."""
        return sorted(self._paths)


def forwarding_of(paths: CutPaths | None, names: Mapping[int, str]) -> dict[str, object]:
    """Return whom a leader forwards for, by their names, and how often it did; None of others."""
    if paths is None:
        return {"forwarding": [], "forwarded": 0}
    pairs = [[names.get(one, "") for one in pair] for pair in paths.pairs]
    return {"forwarding": pairs, "forwarded": paths.passed}
