"""Consumers that go from one relay to another, and keep what they were granted (docs/adr/0171).

A relay has a session in the core for each of its consumers. When it ends, the relay may have died
under a consumer that works on. What the session held is kept for it for a while. The consumer shows
the same token by another session, and names the grants that it has: each is granted to it again by
an entry, under another fencing number, with the same deadline and without an attempt more.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec

from weir.broker.consumers.grants import Grants
from weir.broker.records.entries import Payload, of_control
from weir.broker.records.partition import MessagesGranted
from weir.broker.replica.group import Group
from weir.broker.replica.requests import Proposals
from weir.broker.runtime.outbox import Caller, Outbox
from weir.broker.state.clusters import AT_ONCE, ClusterState, Grant
from weir.broker.state.state import PartitionState
from weir.errors import Refused, Unavailable
from weir.model.limits import CONSUMER_TOKEN_BYTES, RETRY_AFTER_MS
from weir.model.topic import check_name
from weir.order.clock import HybridClock, Time
from weir.protocol.client.messages import GrantsMoved, MoveGrants


def token_of(principal: str, token: bytes) -> bytes:
    """Return the token of a consumer as partitions know it: that of another user is another one."""
    shown = hashlib.sha256(principal.encode() + b"\0" + token)
    return shown.digest()[:CONSUMER_TOKEN_BYTES]


class Move(msgspec.Struct):
    """One request, until all that it moves is committed."""

    caller: Caller
    request: MoveGrants
    #: How many of its grants are not committed yet, and the fences of those that are.
    left: int
    moved: list[tuple[int, int]] = msgspec.field(default_factory=list)


class GrantMoves:
    """Moves grants of one partition to other sessions of their consumers while this node leads."""

    __slots__ = ("_clock", "_fences", "_grants", "_group", "_outbox", "_proposals", "_state",
                 "_time")  # fmt: skip

    def __init__(
        self, group: Group, state: PartitionState, grants: Grants, clock: HybridClock,
        outbox: Outbox, time: Time,
    ) -> None:  # fmt: skip
        """Begin to lead; nothing is moved yet."""
        self._group = group
        self._state = state
        self._grants = grants
        self._clock = clock
        self._outbox = outbox
        self._time = time
        self._proposals: Proposals[Payload, tuple[Move, int, int, int]] = Proposals(group)
        #: By cluster and former fence, the one after it, of grants that are there: a consumer that
        #: does not get the answer asks again with the former one.
        self._fences: dict[tuple[str, int], int] = {}

    def move(self, caller: Caller, request: MoveGrants) -> None:
        """Let a consumer keep what it names of what its earlier sessions were granted; the rest of
        that goes to others. It is answered once that is committed.

        What they held that came by no relay is not kept, and not moved. A consumer without a token
        leaves: nothing is moved, nor kept when this session ends. Raises `BadName`,
        `StaleGrant` if a later move of the consumer came before, and `Unavailable` while leadership
        is handed over.
        """
        if not request.token:
            self._grants.ended.leave(caller.session)
            self._outbox.reply(caller, GrantsMoved())
            return
        if not self._group.accepts:
            raise Unavailable("nothing is granted here just now: ask again shortly", RETRY_AFTER_MS)
        name, grants = check_name(request.cluster, "cluster"), self._grants
        former = grants.ended.move(caller.session, request.token, request.number)
        grants.suspend(name)  # what is picked meanwhile may be what is moved
        if not self._propose_all(caller, request, former):
            grants.resume(name, forget=False)
        for session in former:
            grants.withdraw(session, name)
            grants.ended.forget(session)
            grants.closed(session)

    def _propose_all(self, caller: Caller, request: MoveGrants, sources: Sequence[int]) -> bool:
        """Propose to move what a consumer names of what its other sessions hold; return whether
        anything is. If not, it is answered at once.
        """
        cluster = self._state.clusters.get(request.cluster)
        name, move = request.cluster, Move(caller, request, 0)
        self._forget(name, cluster)
        found: list[tuple[int, int, Grant]] = []
        for asked in dict.fromkeys(request.fences):
            fence = self._now(name, asked)
            grant = cluster.grants.get(fence) if cluster is not None else None
            if grant is None:
                continue
            if grant.consumer == caller.session:
                move.moved.append((asked, fence))
            elif grant.consumer in sources and self._runs(name, fence, grant):
                found.append((asked, fence, grant))
        # In ordered modes, messages behind a grant are taken from their holders.
        found.sort(key=lambda one: next(iter(one[2].left)))
        for _, fence, _ in found:  # first: to propose may apply others
            self._grants.leases.pin(name, fence)
        move.left = len(found)
        for at, (asked, fence, grant) in enumerate(found):
            try:
                self._propose(move, asked, fence, grant)
            except Refused:
                for _, other, _ in found[at:]:
                    self._grants.leases.unpin(name, other)
                move.left -= len(found) - at
                break
        if not move.left:
            self._outbox.reply(caller, GrantsMoved(tuple(move.moved)))
        return move.left > 0

    def _propose(self, move: Move, asked: int, fence: int, grant: Grant) -> None:
        now_ms, runs = self._time.monotonic_ms(), [*grant.left]
        first, behind = (runs[0][0], runs[-1][1]) if runs else (0, 0)
        record = MessagesGranted(
            move.request.cluster, move.caller.session, first, behind, grant.deadline,
            self._clock.stamp(self._time.wall_ms()), runs, [],
        )  # fmt: skip
        until_ms = now_ms + self._grants.leases.left_ms(move.request.cluster, fence, now_ms)
        self._proposals.propose(of_control(record), (move, asked, fence, until_ms))

    def _runs(self, name: str, fence: int, grant: Grant) -> bool:
        """Whether the lease of a grant runs, and nothing of it is being given back."""
        if grant.deadline == AT_ONCE or self._grants.leases.is_pinned(name, fence):
            return False
        return self._grants.leases.left_ms(name, fence, self._time.monotonic_ms()) > 0

    def _now(self, name: str, fence: int) -> int:
        while (later := self._fences.get((name, fence))) is not None:
            fence = later
        return fence

    def applied(self, index: int, grant: Grant | None) -> bool:
        """A grant is committed; return whether that moves one. With the last one, who asked for
        that is answered.
        """
        found = self._proposals.applied(index)
        if found is None:
            return False
        move, asked, former, until_ms = found
        name, grants = move.request.cluster, self._grants
        grants.leases.unpin(name, former)
        if grant is not None:
            grants.leases.begin(name, index, until_ms)
            grants.moved(name, index, grant, move.request.begun)
            self._fences[name, former] = index
            move.moved.append((asked, index))
        move.left -= 1
        if not move.left:
            self._outbox.reply(move.caller, GrantsMoved(tuple(move.moved)))
            grants.resume(name, forget=False)
        return True

    def _forget(self, name: str, cluster: ClusterState | None) -> None:
        """Forget the fences of a cluster's grants that are over."""
        live = cluster.grants if cluster is not None else {}
        over = [key for key in self._fences if key[0] == name and self._now(*key) not in live]
        for key in over:
            del self._fences[key]

    def check_deadlines(self) -> None:
        """What was kept for consumers that have not come back in time goes to others."""
        for session in self._grants.ended.given_up():
            self._grants.ended.forget(session)
            self._grants.closed(session)

    def lose(self, error: Refused) -> None:
        """This node leads no more: another will know what became of it."""
        for move in {id(move): move for move, *_ in self._proposals.lose()}.values():
            self._outbox.refuse(move.caller, error)
