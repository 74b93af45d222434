"""A cut has all that is stamped up to it before it, and nothing else, however it is asked for."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from msgspec import structs

from rigs.access import be, give, rule, set_mode
from rigs.shards import catalog_of, located_in, unanswered
from weir.broker.api import effects as ef
from weir.broker.api import events as ev
from weir.broker.barriers import cuts
from weir.broker.metadata.registry import Registry
from weir.errors import (
    BadRequest,
    DamagedRange,
    Overloaded,
    Unauthorized,
    Unavailable,
    UnknownTopic,
)
from weir.model.columns import Scattered
from weir.model.ids import batch_part, group_of
from weir.model.topic import SettingsChange, Topic
from weir.order.clock import stamp_at
from weir.protocol.client import admin as a
from weir.protocol.client import messages as m
from weir.protocol.client.messages import TopicPositions
from weir.protocol.client.order import Part


class Log:
    """Topics of a rig, and the stamp of each message in them by group."""

    def __init__(self, rig: Any, *partitions: int) -> None:
        self.rig = rig
        rig.connect()
        self.grant = rig.answer(1, m.OpenProducer())
        self.infos = [rig.topic(1, f"t{n}", count) for n, count in enumerate(partitions)]
        self.stamps: dict[int, list[int]] = {
            address.group: [] for info in self.infos for address in info.addresses
        }
        self.sequences = dict.fromkeys(self.stamps, 0)

    @property
    def names(self) -> list[str]:
        return [info.name for info in self.infos]

    def request(self, group: int, rows: int = 1, size: int = 1, **more: Any) -> m.Produce:
        address = next(at for one in self.infos for at in one.addresses if at.group == group)
        info = m.TopicInfo(1, "", "", "", [address])
        values = [bytes(size)] * rows
        batch: m.Produce = self.rig.batch(info, self.grant, self.sequences[group], *values, **more)
        self.sequences[group] += rows
        return batch

    def publish(self, dice: random.Random, rounds: int, together: int = 4) -> None:
        """Publish, now and then several batches of a partition that lie in one entry."""
        for _ in range(rounds):
            before = len(self.rig.replies[1])
            asked = []
            for _ in range(dice.randint(1, together)):
                group, rows = dice.choice(sorted(self.stamps)), dice.randint(1, 3)
                asked.append((group, rows, self.request(group, rows)))
            self.rig.ask(1, *(batch for *_, batch in asked))
            self.rig.settle()
            told = sorted(self.rig.replies[1][before:], key=lambda one: one[0])
            confirms = [reply for _, reply in told if isinstance(reply, m.Confirm)]
            for (group, rows, _), confirm in zip(asked, confirms, strict=True):
                self.stamps[group] += [confirm.stamp] * rows
            self.rig.time.pass_ms(dice.choice((0, 0, 1, 7)))

    def cut(self, **fields: Any) -> m.ResolvedCut:
        reply = self.rig.answer(1, m.ResolveCut(self.names, **fields))
        assert isinstance(reply, m.ResolvedCut), reply
        return reply

    def below(self, stamp: int) -> dict[int, int]:
        return {group: sum(s <= stamp for s in stamps) for group, stamps in self.stamps.items()}

    def read_to(self, ends: dict[int, int]) -> list[TopicPositions]:
        return [
            TopicPositions(info.id, [(p, ends[at.group]) for p, at in enumerate(info.addresses)])
            for info in self.infos
        ]


def ends_of(cut: m.ResolvedCut) -> dict[int, int]:
    return {
        address.group: end
        for topic in cut.topics
        for address, end in zip(topic.info.addresses, topic.ends, strict=True)
    }


@pytest.mark.parametrize("cache", [0, 1 << 20])
def test_a_cut_at_any_stamp_is_exact(make_rig: Callable[..., Any], cache: int) -> None:
    log = Log(make_rig(cache), 3)
    log.publish(random.Random(5), 25)
    stamps = sorted({stamp for each in log.stamps.values() for stamp in each})
    log.rig.time.pass_ms(50)
    for stamp in [stamps[0] - 1, *stamps]:
        cut = log.cut(stamp_max=stamp)
        assert (cut.stamp, ends_of(cut)) == (stamp, log.below(stamp))
    whole = log.cut()
    assert whole.stamp >= stamps[-1]
    assert ends_of(whole) == log.below(stamps[-1])
    assert [topic.starts for topic in whole.topics] == [[0, 0, 0]]
    assert [topic.committed for topic in log.cut(stamp_max=stamps[0]).topics] == [
        topic.ends for topic in whole.topics
    ]
    assert whole.topics[0].info == log.rig.answer(1, m.DescribeTopic("t0"))


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("cache", [0, 1 << 20])
def test_portions_fit_the_limit_and_come_to_the_end(
    make_rig: Callable[..., Any], cache: int, seed: int
) -> None:
    dice = random.Random(seed)
    log = Log(make_rig(cache), 2, 1)
    log.publish(dice, 40)
    log.rig.time.pass_ms(50)
    stamps = {stamp for each in log.stamps.values() for stamp in each}
    at, stamp, rows_max = dict.fromkeys(log.stamps, 0), 0, dice.randint(1, 12)
    total, steps = sum(map(len, log.stamps.values())), 0
    while sum(at.values()) < total:
        cut = log.cut(after=log.read_to(at) if stamp else [], stamp=stamp, rows_max=rows_max)
        ends = ends_of(cut)
        assert ends == log.below(cut.stamp)
        rows = sum(ends.values()) - sum(at.values())
        inside = [one for one in stamps if stamp < one <= cut.stamp]
        assert 0 < rows <= rows_max or len(inside) == 1
        at, stamp, steps = ends, cut.stamp, steps + 1
    assert steps <= 2 * (2 * total // rows_max + 1) + len(stamps) // 4


def test_bytes_are_limited_too(rig: Any) -> None:
    log = Log(rig, 2)
    for number in range(40):
        group = sorted(log.stamps)[number % 2]
        confirm = rig.answer(1, log.request(group, size=1_000))
        log.stamps[group].append(confirm.stamp)
        rig.time.pass_ms(1)
    rig.time.pass_ms(50)
    cut = log.cut(bytes_max=10_000)
    assert ends_of(cut) == log.below(cut.stamp)
    assert 4 <= sum(ends_of(cut).values()) <= 10
    # A message that is larger is taken all the same.
    after = log.read_to(ends_of(cut))
    one = log.cut(bytes_max=1, after=after, stamp=cut.stamp)
    assert sum(ends_of(one).values()) == sum(ends_of(cut).values()) + 1


def test_a_scattering_through_two_topics_is_never_torn(rig: Any) -> None:
    log = Log(rig, 1, 2)
    for name, other in (log.names, reversed(log.names)):
        rig.answer(1, a.AlterTopic(name, SettingsChange(scatter_with=(other,))))
    addresses = [info.addresses[-1] for info in log.infos]
    groups = [address.group for address in addresses]
    for number in range(6):
        scattered = Scattered(number, tuple(sorted(map(batch_part, groups))))
        batches = [log.request(group, scattered=scattered).batch for group in groups]
        parts = [Part(*part) for part in zip(addresses, map(bytes, batches), strict=True)]
        producer, epoch = log.grant.producer, log.grant.epoch
        asked = rig.ask(1, m.Scatter(producer, epoch, number, 0, parts))
        while not told(rig, asked):
            rig.settle()
            rig.tick()
        (confirm,) = told(rig, asked)
        assert isinstance(confirm, m.ScatterConfirm), confirm
        for group in groups:
            log.stamps[group].append(confirm.stamp)
    rig.time.pass_ms(100)
    for rows_max, rows in ((1, 1), (2, 1), (5, 2)):  # the next one is taken, though it has two
        ends = ends_of(log.cut(rows_max=rows_max))
        assert [ends[group] for group in groups] == [rows, rows]


def test_who_has_all_is_told_when_there_is_news(rig: Any) -> None:
    log = Log(rig, 3)
    log.publish(random.Random(1), 3)
    after = log.read_to(log.below(1 << 62))
    asked = rig.ask(1, m.ResolveCut(["t0"], after, wait_ms=200))
    rig.tick(150)
    rig.settle()
    assert told(rig, asked) == []
    log.publish(random.Random(2), 1)
    (cut,) = told(rig, asked)
    assert ends_of(cut) == log.below(1 << 62)


def told(rig: Any, number: int) -> list[Any]:
    return [reply for of, reply in rig.replies[1] if of == number]


def test_who_waits_in_vain_is_told_so_in_time(rig: Any) -> None:
    log = Log(rig, 3)
    log.publish(random.Random(1), 3)
    ends = log.below(1 << 62)
    asked = rig.ask(1, m.ResolveCut(["t0"], log.read_to(ends), wait_ms=200))
    rig.tick(200)
    assert told(rig, asked) == [m.ResolvedCut(0, [])]
    # Without a wait, all is told as it is.
    assert ends_of(log.cut(after=log.read_to(ends))) == ends
    # What is not read is not waited for, and what is above it in no partition that is.
    chosen = [p for p, group in enumerate(sorted(log.stamps)) if not log.stamps[group]] or [0]
    only = m.ResolveCut(["t0"], log.read_to(ends), wait_ms=200, partitions=chosen)
    asked = rig.ask(1, only)
    other = next(g for p, g in enumerate(sorted(log.stamps)) if p not in chosen)
    rig.answer(1, log.request(other))
    assert told(rig, asked) == []
    rig.tick(200)
    assert told(rig, asked) == [m.ResolvedCut(0, [])]


def test_what_retention_took_is_no_news(rig: Any) -> None:
    """Else who begins there would ask again and again without a pause."""
    log = Log(rig, 1)
    group = next(iter(log.stamps))
    log.publish(random.Random(1), 3)
    partition = rig.shard.topics.find(group)
    end = partition.state.next_offset
    partition.state.log_start = end
    asked = rig.ask(1, m.ResolveCut(["t0"], wait_ms=100))
    rig.tick(100)
    assert told(rig, asked) == [m.ResolvedCut(0, [])]
    assert [topic.starts for topic in log.cut().topics] == [[end]]


def test_selected_partitions_alone_are_counted_and_told(rig: Any) -> None:
    log = Log(rig, 3)
    log.publish(random.Random(3), 30)
    rig.time.pass_ms(50)
    cut = log.cut(partitions=[1], rows_max=4)
    (topic,) = cut.topics
    assert topic.ends == [0, log.below(cut.stamp)[group_of(topic.info.id, 1)], 0]
    assert 0 < topic.ends[1] <= 4
    refused = rig.answer(1, m.ResolveCut(["t0"], partitions=[9]))
    assert (refused.code, "partitions" in refused.message) == (BadRequest.code, True)


def test_committed_ends_have_no_stamp_and_no_limit(rig: Any) -> None:
    log = Log(rig, 2)
    log.publish(random.Random(3), 30)
    cut = log.cut(by_partition=True, rows_max=1)
    assert (cut.stamp, ends_of(cut)) == (0, log.below(1 << 62))


def test_the_latest_holds_all_that_was_confirmed_before(rig: Any) -> None:
    log = Log(rig, 2)
    first, second = sorted(log.stamps)
    rig.time.pass_ms(900)
    log.stamps[first].append(rig.answer(1, log.request(first)).stamp)
    rig.time.wall -= 900  # the clock was set back since
    log.stamps[second].append(rig.answer(1, log.request(second)).stamp)
    cut = log.cut(latest=True)
    assert ends_of(cut) == {first: 1, second: 1}


def test_what_was_read_and_lies_above_the_cut_is_not_lost(rig: Any) -> None:
    log = Log(rig, 1)
    log.publish(random.Random(3), 10)
    (group,) = log.stamps
    rig.time.pass_ms(50)
    early, end = log.stamps[group][1], len(log.stamps[group])
    assert ends_of(log.cut(after=log.read_to({group: end}), stamp_max=early)) == {group: end}
    # What is not there, another broker has read.
    beyond = log.cut(after=log.read_to({group: end + 5}), stamp_max=early)
    assert ends_of(beyond)[group] == end


def test_what_cannot_be_is_refused(rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(rig, 2, 1)
    refused = rig.answer(1, m.ResolveCut(["t0", "nowhere"]))
    assert (refused.code, "nowhere" in refused.message) == (UnknownTopic.code, True)
    refused = rig.answer(1, m.ResolveCut(["t0", "default/t0"]))
    assert (refused.code, "twice" in refused.message) == (BadRequest.code, True)
    monkeypatch.setattr(cuts, "CUT_PARTITIONS_MAX", 2)
    refused = rig.answer(1, m.ResolveCut(log.names))
    assert (refused.code, "3 partitions" in refused.message) == (BadRequest.code, True)
    monkeypatch.setattr(cuts, "CUTS_PARTITIONS_MAX", 3)
    waiting = m.ResolveCut(["t0"], wait_ms=1_000)
    rig.ask(1, waiting)
    assert rig.answer(1, m.ResolveCut(["t0"])).code == Overloaded.code
    assert located_in(rig.shard) == 1
    rig.handle(ev.Closed(1))
    assert located_in(rig.shard) == 0
    rig.connect()
    rig.ask(1, waiting)  # the peer that is gone waits no more
    rig.tick(1_000)
    rig.settle()
    assert rig.replies[1][-1][1] == m.ResolvedCut(0, [])


def test_who_waits_is_told_that_the_topic_is_gone(rig: Any) -> None:
    Log(rig, 1)
    asked = rig.ask(1, m.ResolveCut(["t0"], wait_ms=1_000))
    rig.answer(1, a.DeleteTopic("t0"))
    rig.tick(1_000)
    rig.settle()
    (reply,) = told(rig, asked)
    assert reply.code == UnknownTopic.code
    assert rig.answer(1, m.ResolveCut(["t0"])).code == UnknownTopic.code
    assert unanswered(rig.shard)[1] == 0


def test_a_shard_that_has_not_heard_of_all_partitions_waits_until_it_has(
    rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, late, honest = Log(rig, 2), [2], Registry.describe
    log.publish(random.Random(1), 5)

    def describe(self: Registry, topic: Topic) -> m.TopicInfo:
        info = honest(self, topic)
        late[0] -= 1
        return structs.replace(info, addresses=info.addresses[: -1 if late[0] >= 0 else None])

    monkeypatch.setattr(Registry, "describe", describe)
    asked = rig.ask(1, m.ResolveCut(["t0"]))
    rig.settle()
    assert told(rig, asked) == []
    rig.tick()
    assert told(rig, asked) == []
    rig.tick()
    (cut,) = told(rig, asked)
    assert ends_of(cut) == log.below(1 << 62)
    late[0] = 1_000
    asked = rig.ask(1, m.ResolveCut(["t0"]))
    rig.settle()
    rig.tick(5_000)
    (refused,) = told(rig, asked)
    assert (refused.code, "has not heard" in refused.message) == (Unavailable.code, True)


def test_what_is_damaged_is_refused_as_such(make_rig: Callable[..., Any]) -> None:
    log = Log(make_rig(0), 1)
    log.publish(random.Random(5), 25)
    log.rig.time.pass_ms(50)
    (stamps,) = log.stamps.values()
    asked = {stamp: log.rig.ask(1, m.ResolveCut(["t0"], stamp_max=stamp)) for stamp in {*stamps}}
    reads = [job for job in log.rig.jobs if isinstance(job, ef.StartRead)]
    assert reads, "some are cut within an entry, which lies on the disk"
    for job in reads:
        log.rig.jobs.remove(job)
        log.rig.handle(ev.ReadDone(job.ticket, (), "it rotted", 7))
    log.rig.settle()
    codes = {reply.code for number in asked.values() for reply in told(log.rig, number)
             if isinstance(reply, m.Refusal)}  # fmt: skip
    assert codes == {DamagedRange.code}


@pytest.mark.parametrize("verb", ["read", "consume"])
def test_each_topic_has_to_be_readable(rig: Any, verb: str) -> None:
    log = Log(rig, 1, 1)
    access = catalog_of(rig.shard).access
    set_mode(access, "closed")
    other = rule("publish", "topic", "default/t1")
    be(rig.shard, 1, give(access, "default/ann", rule(verb, "topic", "default/t0"), other))
    assert isinstance(rig.answer(1, m.ResolveCut(["t0"])), m.ResolvedCut)
    assert rig.answer(1, m.ResolveCut(log.names)).code == Unauthorized.code
    assert rig.answer(1, m.ResolveCut(["t1"])).code == Unauthorized.code


def test_one_stamp_after_the_other_is_a_prefix_of_the_next(rig: Any) -> None:
    """While others publish: nothing comes below a cut any more."""
    log = Log(rig, 4)
    dice, found = random.Random(9), []
    for _ in range(20):
        log.publish(dice, 2)
        found.append(log.cut())
    for earlier, later in pairwise(found):
        assert earlier.stamp < later.stamp
    for cut in found:
        assert ends_of(cut) == log.below(cut.stamp)
        assert cut.stamp < stamp_at(rig.time.wall_ms() + 1_000)


@pytest.mark.parametrize("by_partition", [False, True])
def test_a_cut_tells_the_lineages_of_all_partitions_that_are_asked_for(
    rig: Any, by_partition: bool
) -> None:
    log = Log(rig, 2)
    log.publish(random.Random(1), 9)
    first, second = sorted(log.stamps)
    assert log.cut(by_partition=by_partition).lineages == [(first, 0, 0), (second, 0, 0)]
    rig.shard.topics.find(second).state.begin_lineage(3)
    fork = (second, 3, len(log.stamps[second]))
    log.publish(random.Random(2), 9)
    cut = log.cut(by_partition=by_partition)
    assert cut.lineages == [(first, 0, 0), (second, 0, 0), fork]
    cut = log.cut(by_partition=by_partition, partitions=[1])
    assert cut.lineages == [(second, 0, 0), fork]
    assert rig.answer(1, m.ResolveCut(log.names, wait_ms=1)).lineages, "there is news"
