"""What a cluster does not want is done soon, however its leader finds that out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec import structs

from weir.broker.api import effects as ef
from weir.errors import NotLeader
from weir.model.topic import Mode
from weir.protocol.client import admin as a
from weir.protocol.client import messages as m
from weir.storage import log_reader


class Desk:
    """A topic, and a cluster that wants tag "a"; sessions 1 and 2 consume, 3 publishes."""

    def __init__(self, rig: Any) -> None:
        self.rig = rig
        for session in (1, 2, 3):
            rig.connect(session)
        self.info = rig.topic(3)
        self.home = self.info.addresses[0]
        self.producer = rig.answer(3, m.OpenProducer())
        self.sequence = 0

    def publish(self, *tags: str, **more: Any) -> None:
        """Publish one batch, an entry of its own."""
        values = [b"v"] * len(tags)
        batch = self.rig.batch(
            self.info, self.producer, self.sequence, *values, tags=[*tags], **more
        )
        assert isinstance(self.rig.answer(3, batch), m.Confirm)
        self.sequence += len(tags)

    def pull(self, most: int = 100, mode: Mode = Mode.SHARED) -> m.Pull:
        return m.Pull(self.home, "crew", most, 1 << 20, 60_000, 30_000, mode, tags=("a",))

    def granted(self, session: int) -> list[tuple[int, int]]:
        """Return what each grant to a session spans."""
        replies = [reply for _, reply in self.rig.replies[session]]
        return [(one.offset, one.next_offset) for one in replies if isinstance(one, m.Granted)]


@pytest.fixture
def desk(rig: Any) -> Desk:
    return Desk(rig)


@pytest.mark.parametrize("mode", Mode)
def test_many_entries_of_other_tags_are_passed_without_a_tick(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, mode: Mode
) -> None:
    monkeypatch.setattr(log_reader, "PASSED_ENTRIES_MAX", 2)
    for _ in range(9):
        desk.publish("b")
    desk.publish("a")
    desk.rig.answer(1, desk.pull(mode=mode))
    assert desk.granted(1) == [(9, 10)]


def test_a_pull_of_offsets_only_names_what_has_a_tag(desk: Desk) -> None:
    for tag in "bab":
        desk.publish(tag)
    told = desk.rig.answer(1, structs.replace(desk.pull(), offsets_only=True))
    assert (told.offset, told.next_offset, told.batches) == (1, 2, ())


def test_delayed_messages_of_other_tags_are_done_when_they_are_due(desk: Desk) -> None:
    rig = desk.rig
    for tag in ("b", "a", "b"):
        desk.publish(tag, dues=[(rig.time.wall_ms() + 1_000) * 1_000])
    desk.publish("a")
    for session in (1, 2):
        rig.ask(session, desk.pull(1))
    rig.settle()
    assert (desk.granted(1), desk.granted(2)) == ([(3, 4)], [])
    for _ in range(3):
        rig.tick(1_000)
        rig.settle()
    assert desk.granted(2) == [(1, 2)]
    rig.ask(2, desk.pull(1))
    rig.settle()
    (cluster,) = rig.answer(3, a.ListClusters(desk.home, "crew")).clusters
    assert (cluster.lag, cluster.granted) == (2, 2), "the others are done, and with nobody"


def settle_but_reads(rig: Any) -> None:
    """Do all jobs but reads from the disk."""
    while others := [at for at, job in enumerate(rig.jobs) if not isinstance(job, ef.StartRead)]:
        rig.jobs.insert(0, rig.jobs.pop(others[0]))
        rig.step()


def test_a_pull_whose_grant_has_nothing_wanted_hears_of_what_comes(
    make_rig: Callable[..., Any],
) -> None:
    """Counterexample: what it was granted was known to be unwanted by the time that it was read, so
    no entry came of that, and nobody told the partition any more that somebody waits.
    """
    desk = Desk(make_rig(cache=0))
    rig = desk.rig
    desk.publish("a", *["b"] * 9)
    for session, most in ((1, 1), (2, 9)):
        rig.ask(session, desk.pull(most))
        settle_but_reads(rig)
    assert len(rig.jobs) == 2, "both are granted, and nothing is read yet"
    rig.step()
    settle_but_reads(rig)
    for _ in range(3):
        rig.tick()
        settle_but_reads(rig)
    rig.settle()
    assert (desk.granted(1), desk.granted(2)) == ([(0, 1)], [])
    desk.publish("a")
    assert desk.granted(2) == [(10, 11)]


def test_what_a_leader_of_the_past_read_is_proposed_by_nobody(make_rig: Callable[..., Any]) -> None:
    """By then the cluster may be another one, with other tags."""
    desk = Desk(make_rig(cache=0))
    rig = desk.rig
    desk.publish("a", "b")
    rig.ask(1, desk.pull())
    settle_but_reads(rig)
    assert len(rig.jobs) == 1
    partition = rig.shard.topics.partition(desk.home.group)[1]
    partition.lose(NotLeader("another node leads", 2), cut_off=False)
    before = partition.group.node.log.last_index
    rig.settle()
    assert partition.group.node.log.last_index == before
