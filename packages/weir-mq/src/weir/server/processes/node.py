"""A node: one process, or a supervisor and a process for each shard.

The supervisor starts the processes of a node of several shards, and keeps them running. It is on no
data path, and does what `weir.host.supervision` decides. It holds the folder and the ports, gives
each process its shard, connects them by trunks, and starts one again that ended. It ends the node
when a disk failed, when a shard says that it cannot serve, or when starting it again does not help.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, Process, create_subprocess_exec
from collections.abc import Callable, Mapping, Sequence

from weir.host.supervision import (
    ALIVE_SECONDS,
    FIRST_PAUSE_SECONDS,
    Action,
    AwayNotice,
    DiskGone,
    LostTrunk,
    NodeFailed,
    ProcessKill,
    Supervision,
    TrunkJoin,
)
from weir.server.config import BadConfig, Config, metrics_ports
from weir.server.disk.file_disk import EXIT_DISK
from weir.server.disk.node_folder import Founded, NodeFolder, Started
from weir.server.exposure import check_exposure
from weir.server.interpreter import environment, python, run_loop, stop_by_signal
from weir.server.network.addresses import Ports, check_free, reserved
from weir.server.processes.control_channel import (
    Assignment,
    Away,
    ControlChannel,
    Drained,
    Failed,
    FromShard,
    NewTrunk,
    Ready,
    Stop,
    TrunkLost,
)
from weir.server.status import Notifier

log = logging.getLogger(__name__)

#: What a process may take to end beyond the time to drain.
_GRACE_SECONDS = 5.0
#: The manager's words are for the node: only the supervisor speaks to it.
_OF_MANAGER = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


def run(config: Config, started: Started | None = None) -> bool:
    """Run a node until SIGTERM or SIGINT, then drain. Returns False if draining took too long.

    `started` is told host and port once clients may connect. Raises `WeirError` if the folder or
    a log cannot be used, a shard cannot be kept running, or anyone in a network could use the node
    and that is not meant; and `OSError` if the port cannot be listened on.
    """
    folder = NodeFolder(config.node.data)
    if folder.founded() is None:
        check_free(config)
    check_exposure(config)
    founded = folder.found(config.node.logs)
    shards = min(config.node.shards or os.cpu_count() or 1, founded.logs)
    if config.node.shards > shards:
        log.warning(
            "%d shards were requested, and %d run: each needs one of the %d logs that the "
            "node was created with",
            config.node.shards,
            shards,
            founded.logs,
            extra={"fields": {"shards": shards, "logs": founded.logs}},
        )
    if problem := metrics_ports(config, shards):
        raise BadConfig([problem])
    # A supervisor needs nothing of what a shard is made of, and its shards wait for it.
    if shards == 1:
        from weir.server.assembly import serve

        return run_loop(serve(config, started))

    try:
        return asyncio.run(supervise(config, founded, shards, started))
    except DiskGone as error:
        log.critical("%s", error)
        sys.exit(EXIT_DISK)


async def supervise(
    config: Config,
    founded: Founded,
    shards: int,
    started: Started | None = None,
    stop: asyncio.Event | None = None,
) -> bool:
    """Run a node of several shards until `stop` is set, or a signal comes.

    See `weir.server.processes.node.run`.
    """
    stopping = stop or asyncio.Event()
    stop_by_signal(stopping)
    folder, node = NodeFolder(config.node.data), config.node
    with (
        folder.held(),
        contextlib.closing(Notifier(os.environ)) as notifier,
        reserved(node.host, node.port, shards) as ports,
    ):
        processes = Processes(config, founded, shards, ports)
        try:
            await processes.start(stopping)
            if not stopping.is_set():
                with folder.announced(ports.host, ports.shared, started):
                    fields = {"shards": shards, "host": ports.host, "port": ports.shared}
                    log.info(
                        "%d shards serve %s:%d", shards, ports.host, ports.shared,
                        extra={"fields": fields},
                    )  # fmt: skip
                    notifier.ready(f"serving from {node.data}")
                    await processes.wait(stopping)
                    notifier.stopping(config.stop.drain_seconds)
        finally:
            drained = await processes.stop()
    log.info("stopped" if drained else "stopped before everything was drained")
    return drained


class Member:
    """One shard's process, and the control channel to it."""

    def __init__(self, shard: int, received: Callable[[Member, FromShard], None]) -> None:
        """Be nothing yet; `start` starts the process. `received` is given what it says."""
        self.shard = shard
        self.ready = asyncio.Event()
        self.drained = False
        self.failed: Failed | None = None
        self.process: Process | None = None
        self._received = received
        self._gone = asyncio.Event()
        self._channel: ControlChannel | None = None

    async def start(self, assignment: Assignment, listeners: Sequence[socket.socket]) -> None:
        """Start the process and tell it what it is; it listens on `listeners` with the others."""
        self._gone.clear()
        self.failed, self.drained = None, False
        ours, theirs = socket.socketpair()
        with theirs:
            files = [one.fileno() for one in (theirs, *listeners)]
            self.process = await create_subprocess_exec(
                *python("weir.server.processes.shard_process", *map(str, files)),
                stdin=DEVNULL,
                pass_fds=files,
                env=_without(environment(), _OF_MANAGER),
                # Ctrl-C is for the supervisor, which lets all of them drain.
                process_group=0,
            )
        self._channel = ControlChannel(ours, FromShard, self._heard, self._gone.set)
        self._channel.tell(assignment)

    def tell(self, message: NewTrunk | Stop | Away, end: socket.socket | None = None) -> None:
        """Say something to the process, if it is there."""
        if self._channel is not None and not self._channel.tell(message, end):
            log.error("shard %d does not listen: it is killed", self.shard, extra=_about(self))
            self.kill()

    def kill(self) -> None:
        """Kill the process, if it runs."""
        if self.process is not None and self.process.returncode is None:
            self.process.kill()

    async def ended(self) -> int:
        """Return how the process ended, once it has, and all it had said is read."""
        assert self.process is not None
        code = await self.process.wait()
        await self._gone.wait()  # its last words come before
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        self.ready.clear()
        return code

    def _heard(self, message: FromShard, _: socket.socket | None) -> None:
        match message:
            case Failed():
                self.failed = message
            case Drained(everything):
                self.drained = everything
        self._received(self, message)
        if isinstance(message, Ready):
            self.ready.set()


