"""One member of the controller: Raft over TCP, a synced file, and the nodes that are connected.

Three members make a group. The leader takes reports and requests, proposes them, and commands the
nodes once they are committed; the others send nodes to it. Members without a majority command
nothing and say so in their status: processes go on with best effort, while reliable delivery stands
still from the first failure on.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from pathlib import Path
from time import monotonic_ns, time_ns
from typing import Any

import weir_raft as raft
from weir_raft.codec import decode, encode
from weir_toc.controller.codec import (
    alarm_to,
    command_to,
    decisions_to,
    decode_record,
    encode_record,
    report_from,
)
from weir_toc.controller.entries import Command, Fail, InputSilent, ProcessJoined
from weir_toc.controller.failures import FailureState
from weir_toc.controller.lag import Lagging
from weir_toc.controller.pacing import Pacing
from weir_toc.controller.promises import Held
from weir_toc.controller.records import (
    Founded,
    Record,
    Registered,
    Reported,
    Returned,
    SwitchStarted,
)
from weir_toc.controller.state import ControllerState
from weir_toc.errors import ControlError, TocError
from weir_toc.hosts.clock_socket import ClockAnswers
from weir_toc.hosts.condition import names_by_id, readings_in, status_of
from weir_toc.hosts.control_link import ControlLink
from weir_toc.hosts.file_log import FileLog
from weir_toc.hosts.frames import (
    FRAME_BYTES_MAX,
    RAFT,
    REQUEST_BYTES_MAX,
    Address,
    Frame,
    framed,
    framed_json,
    number_in,
    parsed,
    read_frame,
    text_in,
)
from weir_toc.hosts.sessions import Session, forward, rival_of
from weir_toc.hosts.udp import cannot_listen
from weir_toc.places import Place, place_named

#: A log file is compacted once it is larger, and twice as large as after the last time.
COMPACT_BYTES = 256 << 10
#: Connections of nodes, of other members, and of those who ask for the status.
SESSIONS_MAX = 8_192
#: Alarms that nobody has read.
ALARMS_MAX = 1_000
#: Raft messages that wait for one peer.
UNSENT_MAX = 1_000
_NO_MAJORITY = (
    "no leader is elected: start a majority of the members. Best effort goes on; "
    "reliable messages wait once a process or a link fails"
)
_TICK_SECONDS = 0.02
_CLOCK_SECONDS = 0.1
_PAUSED_MS = 500
#: A connection that says nothing at first is closed.
_HELLO_SECONDS = 5.0


class Told:
    """What this member has told as the leader."""

    def __init__(self) -> None:
        #: The frame of names that all processes know.
        self.names: Frame = {}
        #: Links that lag, or do so no more, in the order in which that was found: for one reader.
        self.alarms: asyncio.Queue[tuple[str, Frame]] = asyncio.Queue(ALARMS_MAX)


class ReferenceClock:
    """The clock that all others follow. The first leader's is the wall clock, and goes on by the
    monotonic one; members that do not lead follow the one who does.
    """

    def __init__(self, members: Sequence[Address]) -> None:
        self._link = ControlLink(members, {"op": "hello", "kind": "member"})
        self._offset = time_ns() - monotonic_ns()
        self._time = 0

    def now(self) -> int:
        """Return the reference time: that of earlier leaders, as well as this member knows it."""
        follows = self._link.is_set.is_set()
        found = self._link.now() if follows else monotonic_ns() + self._offset
        self._time = max(self._time, found)
        return self._time

    async def follow(self, node: raft.Node, member: int) -> None:
        """Follow the leader's clock whenever another one leads, until cancelled."""
        while True:
            if node.leader in (0, member):
                await asyncio.sleep(_CLOCK_SECONDS)
                continue
            following = asyncio.create_task(self._link.run())
            try:
                while node.leader != member:
                    await asyncio.sleep(_CLOCK_SECONDS)
            finally:
                following.cancel()
                await asyncio.wait((following,))  # this task may be cancelled meanwhile

    @contextlib.asynccontextmanager
    async def answering(
        self, sockets: Iterable[socket.socket], node: raft.Node
    ) -> AsyncIterator[None]:
        """Answer datagrams at the ports of these sockets while the node leads."""

        def leads_in() -> int:
            return node.term if node.accepts else 0

        with contextlib.ExitStack() as closing:
            for listening in sockets:
                with contextlib.suppress(OSError):  # clocks follow over their connections, then
                    answers = ClockAnswers(listening, self.now, leads_in)
                    closing.callback(answers.close)
            yield


