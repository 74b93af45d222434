"""Sinks in a set whose nodes crash at any point: each batch once, whole, at one stamp."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from typing import Any

import pytest

from rigs.damage import Crashes, mended, rot
from rigs.sinks import opened
from weir.broker.scattering import participant
from weir.broker.state.staging import Published, StagingTable
from weir.errors import BatchPublished, StagedRunGone, Unavailable, refusal
from weir.model.batch import parse
from weir.model.batch_builder import encode
from weir.model.columns import Publication, Scattered, StagedRun, chained
from weir.model.ids import acks_part, batch_part, group_of
from weir.model.limits import FORMAT_LEVEL
from weir.model.topic import SettingsChange
from weir.protocol.client import messages as m
from weir.protocol.client import nodes as n
from weir.protocol.client.sinks import PublicationPart, Publish, Stage, Staged
from weir.storage.format.frame import Kind

SEEDS = int(os.environ.get("WEIR_SINK_SEEDS", "3"))
PARTITIONS = 3
BATCHES = 6
PATIENCE = 900

#: What a driver does, until it is over: it yields requests, and gets their answers; None where
#: there is none.
Steps = Iterator[Any]


class Driver:
    """A query's driver and its tasks: stages each batch, publishes it, and begins again at will."""

    def __init__(self, trio: Any, dice: random.Random, **more: Any) -> None:
        self.trio, self.dice = trio, dice
        trio.until(lambda: all(node.shard.ready for node in trio.live()))
        trio.until(lambda: trio.told(n.RaiseLevel(), 0).level == FORMAT_LEVEL)
        self.info = trio.topic("out", PARTITIONS, order="total", **more)
        self.runs = 0
        self.begin()
        #: By batch, the values of each partition, in order.
        self.values: dict[int, dict[int, list[bytes]]] = {}
        self.asked: tuple[Any, int, int] | None = None

    def begin(self) -> None:
        """Be another producer."""
        self.grant = self.trio.producer()
        self.number = 0
        self.sequences: Counter[int] = Counter()

    def group(self, partition: int) -> int:
        return int(self.info.addresses[partition].group)

    def batch(self, batch_id: int) -> Any:
        """Stage a batch and publish it, as often as that takes."""
        chosen = sorted(self.dice.sample(range(PARTITIONS), self.dice.randint(1, 3)))
        content = {
            p: [
                [b"%d/%d/%d/%d" % (batch_id, p, row, k) for k in range(self.dice.randint(1, 3))]
                for row in range(self.dice.randint(1, 3))
            ]
            for p in chosen
        }
        self.values[batch_id] = {p: [*chain(*rows)] for p, rows in content.items()}
        while True:
            staged = {}
            for partition, rows in content.items():
                at = self.dice.randrange(len(rows))  # two tasks write to it, or one
                staged[partition] = []
                for some in (rows[:at], rows[at:]):
                    if some:
                        staged[partition] += yield from self.stage(batch_id, partition, some)
            if self.dice.random() < 0.15:
                continue  # the driver dies, and the batch is run again
            done = yield from self.publish(batch_id, staged)
            if done and self.dice.random() < 0.7:
                return  # else the driver dies before it has noted that

    def stage(self, batch_id: int, partition: int, rows: list[list[bytes]]) -> Any:
        self.runs += 1
        run, number, hash_ = self.runs, 0, 0
        while number < len(rows):
            data = bytes(encode(rows[number], group=self.group(partition)))
            address = self.info.addresses[partition]
            reply = yield Stage(address, "q", batch_id, run, number, data)
            if isinstance(reply, Staged):
                assert reply.batches >= number + 1
                hash_ = chained(hash_, parse(data).hash)
                number += 1
        return [StagedRun(run, number, sum(map(len, rows)), hash_)]

    def publish(self, batch_id: int, staged: dict[int, list[StagedRun]]) -> Any:
        """Publish; return whether it is, now or before."""
        for again in range(PATIENCE):
            if again and self.dice.random() < 0.3:
                self.begin()
            reply = yield self.publication(batch_id, staged)
            if isinstance(reply, m.ScatterConfirm):
                for partition, runs in staged.items():
                    self.sequences[partition] += sum(run.messages for run in runs)
                self.number += 1
                return True
            error = refusal(reply.code, reply.message, reply.detail)
            if isinstance(error, BatchPublished):
                assert error.detail == batch_id
                self.begin()
                return True
            if isinstance(error, StagedRunGone):
                self.begin()
                return False
            assert error.retryable, error
        raise AssertionError("it was never published")

    def publication(self, batch_id: int, staged: dict[int, list[StagedRun]]) -> Publish:
        groups = [self.group(p) for p in staged]
        parts = sorted([*map(batch_part, groups), acks_part(group_of(self.info.id, 0))])
        grant, scattered = self.grant, Scattered(self.number, tuple(parts))
        found = [
            PublicationPart(self.info.addresses[p], bytes(encode(
                [], group=self.group(p), producer=grant.producer, epoch=grant.epoch,
                sequence=self.sequences[p], scattered=scattered,
                publication=Publication("q", batch_id, tuple(runs)),
            )))
            for p, runs in staged.items()
        ]  # fmt: skip
        return Publish(grant.producer, grant.epoch, self.number, 0, "q", batch_id, found)

    def answer(self, request: Any) -> Any:
        """Return the answer to a request, if it has come; ask again where it never will."""
        if self.asked is not None:
            node, life, correlation = self.asked
            if not node.alive or node.lives != life:
                self.asked = None
            elif (reply := node.reply_to(correlation)) is not None:
                self.asked = None
                if not isinstance(reply, m.Refusal) or isinstance(request, Publish):
                    return reply
                assert refusal(reply.code, reply.message, reply.detail).retryable, reply
        if self.asked is None:
            node = self.dice.choice(self.trio.live())
            self.asked = node, node.lives, node.ask(request)
        return None

    def check(self) -> None:
        """Each batch is there once, whole and in order, at one stamp of its own; as the next is
        above it.
        """
        stamps: dict[int, set[int]] = {}
        for partition in range(PARTITIONS):
            rows = self.read(partition)
            wanted = [v for one in sorted(self.values) for v in self.values[one].get(partition, [])]
            assert [value for _, value in rows] == wanted
            for stamp, value in rows:
                stamps.setdefault(int(value.split(b"/")[0]), set()).add(stamp)
        assert all(len(one) == 1 for one in stamps.values()), stamps
        order = [min(stamps[number]) for number in sorted(stamps)]
        assert order == sorted(set(order))

    def read(self, partition: int) -> list[tuple[int, bytes]]:
        """Return stamp and value of each message of a partition."""
        return self.read_from(partition, 0)

    def read_from(self, partition: int, offset: int) -> list[tuple[int, bytes]]:
        """Return those from an offset on."""
        address, rows = self.info.addresses[partition], []
        while True:
            request = m.Fetch(address, offset, self.dice.choice((1, 1 << 20)), equal_stamps=True)
            reply = self.trio.told(request, address.group)
            assert isinstance(reply, m.Fetched), reply
            for batch in opened(reply, address.group):
                rows += [(batch.header.stamp, value) for value in batch.values()]
            if reply.next_offset == offset:
                return rows
            offset = reply.next_offset

    def left(self) -> int:
        """Return how many scatterings any leader remembers, and runs that are held."""
        states = [
            self.trio.leader(group_of(self.info.id, p)).group(self.group(p)).machine.state
            for p in range(PARTITIONS)
        ]
        return sum(state.scatterings.kept + len(state.staging.held) for state in states)


