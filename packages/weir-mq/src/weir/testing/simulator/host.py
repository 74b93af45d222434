"""The simulated node: logs on disks, and processes that serve them.

It does what `weir.host.supervision` decides about the processes of several shards, and starts a
node again that ended, as the manager of a machine's services does.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from msgspec.structs import replace

from weir.broker.api.settings import Identity, Layout, Member
from weir.errors import DiskFailed, WeirError
from weir.host.supervision import (
    ALIVE_SECONDS,
    FIRST_PAUSE_SECONDS,
    Action,
    AwayNotice,
    LostTrunk,
    NodeFailed,
    ProcessKill,
    Supervision,
    TrunkJoin,
)
from weir.model.limits import FORMAT_LEVEL
from weir.storage.errors import LogDamaged
from weir.storage.format.checkpoint import begin_lost
from weir.testing.simulator.disk import PowerCut
from weir.testing.simulator.network import Link
from weir.testing.simulator.process import Hardware, Machine, Process, Seat, join
from weir.testing.simulator.sockets import Dial
from weir.testing.simulator.witness import Witness
from weir.testing.simulator.world import MS, SECOND, World

BOOT = (5 * MS, 120 * MS)
#: From the start of the first process to that of another; and from what the supervisor says to a
#: process until that has heard it.
_APART = (0, 20 * MS)
_TOLD = (0, 10 * MS)
#: A shard that stands still for so long is killed.
_HANG_SECONDS = 5.0


class Host:
    """A node that may be cut from power, killed, as a whole or in part, and started again."""

    def __init__(
        self,
        world: World,
        machine: Machine,
        node: int,
        members: tuple[Member, ...],
        dial: Dial,
        witness: Witness,
        brokerset: int = 0,
    ) -> None:
        """Be down; `start` is what brings it up. `members` founded the system, `dial` finds them;
        the node is of the set `brokerset`.
        """
        self.world = world
        self.node = node
        self.hardware = Hardware(world, node, machine.logs)
        self.boots = 0
        #: From when on, in µs, it starts in the next release.
        self.next_release = -1
        #: Whether a log that cannot be opened may begin anew: nothing else is wrong in the set.
        self.others_have_all = False
        #: Why the node can never be started again; empty while it can.
        self.ruined = ""
        self.layout = Layout(machine.logs)
        birth = random.Random(node).getrandbits(62) if members else 0
        identity = Identity(machine.log.system, brokerset, node, members=members, birth=birth)
        self._seat = Seat(world, self.hardware, machine, identity, self, dial, witness)
        #: The shards' processes; None of one that has ended. Empty while the node is down.
        self._processes: list[Process | None] = []
        #: Decides about the processes, if there are several.
        self._supervision: Supervision | None = None
        self._trunks: dict[tuple[int, int], Link] = {}
        self._stopping = False
        #: Until when the whole machine stands still; and when all is heard that was told so far.
        self._stands_until = self._told_at = 0

    @property
    def brokerset(self) -> int:
        """The id of its set."""
        return self._seat.identity.brokerset

    @property
    def level(self) -> int:
        """What its release reads and writes."""
        return self._seat.machine.shard.level

    @property
    def up(self) -> bool:
        """Whether the node runs, if only in part."""
        return bool(self._processes)

    @property
    def running(self) -> list[Process]:
        """The processes that run."""
        return [process for process in self._processes if process is not None]

    @property
    def stopped(self) -> bool:
        """Whether all processes have done what a node does that is told to end."""
        return all(process.stopped for process in self.running)

    # -- life and death ------------------------------------------------------------------------

    def start(self) -> None:
        """Start a process for each shard; how many there are is drawn anew each time."""
        if self.up or self.ruined:
            return
        if 0 <= self.next_release <= self.world.now:
            self._upgrade()
        machine = self._seat.machine
        shards = self.world.dice.randint(1, min(machine.logs, machine.shards_max))
        self.layout = Layout(machine.logs, shards)
        self._processes = [None] * shards
        self._stopping = False
        self._supervision = None if shards == 1 else self._supervised(shards)
        self.boots += 1
        self.world.note("start", self.node, self.boots, shards)
        for shard in range(shards):
            delay = self.world.between(*_APART) if shards > 1 else 0
            self.world.after(delay, self._start_shard, self.boots, shard)
        if shards > 1:
            self._look_again(self.boots)

    def restart(self, after: int = 0) -> None:
        """Start again after a while, and `after` microseconds at least."""
        self.world.after(after + self.world.between(*BOOT), self.start)

    def die(self, power: bool) -> None:
        """Lose all processes at once, or the power with them."""
        if self.up:
            self.world.note("power cut" if power else "kill", self.node)
            self._end(power)

    def kill_shard(self, shard: int) -> None:
        """Lose one process, which is started again after a while."""
        process = self._processes[shard]
        if process is None:
            return
        self.world.note("kill shard", self.node, shard)
        self._lose(process)
        self._ended(shard)

    def stop(self) -> None:
        """Drain, as a node does that is told to end."""
        self._stopping = True
        for process in self.running:
            process.stop()

    def pause(self, duration: int) -> None:
        """Stand still for a while, as a virtual machine does that is moved."""
        self.world.note("pause", self.node, duration)
        self._stands_until = self.world.now + duration
        for process in self.running:
            process.standstill.pause()
            self.world.after(duration, process.standstill.go_on)

    def pause_shard(self, shard: int, duration: int) -> None:
        """Let one process stand still for a while."""
        process = self._processes[shard]
        if process is not None:
            self.world.note("pause shard", self.node, shard, duration)
            process.standstill.pause()
            self.world.after(duration, process.standstill.go_on)

    def go_on(self) -> None:
        """End every pause."""
        self._stands_until = 0
        for process in self.running:
            process.standstill.go_on()

    def _upgrade(self) -> None:
        self.next_release = -1
        machine = self._seat.machine
        shard = replace(machine.shard, level=FORMAT_LEVEL + 1)
        self._seat = replace(self._seat, machine=replace(machine, shard=shard))
        self.world.note("upgraded", self.node)

    def _end(self, power: bool) -> None:
        for process in self.running:
            process.end(power)
        self._processes = []
        self.hardware.stop(power)

    def _revive(self, shard: int) -> None:
        for log in self.layout.logs_of(shard):
            self.hardware.disks[log].kill()

    def _start_shard(self, boot: int, shard: int) -> None:
        """Start a process. The power may fail while it recovers its logs."""
        if boot != self.boots or not self.up:
            return
        supervision = self._supervision
        actions = [] if supervision is None else supervision.started(shard)
        try:
            process = Process(self._seat, shard, self.layout)
            process.start()
        except PowerCut:
            self.world.note("cut in recovery", self.node, shard)
            if self.world.chance(0.5):
                self._end(power=True)
                self.restart()
            else:
                self._revive(shard)
                self._ended(shard)
            return
        except DiskFailed:
            self.world.note("disk failed in recovery", self.node, shard)
            self._revive(shard)
            self._ended(shard, disk_failed=True)
            return
        except LogDamaged as error:
            if not self.others_have_all:
                self._ruin(error)
                return
            self.world.note("begun anew", self.node, error.log)
            disk = self.hardware.replace(error.log)
            begin_lost(disk, error.log, self._seat.machine.log.system)
            self._end(power=False)
            self.restart()
            return
        except WeirError as error:
            self._ruin(error)
            return
        self._processes[shard] = process
        self._do(actions)

    def _ruin(self, error: WeirError) -> None:
        self.ruined = str(error)
        self.world.note("ruined", self.node, self.ruined)
        self._end(power=False)

    def _lose(self, process: Process) -> None:
        self._processes[process.number] = None
        process.end()
        self._revive(process.number)

    # -- what the processes say, and what is decided about them --------------------------------

    def served(self, process: Process) -> None:
        """A process serves."""
        if self._supervision is not None and process in self.running:
            self._do(self._supervision.served(process.number))

    def disk_gone(self, process: Process) -> None:
        """A process ends when its disk fails, and the node with it."""
        self._lose(process)
        self._ended(process.number, disk_failed=True)

    def trunk_lost(self, process: Process, shard: int) -> None:
        """A trunk of a process broke: it may get another."""
        if self._supervision is not None and process in self.running and not self._stopping:
            trunk, seconds = self._supervision.lost(process.number, shard)
            self.world.after(int(seconds * SECOND), self._replace, self.boots, trunk)

    def _supervised(self, shards: int) -> Supervision:
        notes = _Notes(self.world, self.node)
        return Supervision(shards, _HANG_SECONDS, ALIVE_SECONDS, FIRST_PAUSE_SECONDS, notes)

    def _ended(self, shard: int, disk_failed: bool = False) -> None:
        """A process has ended: it is started again, or the node is."""
        supervision, now = self._supervision, self.world.now / SECOND
        if supervision is not None:
            self._do(supervision.gone(shard))
            if self._stopping:
                return
            try:
                seconds = supervision.again(shard, "SIGKILL", disk_failed, None, now)
            except NodeFailed as error:
                self.world.note("node failed", self.node, str(error))
            else:
                pause = int(seconds * SECOND) + self.world.between(*BOOT)
                self.world.after(pause, self._start_shard, self.boots, shard)
                return
        self._end(power=False)
        self.restart()

    def _replace(self, boot: int, trunk: LostTrunk) -> None:
        if self._supervision is not None and boot == self.boots and self.up:
            self._do(self._supervision.replace(trunk))

    def _look_again(self, boot: int) -> None:
        """Hear whose loops turn, and look who stands still, until the node ends."""
        supervision = self._supervision
        if supervision is None or boot != self.boots or not self.up or self._stopping:
            return
        self.world.after(int(ALIVE_SECONDS * SECOND), self._look_again, boot)
        if self.world.now < self._stands_until:
            return
        for process in self.running:
            if not process.standstill.lasts:
                self._do(supervision.heard(process.number))
        self._do(supervision.look())

    def _do(self, actions: Sequence[Action]) -> None:
        """Do what is decided: each process hears it in its order."""
        for action in actions:
            told_at = self.world.now + self.world.between(*_TOLD)
            self._told_at = max(self._told_at, told_at)
            self.world.after(self._told_at - self.world.now, self._carry_out, self.boots, action)

    def _carry_out(self, boot: int, action: Action) -> None:
        if boot != self.boots or not self.up:
            return
        match action:
            case AwayNotice(shard, _, silent):
                if (process := self._processes[shard]) is not None:
                    process.leave(silent)
            case TrunkJoin(asking, serving):
                one, other = self._processes[asking], self._processes[serving]
                if one is not None and other is not None:
                    join(one, other, self._trunks)
            case ProcessKill(shard):
                self.kill_shard(shard)

    # -- peers ---------------------------------------------------------------------------------

    def peers(self) -> list[Link]:
        """Return the connections of clients that are open as far as this side knows."""
        return [link for process in self.running for link in process.sockets.peers()]

    def trunks(self) -> list[tuple[int, int]]:
        """Return the trunks that can be broken, as the shard that asks and the one that serves."""
        shards = [process.number for process in self.running]
        return [(one, other) for one in shards for other in shards if one != other]

    def break_trunk(self, asking: int, serving: int) -> None:
        """Break a trunk, with all that is under way on it."""
        link = self._trunks.get((asking, serving))
        if link is not None and link.open:
            self.world.note("trunk", self.node, asking, serving)
            link.cut()


class _Notes:
    """Puts into the trace what the supervisor says."""

    def __init__(self, world: World, node: int) -> None:
        self._world = world
        self._node = node

    def info(self, text: str, *given: object, extra: object = None) -> None:
        self._world.note("supervisor", self._node, text % given)

    warning = error = info