class Controller:
    """One member. `run` serves until it is cancelled, or until its disk fails."""

    def __init__(
        self, id: int, members: Mapping[int, Address], folder: Path, founding: Founded
    ) -> None:
        """Recover from `folder`. Raises LogDamaged, LogInUse, or TocError for another network."""
        self.id = id
        self.members = dict(members)
        self.log = FileLog(folder / "controller.log", id)
        self._founding = founding
        snapshot = self.log.snapshot()
        data = snapshot.data if snapshot is not None else b""
        assert isinstance(data, bytes | bytearray)
        self.state = ControllerState.load(bytes(data)) if data else ControllerState()
        config = raft.Config(id, tuple(self.members), random=random.random)
        self.node = raft.Node(config, self.log)
        self._compacted_bytes = self.log.size
        self._unsynced: asyncio.Queue[raft.Ready] = asyncio.Queue()
        self._unsent = {peer: asyncio.Queue[bytes](UNSENT_MAX) for peer in members if peer != id}
        self._sessions: set[Session] = set()
        self._nodes: dict[int, Session] = {}
        #: The session that waits for a record, by the index of that.
        self._waiting: dict[int, tuple[Session, int, Record]] = {}
        self._pacing: Pacing | None = None
        self._told = Told()
        self._clock = ReferenceClock([*members.values()])

    # -- the loop ------------------------------------------------------------------------------

    async def run(self, listen: Address | None = None) -> None:
        """Serve until cancelled.

        Others connect to the address of this member; `listen` is where it takes connections, if
        that is another one. Raises CannotListen if it is in use, or none of this machine.
        """
        address = listen or self.members[self.id]
        try:
            server = await asyncio.start_server(self._accept, *address)
        except OSError as error:
            raise cannot_listen(address, error) from error
        try:
            answering = self._clock.answering(server.sockets, self.node)
            async with answering, asyncio.TaskGroup() as tasks:
                tasks.create_task(self._tick())
                tasks.create_task(self._write())
                tasks.create_task(self._clock.follow(self.node, self.id))
                for peer in self._unsent:
                    tasks.create_task(self._send(peer))
        finally:
            server.close()
            for session in [*self._sessions]:
                session.close()
            self.log.close()

    def reference_time(self) -> int:
        """Return the time that all nodes follow, in nanoseconds, as this member knows it."""
        return self._clock.now()

    async def next_alarm(self) -> tuple[str, Frame]:
        """Wait for what begins or ceases: "lagging" or "held", and it as `status` shows it."""
        return await self._told.alarms.get()

    def _serve(self) -> None:
        """Carry out what the Raft node asks for, and propose what is due."""
        self._drain()
        if self._lead():
            self._drain()

    def _drain(self) -> None:
        """Do what the Raft node asks for, until it asks for nothing."""
        node = self.node
        while (ready := node.take()) is not None:
            if ready.lost_leadership:
                self._resign()
            if ready.became_leader:
                self._pacing = None
            for message in ready.messages:
                queue = self._unsent[message.to]
                if not queue.full():  # Raft asks again for what is lost
                    queue.put_nowait(framed(RAFT, encode(message)))
            if ready.must_persist:
                self._unsynced.put_nowait(ready)
            if ready.snapshot is not None:
                assert isinstance(ready.snapshot.data, bytes | bytearray)
                self.state = ControllerState.load(bytes(ready.snapshot.data))
            for entry in ready.committed:
                if entry.kind is raft.EntryKind.NORMAL:
                    assert isinstance(entry.data, bytes)
                    self._apply(entry.index, decode_record(entry.data))
                node.applied(entry.index)
            for member in ready.wants_snapshot:
                node.send_snapshot(member, self._snapshot())

    async def _tick(self) -> None:
        clock = asyncio.get_running_loop().time
        last = clock()
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            elapsed = int(1000 * (clock() - last))
            last += elapsed / 1000
            if elapsed > _PAUSED_MS and self._pacing is not None:  # answers may lie unread
                self._alarm(self._pacing.forget())
                self._pacing = self._pacing.renewed()
            self.node.tick(elapsed)
            self._serve()
            if self._pacing is not None:
                self._alarm(self._pacing.expire(self._clock.now()))

    async def _write(self) -> None:
        while True:
            readies = [await self._unsynced.get()]
            while not self._unsynced.empty():
                readies.append(self._unsynced.get_nowait())
            await asyncio.to_thread(self.log.write, readies)
            self.log.keep(readies)
            for ready in readies:
                self.node.persisted(ready.number)
            self._serve()
            self._compact()

    def _compact(self) -> None:
        """Put a snapshot in place of the log, once that has become large."""
        if self.log.size < max(COMPACT_BYTES, 2 * self._compacted_bytes):
            return
        applied = self.node.log.applied
        if applied < self.node.log.first_index or applied > self.log.last_index():
            return
        if self.log.compact(self._snapshot()):
            self.node.compact(applied)
            self._compacted_bytes = self.log.size

    def _snapshot(self) -> raft.Snapshot:
        index = self.node.log.applied
        term, members = self.node.log.term(index), self.node.history.at(index)
        return raft.Snapshot(index, term, self.state.dump(), members)

    # -- other members -------------------------------------------------------------------------

    async def _send(self, peer: int) -> None:
        while True:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection(*self.members[peer])
                try:
                    writer.write(framed_json({"op": "peer", "member": self.id}))
                    while True:
                        writer.write(await self._unsent[peer].get())
                        await writer.drain()
                finally:
                    writer.close()
            await asyncio.sleep(random.uniform(0.05, 0.2))

    # -- leading -------------------------------------------------------------------------------

    @property
    def leads(self) -> bool:
        """Whether this member leads, and has applied all that earlier leaders committed."""
        return self.node.accepts

    def _lead(self) -> bool:
        """Propose what is due: the founding, decisions, and who did not answer."""
        if not self.leads:
            return False
        network = self.state.network
        if self._pacing is None:
            self._pacing = Pacing((network or self._founding).interval)
            if network is None:
                self._propose(self._founding)
                return True
        due = self._pacing.due(monotonic_ns(), self.state, frozenset(self._nodes))
        with contextlib.suppress(raft.RaftError):  # it is due again
            for record in due:
                self._propose(record)
        return bool(due)

    def _propose(self, record: Record) -> int:
        data = encode_record(record)
        return self.node.propose(data, len(data))

    def _resign(self) -> None:
        """Send all nodes away: another member leads, or none."""
        self._waiting.clear()
        self._nodes.clear()
        self._told.names = {}
        self._pacing = None
        for session in [*self._sessions]:
            session.send(self._moved())
            session.close()

    def _apply(self, index: int, record: Record) -> None:
        commands = self.state.apply(record)
        session, number, asked = self._waiting.pop(index, (None, 0, None))
        if not self.leads:
            return
        if self._pacing is not None:
            if isinstance(record, Reported) and isinstance(record.report, InputSilent):
                self._pacing.reported(monotonic_ns())
            for command in commands:
                self._pacing.commanded(monotonic_ns(), command)
        for command in commands:
            self._command(command)
        if session is not None and asked == record:
            session.send(self._answer(number, record))
        if isinstance(record, SwitchStarted):
            self._tell_switches()
        if isinstance(record, Reported) and isinstance(record.report, ProcessJoined):
            self._tell_excluded(record.report.process)
        self._tell_names()

    def _command(self, command: Command) -> None:
        target = command.to if isinstance(command, Fail) else command.switch
        session = self._nodes.get(target)
        if session is not None:
            session.send({"op": "command", "term": self.node.term, "command": command_to(command)})

    def _tell_excluded(self, process: int) -> None:
        """Tell a process that it has failed as it joined, if it has."""
        session = self._nodes.get(process)
        if session is not None and self.state.failures and process in self.state.failures.failed:
            session.send(excluded_of(self.state.failures, process))

    def _tell_switches(self) -> None:
        """Tell all switches where the others take packets."""
        frame = {"op": "switches", "switches": self._switches()}
        for switch in self.state.switches:
            session = self._nodes.get(switch)
            if session is not None:
                session.send(frame)

    def _switches(self) -> list[list[object]]:
        return [[id, at.host, at.port] for id, at in self.state.switches.items()]

    def _tell_names(self) -> None:
        """Tell all processes who is here, and those that have failed that they have."""
        failures = self.state.failures
        names = self._names()
        if failures is None or names == self._told.names:
            return
        self._told.names = names
        for node, session in self._nodes.items():
            if node in failures.failed:
                session.send(excluded_of(failures, node))
            elif node not in failures.topology.switches:
                session.send(names)

    def _names(self) -> Frame:
        """Processes that have joined, by name; and where they take packets, if others send any
        there and they are connected.
        """
        failures = self.state.failures
        here = failures.processes if failures is not None else ()
        names = {name: one.process for name, one in self.state.names.items()
                 if one.process in here}  # fmt: skip
        found: Frame = {"op": "names", "names": names}
        if self._place.is_direct:
            found["addresses"] = [
                [process, *session.address]
                for process in sorted(names.values())
                if (session := self._nodes.get(process)) is not None and session.address is not None
            ]
        return found

    @property
    def _place(self) -> Place:
        return place_named((self.state.network or self._founding).place)

    # -- connections ---------------------------------------------------------------------------

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        session = Session(writer)
        if len(self._sessions) >= SESSIONS_MAX:
            session.send({"op": "refused", "why": f"{SESSIONS_MAX} connections are open: wait"})
            writer.close()
            return
        self._sessions.add(session)
        try:
            async with asyncio.timeout(_HELLO_SECONDS):
                frame = parsed(*await read_frame(reader, REQUEST_BYTES_MAX))
            if frame["op"] == "peer":
                await self._take_raft(reader)
            elif frame["op"] == "status":
                session.send(self.status())
            elif frame["op"] == "hello":
                await self._take_requests(session, reader, frame)
            else:
                raise ControlError(f"{frame['op']!r} is not how a connection begins")
        except (ControlError, raft.CodecError, TocError) as error:
            session.send({"op": "refused", "why": str(error)})
        except (OSError, EOFError, TimeoutError):
            pass  # the worst that a peer can cause is that its connection ends
        finally:
            self._sessions.discard(session)
            if self._nodes.get(session.node) is session:
                del self._nodes[session.node]
            writer.close()

    async def _take_raft(self, reader: asyncio.StreamReader) -> None:
        while True:
            tag, body = await read_frame(reader, FRAME_BYTES_MAX)
            if tag != RAFT:
                raise ControlError("a member sends Raft messages only")
            self.node.step(decode(body))
            self._serve()

    async def _take_requests(
        self, session: Session, reader: asyncio.StreamReader, hello: Frame
    ) -> None:
        if not self.leads or self.state.network is None:
            session.send(self._moved())
            return
        if hello.get("kind") == "node":
            session.introduce(hello)
            former = self._nodes.get(session.node)
            began = self._pacing.began if self._pacing is not None else monotonic_ns()
            is_started = hello.get("started") is True
            if rival := rival_of(session, is_started, self.state, former, began):
                session.send(rival)
                return
        session.send({"op": "welcome", "term": self.node.term, "forwards": True})
        if session.node:
            self._attach(session)
        while True:
            frame = parsed(*await read_frame(reader, REQUEST_BYTES_MAX))
            session.hear(frame)
            reached = self._clock.now()
            if not self.leads:
                session.send(self._moved())
                return
            if frame["op"] == "clock":
                sent = number_in(frame, "sent")
                answer = {
                    "op": "clock",
                    "sent": sent,
                    "reached": reached,
                    "answered": self._clock.now(),
                }
                session.send(answer)
            elif frame["op"] == "links":
                self._read_links(session, frame, reached)
            elif frame["op"] == "forward":
                forward(session.node, frame, self.state, self._pacing, self._nodes)
            else:
                self._request(session, frame)
                self._serve()

    def _read_links(self, session: Session, frame: Frame, at: int) -> None:
        """Take what a node reads of its links, and report what is wrong."""
        if self._pacing is not None and session.node:
            self._alarm(readings_in(session.node, frame, at, self.state, self._pacing))

    def _alarm(self, found: Sequence[Lagging | Held]) -> None:
        """Report links that begin or cease to lag, and processes that hold barriers back."""
        for one in found:
            if not self._told.alarms.full():
                self._told.alarms.put_nowait(alarm_to(one, names_by_id(self.state)))

    def _attach(self, session: Session) -> None:
        """A node has connected: tell it all that it may have missed."""
        failures = self.state.failures
        assert failures is not None
        former = self._nodes.get(session.node)
        if former is not None:
            former.close()
        self._nodes[session.node] = session
        if session.node in failures.failed:
            session.send(excluded_of(failures, session.node))
            return
        for command in self.state.pending(session.node):
            self._command(command)
        if session.node in failures.topology.switches:
            session.send({"op": "switches", "switches": self._switches()})
        else:
            session.send(self._names())
            self._tell_names()  # its address may be new to the others

    def _request(self, session: Session, frame: Frame) -> None:
        """Propose what a node asks or reports; `_answer` follows once it is applied."""
        op, number = frame["op"], number_in(frame, "number")
        record: Record
        if op == "attach":
            session.introduce(frame)
            session.send({"op": "done", "number": number})
            self._attach(session)
            return
        if op == "report":
            report = report_from(frame.get("report"))
            if isinstance(report, Returned) and not self._may_ask(session.node, report):
                session.send({"op": "done", "number": number, "decided": False})
                return
            record = Reported(session.node, session.incarnation, number, report)
        elif op == "register":
            name = text_in(frame, "name")
            rack = frame.get("rack")
            rack = self.state.emptiest_rack() if rack is None else number_in(frame, "rack")
            never = self._no_rack(rack)
            why = never or self.state.refusal(name, rack) or self._not_connected(rack)
            if why:
                session.send({"op": "refused", "number": number, "why": why, "never": bool(never)})
                return
            record = Registered(name, rack, number_in(frame, "nonce"))
        elif op == "start":
            record = SwitchStarted(session.node, session.incarnation, text_in(frame, "host"),
                                   number_in(frame, "port"))  # fmt: skip
        else:
            raise ControlError(f"{op!r} is no request: this node has another version")
        try:
            index = self._propose(record)
        except raft.RaftError as error:
            raise ControlError(f"{error}: ask again") from error  # by another connection
        self._waiting[index] = session, number, record

    def _may_ask(self, process: int, returned: Returned) -> bool:
        failures = self.state.failures
        return failures is not None and is_decided(failures, self._pacing, process, returned)

    def _no_rack(self, rack: int) -> str:
        """Why no process can ever join a rack: this network has none of that number."""
        assert self.state.failures is not None
        racks = len(self.state.failures.topology.racks)
        if rack < racks:
            return ""
        has = f"racks 0 to {racks - 1}" if racks > 1 else "rack 0 alone"
        return f"there is no rack {rack}: this network has {has}"

    def _not_connected(self, rack: int) -> str:
        """Why no process can join a rack now: its address may be that of a former aggregator."""
        assert self.state.failures is not None
        switch = self.state.failures.topology.switch_of_rack(rack).id
        session = self._nodes.get(switch)
        if session is not None and session.incarnation == self.state.switches[switch].incarnation:
            return ""
        return f"the aggregator of rack {rack} is not connected: start it, or wait for it"

    def _answer(self, number: int, record: Record) -> Frame:
        """Return the answer to a request that is applied."""
        done: Frame = {"op": "done", "number": number}
        network, state = self.state.network, self.state
        assert network is not None
        assert state.failures is not None
        if isinstance(record, Registered):
            named = state.names.get(record.name)
            if named is None or named.nonce != record.nonce:
                why = state.refusal(record.name, record.rack) or "another one was first"
                return {"op": "refused", "number": number, "why": why}
            rack = state.rack_switch(named.process)
            at = state.switches[rack]
            return {**done, "process": named.process, "interval": network.interval,
                    "switch": rack, "host": at.host, "port": at.port,
                    "place": network.place}  # fmt: skip
        if isinstance(record, Reported) and isinstance(record.report, Returned):
            found = state.failures.decisions(record.node, record.report.senders)
            return {**done, "decided": True, **(decisions_to(found) if found is not None else {})}
        if isinstance(record, SwitchStarted):
            at_now = state.switches.get(record.switch)
            is_new = at_now is None or at_now.incarnation != record.incarnation
            # One that the network does not have learns that from the shape.
            if is_new and record.switch in state.failures.topology.switches:
                why = "the former aggregator of this switch has not been settled yet: ask again"
                return {"op": "refused", "number": number, "why": why}
            shape = [network.racks, network.spines, network.cores]
            return {
                **done,
                "interval": network.interval,
                "place": network.place,
                "drain_rate": network.drain_rate,
                "mark_above": network.mark_above,
                "shape": shape,
                "switches": self._switches(),
            }
        return done

    def _moved(self) -> Frame:
        leader = self.node.leader
        to = self.members.get(leader)
        if leader == self.id or to is None:
            return {"op": "moved", "to": None, "why": "no leader is known here: ask again"}
        why = f"member {leader} leads at {to[0]}:{to[1]}"
        return {"op": "moved", "to": list(to), "why": why}

    def status(self) -> Frame:
        """Return what this member knows, for `weir-toc status`."""
        state, node = self.state, self.node
        has_majority = node.leader != 0
        problem = "" if has_majority else _NO_MAJORITY
        if not problem and state.network not in (None, self._founding):
            problem = f"this group was founded as {state.network}: other flags do nothing"
        found: dict[str, Any] = {
            "op": "status",
            "member": self.id,
            "role": node.role.value,
            "term": node.term,
            "leader": node.leader,
            "leader_at": self.members.get(node.leader),
            "majority": has_majority,
            "problem": problem,
            "log": {"bytes": self.log.size, "last": self.log.last_index(),
                    "applied": node.log.applied},
        }  # fmt: skip
        sessions = self._nodes if node.role is raft.Role.LEADER else None
        return {**found, **status_of(state, sessions, self._pacing)}


def excluded_of(failures: FailureState, process: int) -> Frame:
    """Return what a process is told that has failed."""
    return {"op": "excluded", "cut_off": failures.was_cut_off(process)}


def is_decided(
    failures: FailureState, pacing: Pacing | None, process: int, returned: Returned
) -> bool:
    """Whether all is decided that a process which has come back holds, so that it may ask.

    In each rack a process that goes on has used a commit barrier at or above it. So whoever
    recalled some of it had that noted before, and the answer follows all that is noted by now; and
    who fails later does so at a stamp that is not below it.
    """
    is_passed = pacing is not None and returned.through <= pacing.away.passed(failures)
    return is_passed and process in failures.failed
