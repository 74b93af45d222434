"""Random events for a switch in Python and one in the kernel, which must do the same."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random

from rigs.xdp_path import Sent, Twins, without_beacons
from weir_toc import packet as wire
from weir_toc.node import Effect, Silent
from weir_toc.packet import Packet
from weir_toc.registers import Input
from weir_toc.topology import Topology, process_id
from weir_toc.xdp import layout as at

T = 1_000_000
#: One second before stamps wrap.
START = ((1 << 48) - 1_000_000_000) // T * T
A, B, FAR = process_id(0, 1), process_id(0, 2), process_id(1, 1)
TREE = Topology.tree(2, 2, 1)


def beacon(source: int, barrier: int, epoch: int = 1, to: int = wire.NEIGHBOUR) -> bytes:
    return bytes(wire.encode(Packet(wire.BEACON, source, to, barrier=barrier, commit=barrier - 7,
                                    epoch=epoch)))  # fmt: skip


def data(source: int, to: int, stamp: int, psn: int = 0, epoch: int = 1, size: int = 9) -> bytes:
    return bytes(wire.encode(Packet(wire.DATA_BE, source, to, stamp, stamp, stamp - 1, psn,
                                    epoch=epoch, payload=bytes(size))))  # fmt: skip


def join(both: Twins, *processes: int, now: int = START) -> None:
    for process in processes:
        message = bytes(wire.encode(Packet(wire.JOIN, process, epoch=1)))
        wanted, found = both.receive(now, process, message)
        assert wanted == found
        assert len(found) == 1


def same_registers(both: Twins, now: int = START) -> None:
    """All minima, registers and flags are the same in the kernel.

    A half without inputs promises its own time: both are asked for it at the same moment.
    """
    words, node = both.path.words, both.node
    both.path.execute(now, [])
    if node.up.aggregate(now):
        node.down.raise_to(node.down.inputs[node.switch.id], node.up.barrier, node.up.commit, now)
    assert [*words[at.UP_BARRIER : at.DOWN_COMMIT + 1]] == [
        node.up.barrier, node.up.commit, node.down.barrier, node.down.commit
    ]  # fmt: skip
    for half in (node.up, node.down):
        for neighbour, one in half.inputs.items():
            if neighbour != node.switch.id:
                assert register(both, neighbour) == (
                    one.epoch, one.barrier, one.commit, one.live, one.frozen, one.removed,
                    one.packets,
                )  # fmt: skip


def register(both: Twins, neighbour: int) -> tuple[object, ...]:
    words = both.path.words
    slots = range(at.SLOTS)
    (slot,) = (n for n in slots if words[at.word(n, at.ID)] == neighbour)
    flags = words[at.word(slot, at.FLAGS)]
    values = [words[at.word(slot, n)] for n in (at.EPOCH, at.BARRIER, at.COMMIT, at.PACKETS_IN)]
    return (*values[:3], *(bool(flags & n) for n in (at.LIVE, at.FROZEN, at.REMOVED)), values[3])


class World:
    """What happens to a pair of switches."""

    def __init__(self, both: Twins, dice: Random) -> None:
        self.both = both
        self.dice = dice
        self.now = START
        self.epochs = dict.fromkeys((*both.switch.lower, *both.switch.upper), 1)

    def play(self, steps: int) -> None:
        for _ in range(steps):
            self.now += self.dice.choice((T // 15, T // 4, T, 20_000_000))
            self.dice.choice((self.packet,) * 12 + (self.tick, self.tick, self.join, self.fail))()
            same_registers(self.both, self.now)

    def packet(self) -> None:
        neighbour = self.dice.choice([*self.epochs, A])
        epoch = self.epochs.get(neighbour, 1) + self.dice.choice((0,) * 8 + (1,))
        barrier = self.now + self.dice.randrange(-3 * T, 3 * T)
        if self.dice.random() < 0.5:
            # One that names a process is none of a switch of ours.
            to = self.dice.choice((wire.NEIGHBOUR,) * 5 + (FAR,))
            one = beacon(neighbour, barrier, epoch, to)
            self.epochs[neighbour] = epoch
        else:
            is_switch = neighbour in (*self.both.switch.lower, *self.both.switch.upper)
            source = self.dice.choice((A, B, FAR)) if is_switch else neighbour
            to = self.dice.choice((A, B, FAR, process_id(7, 1), wire.NEIGHBOUR))
            one = data(source, to, barrier, self.dice.randrange(1 << 32), epoch,
                       self.dice.randrange(1_401))  # fmt: skip
        if self.dice.random() < 0.05:
            one = one[: self.dice.randrange(wire.OVERHEAD_BYTES)]
        elif self.dice.random() < 0.1:
            self.both.receive_from_elsewhere(self.now, neighbour, one, self.dice.random() < 0.5)
            return
        wanted, found = self.both.receive(self.now, neighbour, one)
        assert _forwarded(wanted) == _forwarded(found)

    def tick(self) -> None:
        self.both.tick(self.now)

    def join(self) -> None:
        if self.both.switch.lower:
            return
        process = self.dice.choice((A, B, process_id(0, 3)))
        message = bytes(wire.encode(Packet(wire.JOIN, process, epoch=1)))
        wanted, found = self.both.receive(self.now, process, message)
        assert without_beacons(wanted) == without_beacons(found)
        self.epochs.setdefault(process, 1)

    def fail(self) -> None:
        both = self.both
        neighbour = self.dice.choice([*self.epochs])
        known: Input | None = both.node.registers().get(neighbour)
        if known is not None and self.dice.random() < 0.5:
            assert _silent(both.node.freeze(self.now, neighbour)) == _silent(
                both.xdp.freeze(self.now, neighbour))  # fmt: skip
        elif known is not None:
            for node in (both.node, both.xdp):
                node.remove(self.now, neighbour, known.frozen_epoch)
        else:
            dead = frozenset(self.dice.sample(TREE.links, 1))
            for node in (both.node, both.xdp):
                node.set_routes(TREE.routes(both.switch.id, dead))


def _forwarded(sent: Sequence[Sent]) -> list[Sent]:
    """Return what is no answer to a refused packet: the kernel lets fewer of them be answered."""
    return [one for one in without_beacons(sent) if one.packet[22] != wire.FENCED]


def _silent(effects: Iterable[Effect]) -> list[Effect]:
    return [one for one in effects if isinstance(one, Silent)]
