"""The supervisor of a node of several shards: starts their processes, and keeps them running.

It is on no data path. It holds the folder and the ports, gives each process its shard, connects
them by trunks, and starts one again that ended. It ends the node when a disk failed, when a shard
says that it cannot serve, or when starting it again does not help.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from asyncio.subprocess import DEVNULL, Process, create_subprocess_exec
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from weir.errors import WeirError
from weir.server.children import environment, python
from weir.server.config import Config
from weir.server.exits import EXIT_DISK
from weir.server.folder import Founded, NodeFolder, Started
from weir.server.notify import Notifier
from weir.server.ports import Ports, reserved
from weir.server.signals import stop_by_signal
from weir.server.tether import (
    ALIVE_SECONDS,
    Assignment,
    Away,
    Drained,
    Failed,
    FromShard,
    NewTrunk,
    Ready,
    Stop,
    Tether,
    TrunkLost,
)

log = logging.getLogger(__name__)

#: A shard that ends so often within so many seconds ends the node.
ENDS_MAX = 5
ENDS_WITHIN_SECONDS = 60.0
_FIRST_PAUSE_SECONDS = 0.1
#: A shard that was not heard of at so many looks does not serve, until it is heard of again.
_LOOKS_MISSED_MAX = 3
#: What a process may take to end beyond the time to drain.
_GRACE_SECONDS = 5.0
#: The manager's words are for the node: only the supervisor speaks to it.
_OF_MANAGER = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


class NodeFailed(WeirError):
    """The node cannot go on; the message says which shard, and why."""


class DiskGone(NodeFailed):
    """A shard's disk failed: nothing may be believed but what a restart reads."""


async def supervise(
    config: Config,
    founded: Founded,
    shards: int,
    started: Started | None = None,
    stop: asyncio.Event | None = None,
) -> bool:
    """Run a node of several shards until `stop` is set, or a signal comes.

    See `weir.server.main.run`.
    """
    stopping = stop or asyncio.Event()
    stop_by_signal(stopping)
    folder, node = NodeFolder(config.node.data), config.node
    with (
        folder.held(),
        contextlib.closing(Notifier(os.environ)) as notifier,
        reserved(node.host, node.port, shards) as ports,
    ):
        crew = Crew(config, founded, shards, ports)
        try:
            await crew.start(stopping)
            if not stopping.is_set():
                with folder.announced(ports.host, ports.shared, started):
                    fields = {"shards": shards, "host": ports.host, "port": ports.shared}
                    log.info(
                        "%d shards serve %s:%d", shards, ports.host, ports.shared,
                        extra={"fields": fields},
                    )  # fmt: skip
                    notifier.ready(f"serving from {node.data}")
                    await crew.wait(stopping)
                    notifier.stopping(config.stop.drain_seconds)
        finally:
            drained = await crew.stop()
    log.info("stopped" if drained else "stopped before everything was drained")
    return drained