class Processes:
    """All shard processes of a node: does what `weir.host.supervision` decides."""

    def __init__(self, config: Config, founded: Founded, shards: int, ports: Ports) -> None:
        """Take what every shard is told; `start` starts them."""
        self._config = config
        self._founded = founded
        self._ports = ports
        self._members = [Member(shard, self._received) for shard in range(shards)]
        self._supervision = Supervision(
            shards, config.node.hang_seconds, ALIVE_SECONDS, FIRST_PAUSE_SECONDS, log
        )
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
            if self._supervision.is_up(member.shard):
                member.drained = False
                member.tell(Stop())
            else:
                # It would first read its logs, and hear of it after that: nobody knows how long.
                member.drained = True
                member.kill()
        seconds = self._config.stop.drain_seconds + _GRACE_SECONDS
        late = self._keepers and (await asyncio.wait(self._keepers, timeout=seconds))[1]
        for member in self._members:
            member.kill()
        if late:
            await asyncio.wait(late)
        for keeper in self._keepers:
            keeper.exception()  # the waiting caller got the first one
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
        while not self._stopping:
            await self._start(member)
            code = await member.ended()
            self._do(self._supervision.gone(member.shard))
            if self._stopping:
                return
            how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            failed = None if member.failed is None else _error(member.failed)
            seconds = self._supervision.again(
                member.shard, how, code == EXIT_DISK, failed, loop.time()
            )
            await asyncio.sleep(seconds)

    async def _look_again_and_again(self) -> None:
        """Kill a shard that stands still; `_keep` starts it again."""
        while True:
            await asyncio.sleep(ALIVE_SECONDS)
            self._do(self._supervision.look())

    def _received(self, member: Member, message: FromShard) -> None:
        supervision, shard = self._supervision, member.shard
        self._do(supervision.heard(shard))
        if isinstance(message, Ready):
            self._do(supervision.served(shard))
        elif isinstance(message, TrunkLost) and not self._stopping:
            trunk, seconds = supervision.lost(shard, message.shard)
            asyncio.get_running_loop().call_later(seconds, self._replace, trunk)

    def _replace(self, trunk: LostTrunk) -> None:
        self._do(self._supervision.replace(trunk))

    def _do(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case AwayNotice(shard, away, silent):
                    self._members[shard].tell(Away(away, silent))
                case TrunkJoin(asking, serving):
                    _connect(self._members[asking], self._members[serving])
                case ProcessKill(shard):
                    self._members[shard].kill()

    async def _start(self, member: Member) -> None:
        """Start a process."""
        await member.start(
            Assignment(
                self._config,
                self._founded,
                member.shard,
                len(self._members),
                self._ports.own,
            ),
            self._ports.listeners,
        )
        self._do(self._supervision.started(member.shard))
        if self._stopping:  # too late for `stop`
            member.kill()


def _error(failed: Failed) -> Exception:
    if failed.errno:
        return OSError(failed.errno, failed.reason, failed.file)
    return NodeFailed(failed.reason)


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
