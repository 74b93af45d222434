"""Delayed messages: never before they are due, in any order, through restarts and retention."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import pytest

from rigs.shards import alarm_bytes, row_bytes, wait_in
from weir.broker.api.events import Closed
from weir.broker.consumers import modes as pickers
from weir.broker.consumers.picker import PickerContext
from weir.broker.consumers.shared import DelayedMessages, DueTimes
from weir.broker.records.partition import MessagesGranted
from weir.broker.state.clusters import ClusterState
from weir.broker.state.ranges import Ranges
from weir.broker.state.state import STAMPS_AHEAD_MS, DelayRow, Delays
from weir.errors import BadRequest, Overloaded
from weir.model.batch import split
from weir.model.limits import DELAY_MS_MAX
from weir.model.topic import Mode, SettingsChange
from weir.order.clock import milliseconds_of, stamp_at
from weir.protocol.client import admin as a
from weir.protocol.client import messages as m

DAY_MS = 24 * 3600 * 1000
LEASE_MS = 60_000


class Desk:
    """A topic, a publisher of messages that are due in so many ms, and consumers 1 to 3."""

    def __init__(self, rig: Any, keep: SettingsChange | None = None) -> None:
        self.rig = rig
        for session in (1, 2, 3):
            rig.connect(session)
        self.info = rig.answer(1, m.CreateTopic("t", 1, settings=keep or SettingsChange()))
        self.producer = rig.answer(1, m.OpenProducer())
        self.sequence = 0
        self.due: dict[int, int] = {}

    def publish(self, *delays: int | None, **more: Any) -> Any:
        """One batch; None: without a delay. Returns the reply."""
        now = self.rig.time.wall_ms()
        dues = [0 if delay is None else (now + delay) * 1000 for delay in delays]
        values = [b"%d" % (self.sequence + n) for n in range(len(delays))]
        batch = self.rig.batch(self.info, self.producer, self.sequence, *values, dues=dues, **more)
        reply = self.rig.answer(1, batch)
        if isinstance(reply, m.Confirm):
            for n, due in enumerate(dues):
                self.due[reply.offset + n] = due // 1000
            self.sequence += len(values)
        return reply

    def pull(self, most: int = 100, wait_ms: int = 0, mode: Mode = Mode.SHARED) -> m.Pull:
        return m.Pull(self.info.addresses[0], "crew", most, 1 << 20, wait_ms, LEASE_MS, mode)

    def take(self, session: int = 1, most: int = 100) -> list[int]:
        """Pull once; return the offsets that were granted, none before its time, all acked."""
        granted = self.rig.answer(session, self.pull(most))
        offsets = self.offsets(granted)
        if offsets:
            ranges = [(granted.fence, a, b) for a, b in self.runs(granted)]
            assert isinstance(
                self.rig.answer(session, m.Ack(granted.address, "crew", ranges)), m.Acked
            )
        return offsets

    def runs(self, granted: m.Granted) -> list[tuple[int, int]]:
        return list(granted.runs) or [(granted.offset, granted.next_offset)]

    def offsets(self, granted: Any) -> list[int]:
        assert isinstance(granted, m.Granted), granted
        offsets = [offset for a, b in self.runs(granted) for offset in range(a, b)]
        there = {
            batch.header.first_offset + n
            for part in granted.batches
            for batch in split(part, granted.address.group)
            for n in range(len(batch))
        }
        assert there.issuperset(offsets)
        now = min(self.rig.time.wall_ms(), milliseconds_of(granted.stamp))
        late = [o for o in offsets if self.due.get(o, 0) > now]
        assert not late, f"{late} are not due"
        return offsets

    def take_all(self) -> list[int]:
        found: list[int] = []
        while taken := self.take():
            found += taken
        return found

    def restart(self) -> None:
        self.rig.disk.crash()
        self.rig.boot()
        self.rig.connect(1)

    @property
    def state(self) -> Any:
        return self.rig.shard.topics.partition(self.info.addresses[0].group)[1].state


@pytest.fixture
def desk(rig: Any) -> Desk:
    return Desk(rig)


def test_those_that_are_not_due_are_passed_by(desk: Desk) -> None:
    desk.publish(None, 500, None, 100, None)
    assert desk.take_all() == [0, 2, 4]
    desk.rig.time.pass_ms(99)
    assert desk.take_all() == []
    desk.rig.time.pass_ms(1)
    assert desk.take_all() == [3]
    desk.rig.time.pass_ms(400)
    assert desk.take_all() == [1]
    assert desk.state.clusters["crew"].cursor == 5


def test_one_batch_is_granted_in_runs(desk: Desk) -> None:
    desk.publish(*[500 if n % 3 == 0 else None for n in range(12)])
    granted = desk.rig.answer(1, desk.pull(6))
    assert desk.runs(granted) == [(1, 3), (4, 6), (7, 9)]
    other = desk.rig.answer(2, desk.pull(6))
    assert desk.runs(other) == [(10, 12)]


def test_a_long_poll_ends_when_a_message_is_due(desk: Desk) -> None:
    desk.publish(120)
    number = desk.rig.ask(2, desk.pull(1, 60_000))
    desk.rig.settle()
    desk.rig.tick(119)
    desk.rig.settle()
    assert not [reply for asked, reply in desk.rig.replies[2] if asked == number]
    desk.rig.tick(1)
    desk.rig.settle()
    (reply,) = [reply for asked, reply in desk.rig.replies[2] if asked == number]
    assert desk.offsets(reply) == [0]


@pytest.mark.parametrize("cache", [0, 1 << 20])
@pytest.mark.parametrize("seed", range(6))
def test_any_delays_in_any_order_with_restarts(make_rig: Any, cache: int, seed: int) -> None:
    dice = random.Random(seed)
    desk = Desk(make_rig(cache=cache))
    taken: list[int] = []
    for _ in range(60):
        roll = dice.random()
        if roll < 0.4:
            count = dice.choice((1, 1, 3, 8))
            desk.publish(*[dice.choice((None, 1, 50, 300, 2_000)) for _ in range(count)])
        elif roll < 0.8:
            taken += desk.take(most=dice.choice((1, 4, 100)))
        elif roll < 0.95:
            desk.rig.time.pass_ms(dice.choice((1, 20, 200)))
        else:
            desk.restart()
    for _ in range(3):
        desk.rig.time.pass_ms(2_000)
        taken += desk.take_all()
    assert sorted(taken) == list(range(desk.sequence)), "each once, for all were acked"
    assert desk.state.clusters["crew"].cursor == desk.sequence


def test_two_clusters_wait_each_for_itself(desk: Desk) -> None:
    desk.publish(None, 100, 200)
    assert desk.take_all() == [0]
    desk.rig.time.pass_ms(150)
    late = m.Pull(desk.info.addresses[0], "late", 9, 1 << 20, 0, LEASE_MS)
    assert desk.offsets(desk.rig.answer(2, late)) == [0, 1]
    assert desk.take_all() == [1]
    desk.rig.time.pass_ms(50)
    assert desk.offsets(desk.rig.answer(2, late)) == [2]
    assert desk.take_all() == [2]


def test_a_dead_consumers_delayed_messages_go_to_others(desk: Desk) -> None:
    desk.publish(None, 100, None, 100)
    desk.rig.time.pass_ms(100)
    assert desk.offsets(desk.rig.answer(2, desk.pull())) == [0, 1, 2, 3]
    desk.rig.handle(Closed(2))
    desk.rig.settle()
    assert desk.take_all() == [0, 1, 2, 3]


def test_a_wall_clock_that_goes_back_brings_nothing_early(desk: Desk) -> None:
    desk.publish(1_000)
    desk.rig.time.wall -= 3_600_000
    desk.rig.time.monotonic += 1_000
    assert desk.take_all() == []
    desk.rig.time.wall += 3_600_000 + 1_000
    assert desk.take_all() == [0]


@pytest.mark.parametrize("delay_ms", [500, 5_000])
@pytest.mark.parametrize("restarts", [False, True])
def test_a_delay_ends_by_the_time_where_stamps_are_ahead_of_it(
    desk: Desk, delay_ms: int, restarts: bool
) -> None:
    ahead_ms = 900
    ahead = desk.publish(delay_ms, seen=stamp_at(desk.rig.time.wall_ms() + ahead_ms))
    assert milliseconds_of(ahead.stamp) == desk.rig.time.wall_ms() + ahead_ms
    desk.publish(delay_ms)
    assert desk.take_all() == []
    if restarts:
        desk.restart()
    desk.rig.time.pass_ms(delay_ms - 1)
    assert desk.take_all() == []
    desk.rig.time.pass_ms(1)
    assert desk.take_all() == [0, 1]


def test_a_long_poll_ends_by_the_time_where_stamps_are_ahead_of_it(desk: Desk) -> None:
    desk.publish(120, seen=stamp_at(desk.rig.time.wall_ms() + 900))
    number = desk.rig.ask(2, desk.pull(1, 60_000))
    desk.rig.settle()
    for ms, offsets in ((119, []), (1, [0])):
        desk.rig.tick(ms)
        desk.rig.settle()
        replies = [reply for asked, reply in desk.rig.replies[2] if asked == number]
        assert [o for reply in replies for o in desk.offsets(reply)] == offsets


def test_a_grant_says_when_it_was_made_by_the_time(desk: Desk) -> None:
    """What has expired by then is left out by its consumer: not what expires a second later."""
    desk.publish(None, None, seen=stamp_at(desk.rig.time.wall_ms() + 900))
    for _ in range(2):
        granted = desk.rig.answer(1, desk.pull(1))
        assert milliseconds_of(granted.stamp) > desk.rig.time.wall_ms()
        assert granted.granted_ms == desk.rig.time.wall_ms()
        desk.rig.time.pass_ms(450)
    desk.rig.time.pass_ms(900)
    desk.publish(None)
    granted = desk.rig.answer(1, desk.pull())
    assert (granted.ahead_ms, granted.granted_ms) == (0, desk.rig.time.wall_ms())


def test_readers_see_delayed_messages_at_once(desk: Desk) -> None:
    desk.publish(5_000)
    fetched = desk.rig.answer(1, m.Fetch(desk.info.addresses[0], 0, 1 << 20))
    assert fetched.next_offset == 1


def test_retention_takes_delayed_messages(make_rig: Any) -> None:
    rig = make_rig(retention_every_ms=100)
    desk = Desk(rig, SettingsChange(retention_ms=1_000))
    desk.publish(None, 50_000)
    desk.publish(60_000)
    assert desk.take_all() == [0]
    assert rig.answer(1, a.ListClusters(desk.info.addresses[0], "crew")).clusters[0].delayed == 2
    rig.tick(2_000)
    rig.settle()
    desk.publish(None)
    rig.tick(2_000)
    rig.settle()
    assert len(desk.state.delays) == 0
    rig.time.pass_ms(100_000)
    desk.publish(None)
    assert desk.take_all()[-1:] == [desk.sequence - 1]
    assert desk.state.clusters["crew"].skipped >= 2


def test_a_seek_back_gives_them_again_and_not_before_their_time(desk: Desk) -> None:
    desk.publish(None, 100, None)
    assert desk.take_all() == [0, 2]
    address = desk.info.addresses[0]
    assert isinstance(desk.rig.answer(1, a.SeekCluster(address, "crew", 0)), a.ClusterChanged)
    assert desk.take_all() == [0, 2]
    desk.rig.time.pass_ms(100)
    assert desk.take_all() == [1]


def test_delays_that_cannot_be_are_refused(desk: Desk, monkeypatch: Any) -> None:
    assert desk.publish(DELAY_MS_MAX + 60_000).code == BadRequest.code
    monkeypatch.setattr(pickers, "DELAYED_BATCHES_MAX", 2)
    for _ in range(2):
        assert isinstance(desk.publish(1_000), m.Confirm)
    assert desk.publish(1_000).code == Overloaded.code
    assert isinstance(desk.publish(-STAMPS_AHEAD_MS), m.Confirm), "it is long due"
    assert desk.publish(0).code == Overloaded.code, "it may not be due where another leads"
    desk.rig.time.pass_ms(1_000 + STAMPS_AHEAD_MS)
    assert isinstance(desk.publish(1_000), m.Confirm)


@pytest.mark.parametrize("mode", [Mode.KEYED, Mode.ORDERED])
def test_clusters_that_keep_order_take_no_delayed_messages(desk: Desk, mode: Mode) -> None:
    desk.publish(1_000)
    assert desk.rig.answer(1, desk.pull(mode=mode)).code == BadRequest.code
    desk.rig.time.pass_ms(1_000)
    assert desk.offsets(desk.rig.answer(1, desk.pull(mode=mode))) == [0]
    refused = desk.publish(1_000)
    assert refused.code == BadRequest.code
    assert "keyed or ordered" in refused.message
    assert isinstance(desk.publish(None), m.Confirm)


def test_rows_of_what_is_due_go_by_and_by() -> None:
    delays = Delays()
    for n in range(5_000):
        delays.add(DelayRow(n, n + 1, n + 10, n + 10), STAMPS_AHEAD_MS + n, 1_000_000)
    assert len(delays) <= 2_048
    copy = Delays.decode(*delays.encode())
    assert copy.encode() == delays.encode()
    assert delays.live(0, 5_000, 4_999) == DelayRow(4_990, 4_991, 5_000, 5_000)
    assert delays.live(4_995, 4_996, 4_999) == DelayRow(4_995, 4_996, 5_005, 5_005)
    delays.drop_below(4_998)
    assert delays.live(0, 5_000, 0) == DelayRow(4_998, 4_999, 5_008, 5_008)
    delays.add(DelayRow(6_000, 6_001, 1, 7_000), STAMPS_AHEAD_MS + 7_000, 1_000_000)
    assert delays.of(6_000) is None, "it was due by any clock when it came"
    delays.add(DelayRow(6_000, 6_001, 1, 7_001), STAMPS_AHEAD_MS + 7_000, 1_000_000)
    assert delays.of(6_000) == DelayRow(6_000, 6_001, 1, 7_001), "a leader may not be there yet"


def test_who_is_not_refused_finds_room_among_the_rows() -> None:
    """What `is_full` lets in is never one row too many: it counts those that a sweep leaves."""
    delays, most = Delays(), 4
    for n in range(20_000):
        if not delays.is_full(most, n):
            delays.add(DelayRow(n, n + 1, n + 10, n + 10), n, most)
        assert len(delays) <= most
    assert delays.of(19_999) is None
    assert delays.is_full(most, 19_999)
    assert not delays.is_full(most, 30_000)


def test_a_message_delayed_for_30_days_at_10000_a_second_is_one_hole() -> None:
    """Counterexample 21: 2.6e10 messages, an hour of them a grant."""
    cluster, hour = ClusterState(), 10_000 * 3_600
    for n in range(30 * 24):
        first = 1 + n * hour
        record = MessagesGranted("c", 1, first, first + hour, 2, 1)
        assert cluster.grant(n + 1, record) is not None
        assert cluster.ack(n + 1, first, first + hour)
        assert (cluster.cursor, len(cluster.done), len(cluster.grants)) == (0, 1, 0)
    assert cluster.lag(cluster.frontier) == 1
    last = cluster.grant(1_000, MessagesGranted("c", 1, 0, 1, 2, 1))
    assert last is not None
    assert last.attempts == 1
    assert cluster.ack(1_000, 0, 1)
    assert (cluster.cursor, len(cluster.done)) == (1 + 30 * 24 * hour, 0)


@pytest.mark.timeout(900)
def test_one_that_waits_for_30_days_costs_a_row(desk: Desk, tell: Callable[..., None]) -> None:
    """Each hour of WEIR_DELAYED days others come and go; after a restart it still waits."""
    days, hour = int(os.environ.get("WEIR_DELAYED", "3")), DAY_MS // 24
    desk.publish(30 * DAY_MS)
    for _ in range(days * 24 - 1):  # in the last of 30 days it is due
        desk.publish(*[None] * 500)
        desk.rig.time.pass_ms(hour)
        assert len(desk.take_all()) == 500
    cluster = desk.state.clusters["crew"]
    tell(days=days, messages=desk.sequence, runs=len(cluster.done))
    assert (cluster.cursor, len(cluster.done)) == (0, 1)
    assert len(desk.state.delays) == 1
    desk.restart()
    assert desk.take_all() == []
    desk.rig.time.pass_ms(30 * DAY_MS - (days * 24 - 1) * hour)
    assert desk.take_all() == [0]
    assert (desk.state.clusters["crew"].cursor, len(desk.state.clusters["crew"].done)) == (
        desk.sequence,
        0,
    )


@pytest.mark.timeout(900)
def test_a_million_delayed_batches_take_bounded_memory(tell: Callable[..., None]) -> None:
    """WEIR_DELAYED_BATCHES rows on every replica, and their alarms where they are led."""
    count = int(os.environ.get("WEIR_DELAYED_BATCHES", "20000"))

    class Led:
        """The ground of a partition with nothing but rows."""

        delays = Delays()

        @property
        def state(self) -> Any:
            return self

        def due_ms(self) -> int:
            return 0

    led: Any = Led()
    context: PickerContext = led
    for n in range(count):
        led.delays.add(DelayRow(n, n + 1, 10**12 + n, 10**12 + n), 0, count + 1)
    times, passed = DueTimes(context), DelayedMessages()
    wait_in(times, "crew", passed)
    for n in range(count):
        times.wait(passed, led.delays.of(n), n, n + 1)
    rows, alarms = row_bytes(led.delays), alarm_bytes(times)
    tell(batches=count, row_bytes=rows / count, alarm_bytes=alarms / count)
    assert passed.waiting == Ranges([(0, count)])
    assert rows < 64 * count + 65_536
    assert alarms < 96 * count + 65_536
