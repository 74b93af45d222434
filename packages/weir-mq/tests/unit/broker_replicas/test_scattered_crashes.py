"""Scatterings in a set whose nodes crash at any point: all parts or none, once (*AllOrNone*)."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from rigs.damage import Crashes
from rigs.shards import JUDGE_SCATTERING, is_done
from weir.broker.scattering import participant
from weir.broker.scattering.coordinator import Scattering
from weir.broker.scattering.participant import Participant
from weir.broker.state import state
from weir.broker.state.producers import ProducerTable
from weir.errors import StaleGrant, UnknownTopic, refusal
from weir.model.batch import Batch
from weir.model.batch_builder import encode
from weir.model.columns import Scattered
from weir.model.ids import acks_part, batch_part, group_of
from weir.protocol.client import admin as a
from weir.protocol.client import messages as m
from weir.protocol.client.order import Part

SEEDS = int(os.environ.get("WEIR_SCATTER_SEEDS", "4"))
PARTITIONS = 3
INPUTS = 6
PATIENCE = 600
LEASE_MS = 2_000


def batches(fetched: m.Fetched) -> Iterator[Batch]:
    for piece in fetched.batches:
        at = 0
        while at < len(piece):
            batch = Batch(piece, at)
            at += batch.header.total_size
            yield batch


class Author:
    """One client that scatters, one after the other, and asks again until it knows."""

    def __init__(self, trio: Any, dice: random.Random) -> None:
        self.trio, self.dice = trio, dice
        trio.until(lambda: all(node.shard.ready for node in trio.live()))
        self.out = trio.topic("out", PARTITIONS)
        self._seat()
        #: What was confirmed: value, the partitions it went to, its stamp.
        self.confirmed: dict[bytes, tuple[tuple[int, ...], int]] = {}
        #: What may have come to be before a topic of it was gone, and where.
        self.doubtful: dict[bytes, tuple[int, ...]] = {}
        self.request: m.Scatter | None = None
        self.value = b""
        self.chosen: tuple[int, ...] = ()
        self.asked: tuple[Any, int, int] | None = None
        self.turns = 0
        #: Inputs that others have done.
        self.overtaken: set[int] = set()
        self.fill()

    def _seat(self) -> None:
        """Be another producer."""
        self.grant = self.trio.producer()
        self.number = 0
        self.sequences: Counter[int] = Counter()

    def fill(self) -> None:
        """Make the topic of inputs, and what is in it."""
        trio = self.trio
        self.inputs = trio.topic("in", 1)
        other = trio.producer()
        for number in range(INPUTS):
            address = self.inputs.addresses[0]
            data = encode(
                [b"in%d" % number], group=address.group, producer=other.producer,
                epoch=other.epoch, sequence=number,
            )  # fmt: skip
            trio.told(m.Produce(address, 0, memoryview(data)), address.group)

    def begin(self, acks: Any = None) -> None:
        """Make up another scattering."""
        self.turns += 1
        self.chosen = tuple(sorted(self.dice.sample(range(PARTITIONS), self.dice.randint(1, 3))))
        self.value = b"%d" % self.turns if acks is None else b"in%d/%d" % (acks[1], self.turns)
        groups = [self.out.addresses[p].group for p in self.chosen]
        parts = [batch_part(group) for group in groups]
        address = self.inputs.addresses[0]
        if acks is not None:
            parts.append(acks_part(address.group))
        scattered = Scattered(self.number, tuple(sorted(parts)))
        found = [
            Part(self.out.addresses[p], bytes(encode(
                [self.value], group=self.out.addresses[p].group, producer=self.grant.producer,
                epoch=self.grant.epoch, sequence=self.sequences[p], scattered=scattered,
            )))
            for p in self.chosen
        ]  # fmt: skip
        if acks is not None:
            found.append(Part(address, acks=[("crew", [acks])]))
        self.request = m.Scatter(self.grant.producer, self.grant.epoch, self.number, 0, found)

    def look(self) -> None:
        """See whether there is an answer; ask again, perhaps elsewhere, where there never will."""
        if self.request is None:
            return
        if self.asked is not None:
            node, life, correlation = self.asked
            if not node.alive or node.lives != life:
                self.asked = None
            elif (reply := node.reply_to(correlation)) is not None:
                self.asked = None
                self._answered(reply)
        if self.request is not None and self.asked is None:
            node = self.dice.choice(self.trio.live())
            self.asked = node, node.lives, node.ask(self.request)

    def _answered(self, reply: Any) -> None:
        if isinstance(reply, m.ScatterConfirm):
            self.confirmed[self.value] = self.chosen, reply.stamp
            self.number += 1
            self.sequences.update(self.chosen)
            self.request = None
            return
        error = refusal(reply.code, reply.message, reply.detail)
        if isinstance(error, UnknownTopic):
            self.request = None
            self.doubtful[self.value] = self.chosen
            self._seat()
        elif not error.retryable:
            assert isinstance(error, StaleGrant), error
            self.request = None

    def read(self) -> dict[int, list[tuple[bytes, int]]]:
        """Return by partition what readers get: values and stamps."""
        found: dict[int, list[tuple[bytes, int]]] = {}
        for partition in range(PARTITIONS):
            address, offset = self.out.addresses[partition], 0
            rows = found[partition] = []
            while True:
                reply = self.trio.told(m.Fetch(address, offset, 1 << 20), address.group)
                assert isinstance(reply, m.Fetched), reply
                rows += [(v, b.header.stamp) for b in batches(reply) for v in b.values()]
                if reply.next_offset == offset:
                    break
                offset = reply.next_offset
        return found

    def unfinished(self) -> int:
        """Return how much any leader remembers."""
        groups = [group_of(self.out.id, p) for p in range(PARTITIONS)]
        groups.append(group_of(self.inputs.id, 0))
        return sum(
            self.trio.leader(group).group(group).machine.state.scatterings.kept for group in groups
        )

    def check(self) -> None:
        """All is as `check_parts` says, and what was acked was so together with what it became."""
        places = self.check_parts()
        handled = Counter(value.split(b"/")[0] for value in places if b"/" in value)
        assert all(count == 1 for count in handled.values()), handled
        group = self.inputs.addresses[0].group
        crew = self.trio.leader(group).group(group).machine.state.clusters.get("crew")
        done = {b"in%d" % n for n in range(INPUTS) if crew is not None and is_done(crew, n, n + 1)}
        overtaken = {b"in%d" % offset for offset in self.overtaken}
        assert not overtaken & handled.keys()
        assert done == handled.keys() | overtaken

    def check_parts(self) -> dict[bytes, list[int]]:
        """Return what is where: all parts or none, at one stamp, once, and what was confirmed."""
        found = self.read()
        places: dict[bytes, list[int]] = {}
        stamps: dict[bytes, set[int]] = {}
        for partition, rows in found.items():
            assert [stamp for _, stamp in rows] == sorted({stamp for _, stamp in rows})
            for value, stamp in rows:
                places.setdefault(value, []).append(partition)
                stamps.setdefault(value, set()).add(stamp)
        for value, (chosen, stamp) in self.confirmed.items():
            assert places.get(value) == list(chosen), (value, chosen, places.get(value))
            assert stamps[value] == {stamp}
        for value, where in places.items():
            assert len(stamps[value]) == 1, (value, stamps[value])
            if value not in self.confirmed:
                assert self.doubtful.get(value) == tuple(where), (value, where)
        return places


def pulled(author: Author, trio: Any) -> tuple[int, int, int] | None:
    """Return a grant of one message of the inputs, if there is one."""
    address = author.inputs.addresses[0]
    reply = trio.told(m.Pull(address, "crew", 1, 1 << 20, lease_ms=LEASE_MS), address.group)
    assert isinstance(reply, m.Granted), reply
    return (reply.fence, reply.offset, reply.next_offset) if reply.fence else None


def overtake(author: Author, trio: Any) -> None:
    """Let a lease end, and another consumer do what it was for."""
    trio.run(2 * LEASE_MS)
    other, address = pulled(author, trio), author.inputs.addresses[0]
    if other is not None:
        reply = trio.told(m.Ack(address, "crew", [other]), address.group)
        assert isinstance(reply, m.Acked), reply
        author.overtaken.add(other[1])


@pytest.mark.parametrize("seed", range(SEEDS))
def test_all_or_none_whoever_crashes(
    make_trio: Any, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    play(make_trio, monkeypatch, seed)


def tried(author: Author, crashes: Crashes, dice: random.Random, deletes: bool) -> None:
    """Let nodes work on a scattering, in some order, and one of them crash."""
    trio = author.trio
    crash_at, delete_at = dice.randrange(60), dice.randrange(60) if deletes else -1
    for step in range(PATIENCE):
        author.look()
        if author.request is None:
            break
        if step == crash_at:
            crashes.step()
        if step == delete_at:
            dice.choice(trio.live()).ask(a.DeleteTopic("in", author.inputs.id))
        for _ in range(dice.randint(1, 4)):
            trio.one(dice)
        if dice.random() < 0.5:
            trio.trunks.carry()
        if dice.random() < 0.15 or step > 200:
            trio.pass_ms(dice.randint(1, 50))


def play(make_trio: Any, monkeypatch: pytest.MonkeyPatch, seed: int, deletes: bool = False) -> None:
    dice = random.Random(seed)
    # Participants may be hasty: whoever coordinates is then in the middle of it.
    monkeypatch.setattr(participant, "UNDECIDED_MS", dice.choice((0, 20, 500)))
    monkeypatch.setattr(participant, "UNCLOSED_MS", dice.choice((100, 10_000)))
    trio = make_trio()
    crashes = Crashes(trio, dice)
    author = Author(trio, dice)
    for _ in range(12):
        acks = pulled(author, trio) if deletes or dice.random() < 0.5 else None
        if acks is not None and not deletes and dice.random() < 0.3:
            overtake(author, trio)
        author.begin(acks)
        tried(author, crashes, dice, deletes)
        crashes.restore()
        for _ in range(400):
            author.look()
            if author.request is None:
                break
            trio.run(50)
        assert author.request is None, "it never came to an end"
        if deletes:
            trio.told(a.DeleteTopic("in", author.inputs.id), 0)
            author.fill()
    trio.until(lambda: author.unfinished() == 0 or trio.run(1_000), "something is never finished")
    if deletes:
        author.check_parts()
    else:
        author.check()
    for partition in range(PARTITIONS):
        trio.same_everywhere(group_of(author.out.id, partition))
    assert author.confirmed


@pytest.mark.parametrize("seed", range(SEEDS))
def test_what_is_left_comes_to_its_end_when_a_topic_is_deleted(
    make_trio: Any, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Readers of the other topic stood still for ever, at what was undecided."""
    play(make_trio, monkeypatch, seed, deletes=True)


