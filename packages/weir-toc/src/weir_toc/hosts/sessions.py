"""Connections of nodes to a member, and which of two aggregators of one switch may have one."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from time import monotonic_ns

from weir_toc.controller.pacing import Pacing
from weir_toc.controller.paths import WAITING_BYTES_MAX, Kind, check_forward
from weir_toc.controller.state import ControllerState
from weir_toc.hosts.control_link import ANSWERS_SECONDS
from weir_toc.hosts.frames import (
    UNREAD_BYTES_MAX,
    Address,
    Frame,
    forward_of,
    framed_json,
    number_in,
    packets_in,
    socket_in,
)


class Session:
    """One connection from a node."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        #: The id of the process or switch; 0 until it has said hello, or for none.
        self.node = 0
        self.incarnation = 0
        #: Where a process takes packets, if others send them straight to it.
        self.address: Address | None = None
        #: When it last said something, by the monotonic clock.
        self.heard_at = monotonic_ns()
        #: How often the kernel of the node had no room for what came, as the node told last.
        self.kernel_drops = 0

    def introduce(self, frame: Frame) -> None:
        """Take who is connected. Raises ControlError for a frame that does not say that."""
        self.node = number_in(frame, "node")
        self.incarnation = number_in(frame, "incarnation")
        if "host" in frame:
            self.address = socket_in(frame)

    def hear(self, frame: Frame) -> None:
        """Take that the node has said something, and how its socket is if that is told."""
        self.heard_at = monotonic_ns()
        if "drops" in frame:
            self.kernel_drops = number_in(frame, "drops")

    def send(self, frame: Frame) -> None:
        """Send a frame; a node that does not read is disconnected."""
        transport = self._writer.transport
        if transport.get_write_buffer_size() > UNREAD_BYTES_MAX:
            transport.abort()
        elif not transport.is_closing():
            self._writer.write(framed_json(frame))

    def forward(self, source: int, packets: Sequence[bytes]) -> None:
        """Bring packets of another process, unless much waits here: they come again."""
        if self._writer.transport.get_write_buffer_size() <= WAITING_BYTES_MAX:
            self.send(forward_of(source, packets))

    def close(self) -> None:
        """End the connection once what was sent has left."""
        self._writer.close()


def forward(
    source: int,
    frame: Frame,
    state: ControllerState,
    pacing: Pacing | None,
    sessions: Mapping[int, Session],
) -> None:
    """Pass packets of a process on to another one, if both go on.

    `sessions` are those of the connected nodes. Raises ControlError for packets of others.
    """
    to, packets = number_in(frame, "node"), packets_in(frame)
    kind, now = check_forward(source, to, packets), monotonic_ns()
    if pacing is None or state.failures is None or not {source, to} <= state.failures.processes:
        return
    if kind is not Kind.REQUEST:
        pacing.paths.answered(to, source)
    elif not pacing.paths.ask(now, source, to, sum(map(len, packets))):
        return
    if kind is Kind.QUESTION:
        pacing.away.asked(now, to)
    if (session := sessions.get(to)) is not None:
        pacing.paths.passed += 1
        session.forward(source, packets)


def rival_of(
    session: Session,
    is_started: bool,
    state: ControllerState,
    former: Session | None,
    leads_since: int,
) -> Frame | None:
    """Return what to answer to an aggregator if another one serves its switch, else None.

    One that was replaced is told so. One that comes beside a live one has to wait until that does
    not answer. `former` is the connection that its switch has now. The aggregators of a leader
    that leads since `leads_since`, by the monotonic clock, may not have connected to it yet.
    """
    if state.failures is None or session.node not in state.failures.topology.switches:
        return None
    known = state.switches.get(session.node)
    is_known = known is not None and known.incarnation == session.incarnation
    if is_started and not is_known:
        why = ("another aggregator has taken the place of this one at its switch: if that is a "
               "mistake, stop that one and start this one again")  # fmt: skip
        return {"op": "replaced", "why": why}
    if former is not None:
        is_alone = former.incarnation == session.incarnation
    else:
        is_alone = known is None or is_known
    heard_at = max(leads_since, former.heard_at if former is not None else 0)
    if is_alone or monotonic_ns() - heard_at >= ANSWERS_SECONDS * 1e9:
        return None
    where = f" at {known.host}:{known.port}" if known is not None else ""
    return {"op": "taken", "why": f"an aggregator serves this switch already{where}: stop that one "
            "first, or run this one with another --switch"}  # fmt: skip