class Member:
    """One shard's process, and the tether to it."""

    def __init__(
        self, shard: int, changed: Callable[[], None], lost: Callable[[Member, int], None]
    ) -> None:
        """Be nothing yet; `start` starts the process.

        `changed`: whether it serves may have. `lost`: it lost the trunk to a shard.
        """
        self.shard = shard
        #: How many looks it was not heard of.
        self.silence = 0
        self._changed = changed
        self._lost = lost
        self.starts = 0
        self.ready = asyncio.Event()
        self.drained = False
        self.failed: Failed | None = None
        self.process: Process | None = None
        self._gone = asyncio.Event()
        self._tether: Tether | None = None

    @property
    def serves(self) -> bool:
        """Whether it is up, and its loop turns."""
        return self.ready.is_set() and self.silence < _LOOKS_MISSED_MAX

    @property
    def silent(self) -> bool:
        """Whether it is up and stands still."""
        return self.there and self.ready.is_set() and self.silence >= _LOOKS_MISSED_MAX

    @property
    def there(self) -> bool:
        """Whether there is a process to say something to."""
        return self._tether is not None

    async def start(self, assignment: Assignment, doors: Sequence[socket.socket]) -> None:
        """Start the process and tell it what it is; it listens on `doors` with the others."""
        self._gone.clear()
        self.starts += 1
        self.silence, self.failed, self.drained = 0, None, False
        ours, theirs = socket.socketpair()
        with theirs:
            files = [one.fileno() for one in (theirs, *doors)]
            self.process = await create_subprocess_exec(
                *python("weir.server.child", *map(str, files)),
                stdin=DEVNULL,
                pass_fds=files,
                env=_without(environment(), _OF_MANAGER),
                # Ctrl-C is for the supervisor, which lets all of them drain.
                process_group=0,
            )
        self._tether = Tether(ours, FromShard, self._told, self._gone.set)
        self._tether.tell(assignment)

    def tell(self, message: NewTrunk | Stop | Away, end: socket.socket | None = None) -> None:
        """Say something to the process, if it is there."""
        if self._tether is not None and not self._tether.tell(message, end):
            assert self.process is not None
            log.error("shard %d does not listen: it is killed", self.shard, extra=_about(self))
            if self.process.returncode is None:
                self.process.kill()

    async def ended(self) -> int:
        """Return how the process ended, once it has, and all it had said is read."""
        assert self.process is not None
        code = await self.process.wait()
        await self._gone.wait()  # its last words come before
        if self._tether is not None:
            self._tether.close()
            self._tether = None
        self.ready.clear()
        self._changed()
        return code

    def _told(self, message: FromShard, _: socket.socket | None) -> None:
        goes_on, self.silence = self.silent, 0
        if goes_on:
            self._changed()
        match message:
            case TrunkLost(shard):
                self._lost(self, shard)
            case Ready():
                self.ready.set()
                self._changed()
                if self.starts > 1:
                    log.info("shard %d serves again", self.shard, extra=_about(self))
            case Failed():
                self.failed = message
            case Drained(everything):
                self.drained = everything