def play(make_trio: Any, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    dice = random.Random(seed)
    monkeypatch.setattr(participant, "UNDECIDED_MS", dice.choice((0, 20, 500)))
    monkeypatch.setattr(participant, "UNCLOSED_MS", dice.choice((100, 10_000)))
    trio = make_trio()
    crashes = Crashes(trio, dice)
    driver = Driver(trio, dice)
    for batch_id in range(BATCHES):
        work(driver, crashes, batch_id, dice.randrange(120))
    crashes.restore()
    trio.until(lambda: driver.left() == 0 or trio.run(1_000), "something is never finished")
    driver.check()
    for partition in range(PARTITIONS):
        trio.same_everywhere(driver.group(partition))


def work(driver: Driver, crashes: Crashes, batch_id: int, crash_at: int) -> None:
    """Let nodes work on a batch, in some order, and one of them crash and come back."""
    trio, dice = driver.trio, driver.dice
    steps = driver.batch(batch_id)
    request, step = next(steps), 0
    while True:
        reply = driver.answer(request)
        if reply is not None:
            try:
                request = steps.send(reply)
            except StopIteration:
                return
        step += 1
        assert step < 20 * PATIENCE, "it never came to an end"
        if step in (crash_at, crash_at + 150):
            crashes.step()
        if step > 400:
            crashes.restore()
            trio.run(50)
        for _ in range(dice.randint(1, 4)):
            trio.one(dice)
        if dice.random() < 0.5:
            trio.trunks.carry()
        if dice.random() < 0.15 or step > 200:
            trio.pass_ms(dice.randint(1, 50))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_each_batch_is_there_once_whoever_crashes(
    make_trio: Any, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    play(make_trio, monkeypatch, seed)


def without_memory(patch: pytest.MonkeyPatch) -> None:
    """Forget what a query has published."""
    patch.setattr(StagingTable, "note_published", lambda *_: None)


def in_another_order(patch: pytest.MonkeyPatch) -> None:
    """Serve the runs of a publication in another order than it says."""
    honest = Published.add

    def add(self: Published, runs: Any, offset: int, stamp: int) -> None:
        honest(self, [*reversed(runs)], offset, stamp)

    patch.setattr(Published, "add", add)


@pytest.mark.parametrize(
    "rule",
    [without_memory, in_another_order],
    ids=lambda rule: rule.__name__,
)
def test_a_rule_less_would_be_noticed(
    make_trio: Any, monkeypatch: pytest.MonkeyPatch, rule: Any
) -> None:
    rule(monkeypatch)
    for seed in range(30):
        try:
            play(make_trio, monkeypatch, seed)
        except (AssertionError, KeyError):
            return
    pytest.fail("30 runs without the rule, and nothing was amiss")


def publish_some(driver: Driver, batches: int) -> None:
    """Publish batches while nothing goes wrong."""
    for node in driver.trio.nodes.values():
        node.lives = 0
    for batch_id in range(len(driver.values), len(driver.values) + batches):
        steps = driver.batch(batch_id)
        request = next(steps)
        for _ in range(PATIENCE):
            reply = driver.answer(request)
            if reply is None:
                driver.trio.run(50)
                continue
            try:
                request = steps.send(reply)
            except StopIteration:
                break


def staged_entries(node: Any, group: int) -> list[int]:
    """Return which entries of a group hold staged batches."""
    reader = node.shard.writers[0].log.reader
    found = (reader.stored(group, index) for index in range(1, 500))
    return [stored.index for stored in found if stored and stored.kind is Kind.STAGED]


@pytest.mark.parametrize("seed", range(3))
def test_staged_batches_that_rotted_come_from_other_replicas(make_trio: Any, seed: int) -> None:
    trio = make_trio()
    driver = Driver(trio, random.Random(seed))
    publish_some(driver, 3)
    for node in trio.live():
        node.kill()
    for partition in range(PARTITIONS):
        group = driver.group(partition)
        for at, index in enumerate(staged_entries(trio[1], group)):
            rot(trio[1 + (at + seed) % 3], group, index)
    for node in trio.nodes.values():
        node.boot()
    for partition in range(PARTITIONS):
        mended(trio, driver.group(partition))
    driver.check()
    publish_some(driver, 1)
    driver.check()
    for partition in range(PARTITIONS):
        trio.same_everywhere(driver.group(partition))


def test_a_staged_batch_that_a_reader_finds_rotten_comes_from_the_others(make_trio: Any) -> None:
    trio = make_trio()
    driver = Driver(trio, random.Random(7))
    publish_some(driver, 3)
    for node in trio.live():  # nothing is in memory then
        node.kill()
    for node in trio.nodes.values():
        node.boot()
    trio.until(lambda: all(node.shard.ready for node in trio.live()))
    group = driver.group(0)
    leader = trio.leader(group)
    published = next(leader.group(group).machine.state.staging.published.of(0))
    rot(leader, group, published.entry)
    fetch = m.Fetch(driver.info.addresses[0], published.first, 1, equal_stamps=True)
    first = trio.answer(leader, fetch)
    assert isinstance(first, m.Refusal)
    assert (first.code, "fetches them from the others" in first.message) == (Unavailable.code, True)
    assert trio.told(fetch, group).next_offset == published.behind
    mended(trio, group)
    driver.check()
    trio.same_everywhere(group)


def test_a_replica_that_begins_anew_gets_what_was_published(make_trio: Any) -> None:
    trio = make_trio(checkpoint_bytes=1)
    driver = Driver(trio, random.Random(1))
    publish_some(driver, 3)
    trio.run(1_000)
    trio[2].kill()
    publish_some(driver, 2)
    trio[2].boot()
    for partition in range(PARTITIONS):
        trio.same_everywhere(driver.group(partition))
    driver.check()


def test_what_is_past_retention_goes_with_the_entries_that_held_it(make_trio: Any) -> None:
    trio = make_trio(checkpoint_bytes=1, retention_every_ms=1)
    driver = Driver(trio, random.Random(2), settings=SettingsChange(retention_bytes=2_000))
    publish_some(driver, 30)
    trio.run(2_000)
    for partition in range(PARTITIONS):
        group = driver.group(partition)
        state = trio.leader(group).group(group).machine.state
        assert state.log_start > 0
        rows = driver.read_from(partition, state.log_start)
        wanted = [v for one in sorted(driver.values) for v in driver.values[one].get(partition, [])]
        assert [value for _, value in rows] == wanted[-len(rows) :]
        held = {row.entry for row in state.staging.published.of(state.log_start)}
        assert state.first_index <= min(held)
        assert state.staging.published.stored_from(0) < 6_000
        assert len(staged_entries(trio[1], group)) < 30
        trio.same_everywhere(group)
