"""Members that need what is gone: snapshots in pieces, and entries filled in below them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from weir_raft import (
    Append,
    AppendReply,
    Configuration,
    Entry,
    EntryKind,
    HeartbeatReply,
    InstallSnapshot,
    ProgressState,
    Role,
    Snapshot,
    SnapshotMeta,
    SnapshotReply,
)
from weir_raft.testing.rehearsal import Rehearsal

META = SnapshotMeta(20, 1, Configuration((1, 2, 3)), 20, 1, 4)


@pytest.fixture
def behind() -> Callable[..., Rehearsal]:
    def start(kept_entries: int = 0) -> Rehearsal:
        """Node 3 is down while 20 entries are committed and compacted."""
        group = Rehearsal(0, kept_entries=kept_entries, snapshot_chunk_bytes=3, max_append_bytes=30)
        one = group.lead(1)
        group.flow()
        group.actors[3].crash(group.dice)
        for item in range(20):
            one.node.propose(item, 10)
            group.flow()
        one.compact()
        group.pass_ms(1_000)
        return group

    return start


def pieces(group: Rehearsal) -> list[InstallSnapshot]:
    return [m for m in group.mail if isinstance(m, InstallSnapshot)]


def test_a_follower_behind_the_log_gets_a_snapshot_in_pieces(
    behind: Callable[..., Rehearsal],
) -> None:
    group = behind()
    one, three = group.actors[1], group.actors[3]
    assert one.node.log.first_index == 22
    three.start()
    group.pass_ms(1_000)
    assert (three.applied, three.crc, three.node.log.last_index) == (21, one.crc, 21)
    assert three.node.log.first_index == 22
    one.node.propose("x", 1)
    group.pass_ms(100)
    assert three.applied == 22


def test_what_the_log_still_holds_below_a_snapshot_is_filled_in_before_it_counts(
    behind: Callable[..., Rehearsal],
) -> None:
    group = behind(kept_entries=10)
    one, three = group.actors[1], group.actors[3]
    assert one.node.log.first_index == 12
    three.start()
    seen: list[tuple[int, int]] = []
    for _ in range(400):
        for message in group.mail[:1]:
            group.mail.pop(0)
            group.hand_over(message)
        for actor in group.actors.values():
            actor.node.tick(10)
            actor.serve()
            actor.sync(1)
            actor.serve()
        match = next(p.match for p in one.node.progress() if p.member == 3)
        seen.append((three.node.log.last_index, match))
        if three.applied == 21 and three.node.log.last_index < 21:
            three.node.campaign()
            assert three.node.role is Role.FOLLOWER
    assert (11, 11) in seen
    assert all(match <= last for last, match in seen)
    assert seen[-1] == (21, 21)
    assert (three.node.log.first_index, three.crc) == (12, one.crc)


def test_a_restart_while_filling_in_goes_on_from_what_is_there(
    behind: Callable[..., Rehearsal],
) -> None:
    group = behind(kept_entries=10)
    one, three = group.actors[1], group.actors[3]
    three.disk.install(
        Snapshot(21, 1, one.crc.to_bytes(4, "little"), Configuration((1, 2, 3)), 11, 1)
    )
    three.disk.save(None, one.disk.entries(12, 15, 1000))
    three.start()
    assert (three.node.log.last_index, three.node.log.applied) == (14, 21)
    group.pass_ms(1_000)
    assert (three.node.log.last_index, three.crc) == (21, one.crc)


def test_pieces_that_are_lost_repeated_or_late_make_the_same_snapshot(
    behind: Callable[..., Rehearsal],
) -> None:
    group = behind()
    group.actors[3].start()
    for _ in range(600):
        group.run(1, {"deliver": 60, "sync": 30, "lose": 10, "repeat": 10, "tick": 10})
    group.settle()
    assert group.actors[3].crc == group.actors[1].crc


def install(position: int, data: bytes, meta: SnapshotMeta = META) -> InstallSnapshot:
    return InstallSnapshot(2, 1, 1, meta, position, data, position + len(data) == meta.size)


def test_pieces_count_only_in_order(group: Rehearsal) -> None:
    two = group.actors[2]
    for piece in (install(2, b"cd"), install(0, b"ab"), install(0, b"ab"), install(1, b"x")):
        two.node.step(piece)
    two.serve()
    assert [m.position for m in group.mail if isinstance(m, SnapshotReply)] == [0, 2, 2, 2]
    two.node.step(install(2, b"cd"))
    two.serve()
    assert (two.applied, two.crc) == (20, int.from_bytes(b"abcd", "little"))
    group.mail.clear()
    two.sync(2)
    two.serve()
    assert group.mail == [AppendReply(1, 2, 1, 20, commit=20)]


def test_an_installed_snapshot_is_acknowledged_only_when_it_is_durable(group: Rehearsal) -> None:
    two = group.actors[2]
    two.node.step(install(0, b"abcd"))
    two.node.step(Append(2, 1, 1, 20, 1, (), 20))
    two.serve()
    assert group.mail == []
    two.sync(1)
    two.serve()
    assert group.mail == [AppendReply(1, 2, 1, 20, commit=20)]


@pytest.mark.parametrize(
    ("meta", "reply"),
    [
        (SnapshotMeta(19, 1, META.configuration, 19, 1, 4), AppendReply(1, 2, 1, 20, commit=20)),
        (SnapshotMeta(19, 1, META.configuration, 15, 1, 4), AppendReply(1, 2, 1, 20, commit=20)),
    ],
)
def test_a_snapshot_of_what_is_here_is_not_installed_again(
    group: Rehearsal, meta: SnapshotMeta, reply: AppendReply
) -> None:
    two = group.actors[2]
    two.node.step(install(0, b"abcd"))
    group.flow()
    group.mail.clear()
    two.node.step(install(0, b"zzzz", meta))
    two.serve()
    assert group.mail == [reply]
    assert two.applied == 20


def test_a_snapshot_takes_nothing_away_that_its_leader_would_send_again(group: Rehearsal) -> None:
    two = group.actors[2]
    sent = tuple(Entry(index, 1, EntryKind.NORMAL, "x", 1) for index in range(1, 26))
    two.node.step(Append(2, 1, 1, 0, 0, sent, 10))
    two.serve()
    two.sync(1)
    two.serve()
    acknowledged = AppendReply(1, 2, 1, 25, commit=10)
    assert group.mail == [acknowledged]
    # Its leader had heard nothing for long: this was on its way when the acknowledgement came.
    two.node.step(install(0, b"abcd", SnapshotMeta(40, 1, META.configuration, 20, 1, 4)))
    two.serve()
    assert (two.node.log.last_index, two.node.log.committed) == (25, 10)
    assert group.mail == [acknowledged, acknowledged]


def test_a_snapshot_takes_away_what_is_not_its_leaders(group: Rehearsal) -> None:
    two = group.actors[2]
    sent = tuple(Entry(index, 1, EntryKind.NORMAL, "x", 1) for index in range(1, 26))
    two.node.step(Append(2, 1, 1, 0, 0, sent, 10))
    two.serve()
    other = SnapshotMeta(40, 2, META.configuration, 20, 2, 4)
    two.node.step(InstallSnapshot(2, 3, 2, other, 0, b"abcd", done=True))
    two.serve()
    assert (two.node.log.last_index, two.applied) == (20, 40)


def test_a_snapshot_beyond_the_limit_is_refused_before_it_is_kept() -> None:
    group = Rehearsal(0, max_snapshot_bytes=3)
    two = group.actors[2]
    two.node.step(install(0, b"abcd"))
    two.serve()
    assert group.mail == [SnapshotReply(1, 2, 1, 0, rejected=True)]


def test_a_leader_keeps_asking_for_a_snapshot_and_for_replies(group: Rehearsal) -> None:
    one = group.lead(1)
    group.severed |= {(1, 3), (3, 1)}
    for item in range(5):
        one.node.propose(item, 10)
        group.flow()
    one.compact()
    group.severed.clear()
    one.node.tick(200)
    one.serve()
    for message in list(group.mail):
        group.mail.remove(message)
        if message.to == 3:
            group.hand_over(message)
    rejections = [m for m in group.mail if isinstance(m, AppendReply)]
    assert rejections[-1].rejected
    one.node.step(rejections[-1])
    wanted = one.node.ready().wants_snapshot
    assert wanted == (3,)
    assert [p.state for p in one.node.progress()][1] is ProgressState.SNAPSHOT
    one.node.tick(300)
    for follower in (2, 3):
        one.node.step(HeartbeatReply(1, follower, 1, 1))
    one.serve()
    one.node.tick(300)
    assert 3 in one.node.ready().wants_snapshot


def test_the_configuration_travels_with_the_snapshot(group: Rehearsal) -> None:
    two = group.actors[4]
    meta = SnapshotMeta(20, 1, Configuration((1, 4)), 20, 1, 4)
    two.node.step(InstallSnapshot(4, 1, 1, meta, 0, b"abcd", done=True))
    two.serve()
    assert two.node.configuration == Configuration((1, 4))
    group.flow()
    two.crash(group.dice)
    two.start()
    assert two.node.configuration == Configuration((1, 4))