class Crew:
    """All shard processes of a node."""

    def __init__(self, config: Config, founded: Founded, shards: int, ports: Ports) -> None:
        """Take what every shard is told; `start` starts them."""
        self._config = config
        self._founded = founded
        self._ports = ports
        self._members = [
            Member(shard, self._tell_who_serves, self._join_again) for shard in range(shards)
        ]
        self._away = Away(())
        self._keepers: list[asyncio.Task[None]] = []
        self._watch: asyncio.Task[None] | None = None
        self._stopping = False

    async def start(self, stopping: asyncio.Event) -> None:
        """Start all; return when all serve, or `stopping` is set.

        Raises `NodeFailed`, or `OSError` if a port cannot be listened on.
        """
        self._keepers = [
            asyncio.create_task(self._keep(member), name=f"weir shard {member.shard}")
            for member in self._members
        ]
        self._watch = asyncio.create_task(self._look_again_and_again(), name="weir watch")
        for member in self._members:
            await self._until(stopping, member.ready)

    async def wait(self, stopping: asyncio.Event) -> None:
        """Return when `stopping` is set. Raises `NodeFailed` if a shard cannot be kept running."""
        await self._until(stopping)

    async def stop(self) -> bool:
        """Let all drain, and end. False if one of them did not in time."""
        self._stopping = True
        self._ports.leave()
        if self._watch is not None:
            self._watch.cancel()
        for member in self._members:
            # One that is between two processes has nothing under way: its next start reads its log.
            member.drained = not member.there
            member.tell(Stop())
        seconds = self._config.stop.drain_seconds + _GRACE_SECONDS
        late = self._keepers and (await asyncio.wait(self._keepers, timeout=seconds))[1]
        for member in self._members:
            if member.process is not None and member.process.returncode is None:
                member.process.kill()
        if late:
            await asyncio.wait(late)
        for keeper in self._keepers:
            keeper.exception()  # whoever waited was told of the first one
        return not late and all(member.drained for member in self._members)

    async def _until(self, *events: asyncio.Event) -> None:
        waiting = [asyncio.ensure_future(event.wait()) for event in events]
        try:
            done, _ = await asyncio.wait(
                [*waiting, *self._keepers], return_when=asyncio.FIRST_COMPLETED
            )
            for one in done.difference(waiting):
                one.result()
        finally:
            for one in waiting:
                one.cancel()

    async def _keep(self, member: Member) -> None:
        """Start a process again and again, until the node stops or that makes no sense."""
        loop = asyncio.get_running_loop()
        ends: deque[float] = deque()
        while not self._stopping:
            await self._start(member)
            code = await member.ended()
            if self._stopping:
                return
            if code == EXIT_DISK:
                raise DiskGone(f"shard {member.shard}: its disk failed")
            if (failed := member.failed) is not None:
                raise (
                    OSError(failed.errno, failed.reason, failed.file)
                    if failed.errno
                    else NodeFailed(failed.reason)
                )
            how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            ends.append(loop.time())
            while ends[-1] - ends[0] > ENDS_WITHIN_SECONDS:
                ends.popleft()
            if len(ends) == ENDS_MAX:
                raise NodeFailed(
                    f"shard {member.shard} ended {ENDS_MAX} times within "
                    f"{ENDS_WITHIN_SECONDS:g} s, the last time by {how}: what it wrote before "
                    "says why"
                )
            log.error(
                "shard %d ended by %s: it is started again", member.shard, how, extra=_about(member)
            )
            await asyncio.sleep(_FIRST_PAUSE_SECONDS * 2 ** (len(ends) - 1))

    async def _look_again_and_again(self) -> None:
        """Kill a shard that stands still; `_keep` starts it again.

        Looks are counted, not seconds: where this process stood still too, nobody is to blame.
        """
        missed_max = self._config.node.hang_seconds / ALIVE_SECONDS
        while True:
            await asyncio.sleep(ALIVE_SECONDS)
            for member in self._members:
                # How long one takes to start depends on its logs; it may be busy with those.
                if not member.ready.is_set() or member.process is None:
                    continue
                member.silence += 1
                if member.silence == _LOOKS_MISSED_MAX:
                    log.warning("shard %d does not answer", member.shard, extra=_about(member))
                if member.silence >= missed_max and member.process.returncode is None:
                    log.error(
                        "shard %d said nothing for %g s: it is killed",
                        member.shard,
                        self._config.node.hang_seconds,
                        extra=_about(member),
                    )
                    member.process.kill()
            self._tell_who_serves()

    def _tell_who_serves(self) -> None:
        away = Away(
            tuple(member.shard for member in self._members if not member.serves),
            tuple(member.shard for member in self._members if member.silent),
        )
        if away != self._away:
            was, self._away = self._away, away
            for member in self._members:
                member.tell(away)
            for shard in set(was.silent).difference(away.silent):
                self._join(self._members[shard])

    def _join(self, member: Member) -> None:
        """Give a process trunks to and from all others that go on."""
        for other in self._members:
            if member.there and other is not member and other.there and not other.silent:
                _connect(member, other)
                _connect(other, member)

    def _join_again(self, asking: Member, shard: int) -> None:
        """Replace a trunk that broke, unless a process ended: that starts with new ones."""
        serving = self._members[shard]
        starts = asking.starts, serving.starts

        def join() -> None:
            same = starts == (asking.starts, serving.starts)
            if same and not any(one.silent or not one.there for one in (asking, serving)):
                _connect(asking, serving)

        if not self._stopping:
            asyncio.get_running_loop().call_later(_FIRST_PAUSE_SECONDS, join)

    async def _start(self, member: Member) -> None:
        """Start a process, and connect it with all others, which learn that way of the new one."""
        await member.start(
            Assignment(
                self._config,
                self._founded,
                member.shard,
                len(self._members),
                self._ports.own,
            ),
            self._ports.doors,
        )
        member.tell(self._away)
        if self._stopping:  # it was too late to hear of it
            member.tell(Stop())
        self._join(member)


def _about(member: Member) -> dict[str, dict[str, int]]:
    """Return what a record of the log gives as its fields."""
    return {"fields": {"shard": member.shard}}


def _connect(asking: Member, serving: Member) -> None:
    """Give two shards the ends of a trunk; in vain where one is not there: it gets another."""
    one, other = socket.socketpair()
    with one, other:
        asking.tell(NewTrunk(serving.shard, asks=True), one)
        serving.tell(NewTrunk(asking.shard, asks=False), other)


def _without(environment: Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name not in names}
