"""Kills, power cuts, cuts of links and slow disks at random: what was confirmed is there, once."""

from __future__ import annotations

import os
import random
from typing import Any

import pytest

from weir.model.topic import SettingsChange
from weir.protocol.client import messages as m

SEEDS = int(os.environ.get("WEIR_REPLICA_SEEDS", "6"))
STEPS = 400


class Ledger:
    """One producer that sends a few batches at a time, again until they are confirmed."""

    def __init__(self, trio: Any, produce: Any, info: m.TopicInfo, dice: random.Random) -> None:
        self.trio, self.produce, self.info, self.dice = trio, produce, info, dice
        self.group = info.addresses[0].group
        self.grant = trio.producer()
        self.sequence = 0
        #: Below this one all were asked for, of some node, at some time.
        self.behind = 0
        self.node: Any = None
        #: By sequence, the question under way.
        self.asked: dict[int, int] = {}
        #: By sequence, what was told of it.
        self.confirmed: dict[int, m.Confirm] = {}

    def value(self, sequence: int) -> bytes:
        return b"%08d" % sequence + bytes(sequence * 37 % 1_900)

    def batch(self, sequence: int) -> m.Produce:
        return self.produce(self.info, self.grant, sequence, self.value(sequence))

    def step(self) -> None:
        """Take answers; begin again at the first that has none, where another seems to lead."""
        if self.node is not None and not self._take():
            self.node = None
        if self.node is None:
            nodes = self.trio.live()
            leading = [n for n in nodes if n.group(self.group) and n.group(self.group).accepts]
            self.node = self.dice.choice((leading + nodes) or [None])
            self.asked.clear()
        if self.node is not None and len(self.asked) < 6:
            sequence = self.sequence + len(self.asked)
            self.asked[sequence] = self.node.ask(self.batch(sequence))
            self.behind = max(self.behind, sequence + 1)

    def _take(self) -> bool:
        """Return whether it goes well with this node."""
        node = self.node
        if not node.alive or 1 not in node.replies or self.dice.random() < 0.01:
            return False
        while self.asked:
            reply = node.reply_to(self.asked[self.sequence])
            if not isinstance(reply, m.Confirm):
                return reply is None
            del self.asked[self.sequence]
            self.confirmed[self.sequence] = reply
            self.sequence += 1
        return True


def disturb(trio: Any, dice: random.Random) -> None:
    node = trio.nodes[dice.choice((1, 2, 3))]
    match dice.randrange(15):
        case 0 if node.alive:
            node.kill()
        case 1 | 2 | 3 if not node.alive:
            node.boot()
        case 4:
            trio.isolate(node.id)
        case 5 | 6 | 7:
            trio.heal()
        case 8 | 9 if node.alive:
            node.shard.writers[0].checkpoints.save()
        case 10:
            trio.cut(node.id)
        case _:
            trio.run(dice.choice((50, 50, 100, 400)))


def some_work(trio: Any, dice: random.Random) -> None:
    """Let a few things happen, in any order."""
    for _ in range(dice.randrange(12)):
        trio.one(dice)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_whatever_happens_each_confirmed_message_is_there_once(
    make_trio: Any, produce: Any, small: Any, seed: int
) -> None:
    dice = random.Random(seed)
    trio = make_trio(replication=small, retention_every_ms=1)
    kept = dice.choice((None, 8_000))
    info = trio.topic(settings=SettingsChange(retention_bytes=kept))
    group = info.addresses[0].group
    ledger = Ledger(trio, produce, info, dice)
    for _ in range(STEPS):
        if dice.random() < 0.08:
            disturb(trio, dice)
        some_work(trio, dice)
        ledger.step()
        if dice.random() < 0.3:
            trio.pass_ms(50)
    trio.heal()
    for node in trio.nodes.values():
        if not node.alive:
            node.boot()
    # What was asked last may have been taken, and is found if it is asked again.
    for sequence in range(ledger.sequence, ledger.behind + 1):
        ledger.confirmed[sequence] = trio.told(ledger.batch(sequence), group)
    found = trio.same_everywhere(group)
    start = trio.nodes[1].group(group).machine.state.log_start
    offsets = {at: confirm.offset for at, confirm in ledger.confirmed.items()}
    assert sorted(offsets.values()) == list(range(len(offsets)))
    assert list(offsets) == sorted(offsets, key=offsets.__getitem__)
    assert found == [ledger.value(at) for at in sorted(offsets) if offsets[at] >= start]
    assert all(node.shard.budget.used == 0 for node in trio.live())