def without_bars(patch: pytest.MonkeyPatch) -> None:
    """Say "never" of what may be prepared yet."""

    def ask(self: Participant, key: Any, caller: Any) -> None:
        self._reports.answer(caller, self._standing(key))

    patch.setattr(Participant, "_ask", ask)


def with_stale_acks(patch: pytest.MonkeyPatch) -> None:
    """Take acks of messages that are another consumer's, or done."""
    honest = state.put_aside

    def put_aside(*arguments: Any) -> Any:
        return honest(*arguments) or []

    patch.setattr(state, "put_aside", put_aside)
    patch.setattr(Participant, "_check_held", lambda *_: None)


def without_memory(patch: pytest.MonkeyPatch) -> None:
    """Forget the sequences of what is committed."""

    def record(self: ProducerTable, producer: int, epoch: int, answer: Any) -> None:
        """Note nothing."""

    def decide(self: state.PartitionState, attempt: Any, committed: bool) -> bool:
        with pytest.MonkeyPatch.context() as within:
            within.setattr(ProducerTable, "record", record)
            return honest(self, attempt, committed)

    honest = state.PartitionState.decide_batch
    patch.setattr(state.PartitionState, "decide_batch", decide)


def guessing(patch: pytest.MonkeyPatch) -> None:
    """Commit when half of the parts are prepared."""
    honest = getattr(*JUDGE_SCATTERING)

    def judge(self: Scattering) -> None:
        own = sum(map(self._is_own, self._answers.values()))
        if 2 * own >= len(self._parts):
            self._commit()
        else:
            honest(self)

    patch.setattr(*JUDGE_SCATTERING, judge)


@pytest.mark.parametrize(
    "rule",
    [without_bars, with_stale_acks, without_memory, guessing],
    ids=lambda rule: rule.__name__,
)
def test_a_rule_less_would_be_noticed(
    make_trio: Any, monkeypatch: pytest.MonkeyPatch, rule: Any
) -> None:
    rule(monkeypatch)
    for seed in range(30):
        try:
            play(make_trio, monkeypatch, seed)
        except AssertionError:
            return
    pytest.fail("30 runs without the rule, and nothing was amiss")
