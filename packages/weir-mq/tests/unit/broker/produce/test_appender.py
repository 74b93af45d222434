"""Produce, sentence by sentence (DESIGN §5)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec import structs

import weir_raft as raft
from weir.broker.produce import appender
from weir.errors import (
    BadChecksum,
    BadRequest,
    Fenced,
    ProducerExpired,
    SequenceGap,
    SequenceReused,
    StampTooFar,
    UnknownProducer,
)
from weir.model.columns import Origins
from weir.model.limits import DEDUPE_HORIZON_MS, MAX_AHEAD_MS, PIPELINE_WINDOW
from weir.order.clock import milliseconds_of, stamp_at
from weir.protocol.client import messages as m


@pytest.fixture
def ready(rig: Any) -> tuple[Any, m.TopicInfo, m.ProducerGrant]:
    """A node with a session, a topic and a producer."""
    session = rig.connect()
    return rig, rig.topic(session), rig.answer(session, m.OpenProducer())


def test_a_batch_is_confirmed_with_offset_and_stamp_after_the_flush(ready: Any) -> None:
    rig, info, grant = ready
    asked = rig.ask(1, rig.batch(info, grant, 0, b"a", b"b"))
    assert all(number != asked for number, _ in rig.replies[1]), "nothing is durable yet"
    rig.settle()
    number, confirm = rig.replies[1][-1]
    assert (number, confirm.offset, confirm.duplicate) == (asked, 0, False)
    assert milliseconds_of(confirm.stamp) == rig.time.wall


def test_exactly_the_next_sequence_is_accepted(ready: Any) -> None:
    rig, info, grant = ready
    assert rig.answer(1, rig.batch(info, grant, 0, b"a", b"b")).offset == 0
    assert rig.answer(1, rig.batch(info, grant, 2, b"c")).offset == 2
    refusal = rig.answer(1, rig.batch(info, grant, 4, b"e"))
    assert (refusal.code, refusal.detail) == (SequenceGap.code, 3)
    # Counterexample 15: the refused one leaves no trace, the missing one is no duplicate.
    assert rig.answer(1, rig.batch(info, grant, 3, b"d")).offset == 3


@pytest.mark.parametrize("window", [1, 2, 64])
def test_a_window_is_kept_to(ready: Any, window: int) -> None:
    """One batch more than its answers are kept for is refused, and leaves no trace."""
    rig, info, _ = ready
    grant = rig.answer(1, m.OpenProducer(window=window))
    requests = [rig.batch(info, grant, n, b"%d" % n) for n in range(window + 1)]
    asked = [rig.ask(1, request) for request in requests]
    again = rig.ask(1, requests[0])
    rig.settle()
    replies = dict(rig.replies[1])
    assert [replies[number].offset for number in asked[:-1]] == [*range(window)]
    assert replies[asked[-1]].code == BadRequest.code
    assert f"its window of {window} under way" in replies[asked[-1]].message
    assert replies[again].duplicate, "a repeat is none more"
    # A confirm makes room, and each of the window's answers is kept.
    assert rig.answer(1, requests[-1]).offset == window
    for request in requests[1:]:
        assert rig.answer(1, request).duplicate
    assert rig.answer(1, requests[0]).code == SequenceReused.code
    assert not rig.shard.topics.find(info.addresses[0].group).leading.appender.windows


def test_an_id_without_a_window_is_not_held_to_one(ready: Any) -> None:
    """Clients of releases before format level 3 keep to 64 by themselves."""
    rig, info, grant = ready
    asked = [rig.ask(1, rig.batch(info, grant, n, b"v")) for n in range(PIPELINE_WINDOW + 2)]
    rig.settle()
    replies = dict(rig.replies[1])
    assert [replies[number].offset for number in asked] == [*range(PIPELINE_WINDOW + 2)]


@pytest.mark.parametrize("level", [m.Level.RECEIVED, m.Level.VISIBLE])
def test_all_confirm_levels_are_held_to_the_window(ready: Any, level: m.Level) -> None:
    """Else the answer to a batch whose confirm is lost may be forgotten."""
    rig, info, _ = ready
    grant = rig.answer(1, m.OpenProducer(window=2))
    requests = [structs.replace(rig.batch(info, grant, n, b"v"), level=level) for n in range(3)]
    asked = [rig.ask(1, request) for request in requests]
    rig.settle()
    replies = dict(rig.replies[1])
    assert replies[asked[2]].code == BadRequest.code
    assert [type(replies[number]) for number in asked[:2]] == [m.Confirm] * 2
    assert rig.answer(1, requests[0]).duplicate
    assert type(rig.answer(1, requests[2])) is m.Confirm


def test_an_epoch_has_a_window_of_its_own(ready: Any) -> None:
    rig, info, _ = ready
    grant = rig.answer(1, m.OpenProducer(window=1))
    first = rig.ask(1, rig.batch(info, grant, 0, b"a"))
    assert rig.shard.topics.find(info.addresses[0].group).leading.appender.windows == {
        (grant.producer, 0): 1
    }
    rig.settle()
    assert dict(rig.replies[1])[first].offset == 0
    assert not rig.shard.topics.find(info.addresses[0].group).leading.appender.windows


def test_pending_entries_count_in_dedupe(ready: Any) -> None:
    """Counterexample 14: what is under way is known before it is committed."""
    rig, info, grant = ready
    first = rig.batch(info, grant, 0, b"a")
    asked = [rig.ask(1, request) for request in (first, first, rig.batch(info, grant, 1, b"b"))]
    reused = rig.ask(1, rig.batch(info, grant, 0, b"x"))
    answered = dict(rig.replies[1])
    assert answered[reused].code == SequenceReused.code
    assert not answered.keys() & set(asked), "a repeat is answered after the first has committed"
    rig.settle()
    confirms = [dict(rig.replies[1])[number] for number in asked]
    assert [(c.offset, c.duplicate) for c in confirms] == [(0, False), (0, True), (1, False)]
    assert confirms[0].stamp == confirms[1].stamp


@pytest.mark.parametrize("refusal", [raft.NotReady("handed over"), raft.NotLeader(2)])
def test_what_raft_does_not_take_stays_in_line_in_order(
    ready: Any, monkeypatch: pytest.MonkeyPatch, refusal: Exception
) -> None:
    rig, info, grant = ready

    def refuse(*_: object) -> int:
        raise refusal

    with monkeypatch.context() as patch:
        patch.setattr(raft.Node, "propose", refuse)
        asked = [rig.ask(1, rig.batch(info, grant, n, bytes([n]))) for n in range(3)]
        rig.settle()
        assert not dict(rig.replies[1]).keys() & set(asked)
        appender = rig.shard.topics.find(info.addresses[0].group).leading.appender
        for _ in range(2):
            assert [pending.record.offset for pending in appender.staged] == [0, 1, 2]
            appender.cut()
    rig.tick()
    rig.settle()
    assert [dict(rig.replies[1])[number].offset for number in asked] == [0, 1, 2]


def test_a_repeat_gets_the_first_answer_and_other_bytes_are_refused(ready: Any) -> None:
    rig, info, grant = ready
    first = rig.answer(1, rig.batch(info, grant, 0, b"a", b"b"))
    again = rig.answer(1, rig.batch(info, grant, 0, b"a", b"b"))
    assert (again.offset, again.stamp, again.duplicate) == (first.offset, first.stamp, True)
    for values in ((b"b", b"a"), (b"a",)):  # counterexample 16
        assert rig.answer(1, rig.batch(info, grant, 0, *values)).code == SequenceReused.code
    assert rig.answer(1, rig.batch(info, grant, 1, b"b")).code == SequenceReused.code


def test_the_last_window_of_answers_is_kept(ready: Any) -> None:
    rig, info, grant = ready
    for sequence in range(PIPELINE_WINDOW + 1):
        assert rig.answer(1, rig.batch(info, grant, sequence, b"v")).offset == sequence
    assert rig.answer(1, rig.batch(info, grant, 0, b"v")).code == SequenceReused.code
    assert rig.answer(1, rig.batch(info, grant, 1, b"v")).offset == 1


def test_a_new_epoch_fences_the_old(ready: Any) -> None:
    rig, info, grant = ready
    rig.answer(1, rig.batch(info, grant, 0, b"a"))
    newer = rig.answer(1, m.OpenProducer(grant.producer))
    assert (newer.producer, newer.epoch) == (grant.producer, grant.epoch + 1)
    refusal = rig.answer(1, rig.batch(info, grant, 1, b"b"))
    assert (refusal.code, refusal.detail) == (Fenced.code, newer.epoch), "with the grant itself"
    assert rig.answer(1, rig.batch(info, newer, 1, b"c")).code == SequenceGap.code
    assert rig.answer(1, rig.batch(info, newer, 0, b"c")).offset == 1
    refusal = rig.answer(1, rig.batch(info, grant, 1, b"d"))
    assert (refusal.code, refusal.detail) == (Fenced.code, newer.epoch)


def test_a_new_epoch_is_known_while_the_old_is_pending(ready: Any) -> None:
    rig, info, grant = ready
    newer = m.ProducerGrant(grant.producer, grant.epoch + 1)
    opened = rig.ask(1, m.OpenProducer(grant.producer))  # starts a flush
    rig.ask(1, rig.batch(info, grant, 0, b"a"))  # waits for the next one
    rig.step()
    assert opened not in dict(rig.replies[1])  # it is told when nothing old comes any more
    rig.ask(1, rig.batch(info, newer, 0, b"b"))
    refused = rig.ask(1, rig.batch(info, grant, 1, b"c"))
    assert dict(rig.replies[1])[refused].code == Fenced.code
    rig.settle()
    assert dict(rig.replies[1])[opened] == newer
    assert rig.answer(1, rig.batch(info, newer, 1, b"d")).offset == 2


def test_producer_ids_belong_to_a_principal(ready: Any) -> None:
    """Counterexample 17."""
    rig, info, grant = ready
    stranger = m.ProducerGrant(grant.producer + 1, 0)
    request = rig.batch(info, stranger, 1 << 62, b"x")
    assert rig.answer(1, request).code == UnknownProducer.code
    assert rig.answer(1, m.OpenProducer(grant.producer + 1)).code == UnknownProducer.code


def test_an_id_older_than_the_horizon_is_refused(ready: Any) -> None:
    rig, info, grant = ready
    other = rig.answer(1, m.OpenProducer())
    rig.answer(1, rig.batch(info, other, 0, b"a"))
    rig.time.pass_ms(DEDUPE_HORIZON_MS + 1)
    assert rig.answer(1, rig.batch(info, grant, 0, b"a")).code == ProducerExpired.code
    assert rig.answer(1, rig.batch(info, other, 1, b"b")).offset == 1, "in use, so it is known"


def test_a_clock_that_went_back_does_not_make_an_old_id_young(ready: Any) -> None:
    rig, info, grant = ready
    newer = rig.answer(1, m.OpenProducer())
    rig.answer(1, rig.batch(info, grant, 0, b"a"))
    rig.answer(1, rig.batch(info, newer, 0, b"b"))
    rig.time.wall += DEDUPE_HORIZON_MS + 3_600_001
    for sequence in range(1, 40):  # the table expires by their stamps, a few parts at each
        rig.answer(1, rig.batch(info, newer, sequence, b"c"))
    rig.time.wall -= 3_700_000
    assert rig.answer(1, rig.batch(info, grant, 0, b"a")).code == ProducerExpired.code


def test_bytes_that_changed_are_refused(ready: Any) -> None:
    rig, info, grant = ready
    request = rig.batch(info, grant, 0, b"value")
    spoilt = bytearray(request.batch)
    spoilt[-3] ^= 1
    refused = rig.answer(1, m.Produce(request.address, 0, memoryview(spoilt)))
    assert refused.code == BadChecksum.code
    longer = memoryview(bytes(request.batch) + bytes(8))
    assert rig.answer(1, m.Produce(request.address, 0, longer)).code == BadRequest.code


def test_a_batch_for_another_partition_never_passes(ready: Any) -> None:
    rig, info, grant = ready
    other = rig.topic(1, "other")
    request = rig.batch(info, grant, 0, b"value")
    refused = rig.answer(1, m.Produce(other.addresses[0], 0, request.batch))
    assert refused.code == BadChecksum.code


def test_only_a_shard_writes_origins(ready: Any) -> None:
    rig, info, grant = ready
    forged = rig.batch(info, grant, 0, b"v", origins=Origins([1], [1], [0], [1]))
    assert rig.answer(1, forged).code == BadRequest.code


def test_stamps_rise_above_the_clock_the_last_and_what_the_client_saw(ready: Any) -> None:
    rig, info, grant = ready
    first = rig.answer(1, rig.batch(info, grant, 0, b"a")).stamp
    rig.time.wall -= 5_000
    second = rig.answer(1, rig.batch(info, grant, 1, b"b")).stamp
    assert second > first
    seen = stamp_at(milliseconds_of(second)) + 77
    rig.time.wall += 5_000
    third = rig.answer(1, rig.batch(info, grant, 2, b"c", seen=seen)).stamp
    assert third > max(second, seen)


def test_a_stamp_from_the_future_is_refused_and_changes_nothing(ready: Any) -> None:
    """Counterexample 7."""
    rig, info, grant = ready
    highest = stamp_at(rig.time.wall + MAX_AHEAD_MS)
    refused = rig.answer(1, rig.batch(info, grant, 0, b"a", seen=highest + 1))
    assert (refused.code, refused.detail) == (StampTooFar.code, highest)
    assert rig.shard.budget.used == 0
    assert rig.answer(1, rig.batch(info, grant, 0, b"a", seen=highest)).offset == 0


def test_the_intake_of_a_restarted_node_goes_on_behind_its_log(
    make_rig: Callable[..., Any],
) -> None:
    """Whatever NOOPs of earlier terms are applied again, and with or without a checkpoint."""
    for checkpoint_bytes in (1, 1 << 30):
        rig = make_rig(checkpoint_bytes=checkpoint_bytes)
        info = rig.topic(rig.connect())
        grant = rig.answer(1, m.OpenProducer())
        last = 0
        for sequence in range(4):
            confirm = rig.answer(1, rig.batch(info, grant, sequence, b"v%d" % sequence))
            assert confirm.offset == sequence
            assert confirm.stamp > last
            again = rig.answer(1, rig.batch(info, grant, sequence, b"v%d" % sequence))
            assert (again.offset, again.stamp) == (confirm.offset, confirm.stamp)
            last = confirm.stamp
            rig.tick()
            rig.settle()
            rig.time.wall -= 10_000
            rig.disk.crash()
            rig.boot()
            rig.connect()
            again = rig.answer(1, rig.batch(info, grant, sequence, b"v%d" % sequence))
            assert (again.offset, again.stamp, again.duplicate) == (sequence, last, True)


def test_large_batches_stand_alone_and_small_ones_share_an_entry(ready: Any) -> None:
    rig, info, grant = ready
    partition = next(iter(rig.shard.topics.partitions()))
    before = partition.group.node.log.last_index
    requests = [rig.batch(info, grant, n, b"v") for n in range(3)]
    asked = rig.ask(1, *requests)
    rig.settle()
    assert dict(rig.replies[1])[asked].offset == 2
    assert partition.group.node.log.last_index - before == 1


@pytest.mark.parametrize(
    ("tags", "size", "entries"),
    [
        (["a", "a", "b", "b"], 2_500, [2, 2]),  # a long run ends
        (["a", "b", "a", "b"], 2_500, [2, 2]),  # two of them are long, whatever they have
        (["a", "b", "a", "b"], 500, [4]),
        (["a", "a", "a", None], 2_500, [3, 1]),
        ([None, None, None, None], 2_500, [4]),
    ],
)
def test_a_long_entry_ends_where_the_tags_change(
    ready: Any,
    monkeypatch: pytest.MonkeyPatch,
    tags: list[str | None],
    size: int,
    entries: list[int],
) -> None:
    monkeypatch.setattr(appender, "TAG_RUN_BYTES", 4_000)  # the log takes no entries so long
    rig, info, grant = ready
    group = next(iter(rig.shard.topics.partitions())).group
    before = group.node.log.last_index
    value = bytes(size)
    rig.ask(
        1,
        *(
            rig.batch(info, grant, n, value, tags=None if tag is None else [tag])
            for n, tag in enumerate(tags)
        ),
    )
    rig.settle()
    offsets = [group.log.reader.cut_by_offset(group.id, at)[0] for at in range(len(tags))]
    indexes = range(before + 1, before + 1 + len(entries))
    assert offsets == [at for at, n in zip(indexes, entries, strict=True) for _ in range(n)]
