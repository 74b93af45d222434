"""What becomes of the shards of a node: who is told, joined, killed, and started again."""

from __future__ import annotations

import logging

import pytest

from weir.host.supervision import (
    ENDS_MAX,
    ENDS_WITHIN_SECONDS,
    LOOKS_MISSED_MAX,
    Action,
    AwayNotice,
    DiskGone,
    NodeFailed,
    ProcessKill,
    Supervision,
    TrunkJoin,
)

HANG_LOOKS = 10


def made(shards: int = 2, up: bool = True) -> Supervision:
    supervision = Supervision(shards, float(HANG_LOOKS), 1.0, 0.1, logging.getLogger("test"))
    for shard in range(shards if up else 0):
        supervision.started(shard)
        supervision.served(shard)
    return supervision


def told(shards: int, away: tuple[int, ...], silent: tuple[int, ...] = ()) -> list[Action]:
    return [AwayNotice(shard, away, silent) for shard in range(shards)]


def looked(supervision: Supervision, looks: int, but: int) -> list[Action]:
    """Look so often; all but one are heard of meanwhile."""
    found: list[Action] = []
    for _ in range(looks):
        found += supervision.look()
        found += supervision.heard(1 - but)
    return found


def test_a_process_is_joined_with_all_that_are_there_both_ways() -> None:
    supervision = made(3, up=False)
    assert supervision.started(0) == [AwayNotice(0, (), ())]
    assert supervision.started(2) == [AwayNotice(2, (), ()), TrunkJoin(2, 0), TrunkJoin(0, 2)]
    assert supervision.served(0) == [AwayNotice(0, (1, 2), ()), AwayNotice(2, (1, 2), ())]
    assert supervision.started(1)[1:] == [
        TrunkJoin(1, 0),
        TrunkJoin(0, 1),
        TrunkJoin(1, 2),
        TrunkJoin(2, 1),
    ]


def test_others_hear_of_who_ends_and_of_who_serves_again() -> None:
    supervision = made()
    assert supervision.gone(1) == [AwayNotice(0, (1,), ())]
    assert not supervision.is_up(1)
    assert supervision.started(1) == [AwayNotice(1, (1,), ()), TrunkJoin(1, 0), TrunkJoin(0, 1)]
    assert not supervision.is_up(1)
    assert supervision.served(1) == told(2, ())
    assert supervision.is_up(1)


def test_who_stands_still_is_told_of_then_killed() -> None:
    supervision = made()
    assert looked(supervision, LOOKS_MISSED_MAX - 1, but=1) == []
    assert supervision.look() == told(2, (1,), (1,))
    supervision.heard(0)
    assert looked(supervision, HANG_LOOKS - LOOKS_MISSED_MAX - 1, but=1) == []
    assert supervision.look() == [ProcessKill(1)]


def test_who_goes_on_gets_trunks_again_and_nobody_else() -> None:
    supervision = made()
    looked(supervision, LOOKS_MISSED_MAX, but=1)
    assert supervision.heard(1) == [*told(2, ()), TrunkJoin(1, 0), TrunkJoin(0, 1)]
    assert supervision.heard(1) == []


def test_nobody_is_joined_with_who_stands_still() -> None:
    supervision = made()
    looked(supervision, LOOKS_MISSED_MAX, but=1)
    supervision.gone(0)
    assert supervision.started(0) == [AwayNotice(0, (0, 1), (1,))]


def test_who_is_not_up_yet_may_take_its_time() -> None:
    supervision = made(up=False)
    supervision.started(0)
    assert [supervision.look() for _ in range(2 * HANG_LOOKS)][1:] == [[]] * (2 * HANG_LOOKS - 1)


def test_a_broken_trunk_is_replaced_unless_an_end_is_another_process() -> None:
    supervision = made()
    trunk, seconds = supervision.lost(0, 1)
    assert seconds > 0
    assert supervision.replace(trunk) == [TrunkJoin(0, 1)]
    looked(supervision, LOOKS_MISSED_MAX, but=1)
    assert supervision.replace(trunk) == [], "it gets all of them when it goes on"
    supervision.heard(1)
    supervision.gone(1)
    assert supervision.replace(trunk) == []
    supervision.started(1)
    assert supervision.replace(trunk) == [], "it was given that when it started"


def test_a_shard_is_started_again_later_each_time_until_that_makes_no_sense() -> None:
    supervision = made()
    pauses = [supervision.again(1, "SIGKILL", False, None, float(at)) for at in range(ENDS_MAX - 1)]
    assert pauses == [0.1, 0.2, 0.4, 0.8]
    with pytest.raises(NodeFailed, match=r"shard 1 ended 5 times within 60 s, .* by exit code 9"):
        supervision.again(1, "exit code 9", False, None, float(ENDS_MAX))


def test_ends_of_long_ago_do_not_count() -> None:
    supervision = made()
    for at in range(3 * ENDS_MAX):
        assert supervision.again(1, "SIGKILL", False, None, at * ENDS_WITHIN_SECONDS / 3) <= 0.8


def test_a_failed_disk_and_words_of_its_own_end_the_node_at_once() -> None:
    supervision, said = made(), OSError(98, "taken")
    with pytest.raises(DiskGone, match="shard 1: its disk failed"):
        supervision.again(1, "exit code 74", True, said, 0.0)
    with pytest.raises(OSError, match="taken") as failed:
        supervision.again(1, "exit code 1", False, said, 0.0)
    assert failed.value is said
