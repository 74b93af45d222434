"""A state too large to be decoded at once comes to a replica, which does all else meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from weir.broker.api import effects as ef
from weir.broker.records.snapshots import Packing, Unpacking, pack
from weir.model.limits import MIB
from weir.model.topic import SettingsChange
from weir_raft.follower import Arriving

DEVICES = 25_000


def publish(trio: Any, produce: Any, info: Any, grant: Any, first: int, count: int) -> None:
    for sequence in range(first, first + count):
        confirm = trio.told(produce(info, grant, sequence, b"x" * 1_000), info.addresses[0].group)
        assert confirm.offset == sequence


def lagging(trio: Any, produce: Any) -> tuple[Any, Any, int]:
    """Return topic, grant and a node that was away until it needs a large state."""
    info, grant = trio.topic(settings=SettingsChange(retention_bytes=20_000)), trio.producer()
    group = info.addresses[0].group
    publish(trio, produce, info, grant, 0, 3)
    trio.same_everywhere(group)
    away = next(node for node in trio.live() if node is not trio.leader(group))
    away.kill()
    for node in trio.live():  # as if as many devices had published
        for hub in range(DEVICES):
            node.group(group).machine.state.origins.record(hub, 0, 1, 0, 0, 9)
    publish(trio, produce, info, grant, 3, 100)
    trio.run(500)
    for node in trio.live():
        node.shard.writers[0].checkpoints.save()
    trio.run(300)
    assert trio.leader(group).group(group).log.reader.base(group)[0] > 50
    return info, grant, away


def held(node: Any, kind: type) -> list[Any]:
    return [job for job in node.jobs if isinstance(job, ef.StartRead) and type(job.reading) is kind]


def all_but(trio: Any, kind: type) -> None:
    """Let happen at once what can, but reads of a kind."""
    trio.connect()
    trio.deliver()
    for one in trio.live():
        while jobs := [job for job in one.jobs if job not in held(one, kind)]:
            one.jobs.remove(jobs[0])
            one.jobs.insert(0, jobs[0])
            one.step()


def until_it_is_decoded(trio: Any, node: Any) -> Any:
    """Let all happen but the decoding of a state at a node; return its job."""
    for _ in range(2_000):
        all_but(trio, Unpacking)
        if found := held(node, Unpacking):
            return found[0]
        trio.pass_ms(10)
    raise AssertionError("no state came")


def test_a_large_state_is_packed_and_decoded_off_the_loop(make_trio: Any, produce: Any) -> None:
    trio = make_trio(retention_every_ms=1)
    info, grant, away = lagging(trio, produce)
    group = info.addresses[0].group
    away.boot()
    job = until_it_is_decoded(trio, away)
    here = away.group(group)
    assert here.is_decoding
    # Nothing of it is taken before it is known to be a state.
    assert here.kept_index == here.node.log.applied < 50
    # The registry's group at this node lives on, and the others confirm.
    assert away.group(0).leader
    publish(trio, produce, info, grant, 103, 0)
    assert job in away.jobs
    kept = trio.same_everywhere(group)
    assert not here.is_decoding
    assert len(pack(away.group(group).machine.encode())) > MIB
    away.kill()
    away.boot()
    assert trio.same_everywhere(group) == kept
    assert away.group(group).machine.state.origins.known(DEVICES - 1, 0) is not None


def test_what_was_dropped_meanwhile_does_not_come_back(make_trio: Any, produce: Any) -> None:
    trio = make_trio(retention_every_ms=1)
    info, _, away = lagging(trio, produce)
    group = info.addresses[0].group
    away.boot()
    job = until_it_is_decoded(trio, away)
    away.shard.writers[0].forget(group)
    tail = away.shard.writers[0].log.tail
    away.jobs.remove(job)
    away.jobs.insert(0, job)
    away.step()
    assert away.shard.writers[0].log.tail == tail
    assert group not in away.shard.writers[0].restored.numbers


def test_a_state_is_packed_once_however_often_it_is_asked_for(make_trio: Any, produce: Any) -> None:
    trio = make_trio(retention_every_ms=1)
    info, _, away = lagging(trio, produce)
    group = info.addresses[0].group
    away.boot()
    leader = trio.leader(group)
    packings = []
    for _ in range(200):
        all_but(trio, Packing)
        packings = held(leader, Packing)
        trio.pass_ms(20)
    large = [job for job in packings if any(isinstance(part, list) for part in job.reading.state)]
    assert len(large) == 1, "the registry's is another one"
    trio.same_everywhere(group)


def test_a_state_that_comes_again_while_it_is_decoded_is_not_joined_again(
    make_trio: Any, produce: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    trio = make_trio(retention_every_ms=1)
    info, _, away = lagging(trio, produce)
    group = info.addresses[0].group
    away.boot()
    joined = []
    with_piece = Arriving.with_piece

    def counted(self: Arriving, position: int, data: bytes) -> bytes | None:
        found = with_piece(self, position, data)
        joined.append(len(found or b"") >= MIB)
        return found

    monkeypatch.setattr(Arriving, "with_piece", counted)
    until_it_is_decoded(trio, away)
    sent = trio.leader(group).group(group).node.core.state.members[away.group(group).voter]
    before = sent.transfer.position
    for _ in range(500):  # ten seconds, in which its last piece is sent again and again
        all_but(trio, Unpacking)
        trio.pass_ms(20)
    assert (sent.transfer.position, len(held(away, Unpacking))) == (before, 1)
    assert sum(joined) == 1
    trio.same_everywhere(group)


def test_a_state_that_is_decoded_late_does_not_end_a_newer_one(
    make_trio: Any, produce: Any
) -> None:
    trio = make_trio(retention_every_ms=1)
    info, grant, away = lagging(trio, produce)
    group = info.addresses[0].group
    away.boot()
    job = until_it_is_decoded(trio, away)
    here = away.group(group)
    older = here.node.arriving.meta
    # Its link breaks, and the leader has gone on by the time it comes again.
    trio.isolate(away.id)
    away.jobs.remove(job)
    publish(trio, produce, info, grant, 103, 7)
    for node in trio.live():
        if node is not away:
            node.shard.writers[0].checkpoints.save()
    trio.heal()
    away.jobs.append(job)

    def newer() -> Any:
        arriving = here.node.arriving
        return arriving if arriving is not None and arriving.meta != older else None

    for _ in range(400):
        all_but(trio, Unpacking)
        trio.pass_ms(20)
        if (found := newer()) is not None and found.position >= MIB // 2:
            break
    assert found is not None
    position = found.position
    away.jobs.remove(job)
    away.jobs.insert(0, job)
    away.step()
    assert newer() is found
    assert found.position >= position
    assert here.node.log.applied < older.index
    trio.same_everywhere(group)
