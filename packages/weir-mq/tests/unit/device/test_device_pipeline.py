"""Go-back-N of a device: scripted cases, and a search against a naive broker."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.device.pipeline import Pipeline, Publish
from weir.errors import (
    BadChecksum,
    Overloaded,
    RemoteProtocolError,
    SequenceGap,
    SequenceReused,
    Unauthorized,
)
from weir.protocol.device import DeviceOpcode, DeviceReply


def reply(sequence: int, code: int = 0, offset: int = 0) -> DeviceReply:
    return DeviceReply(DeviceOpcode.PUBLISH_SEQUENCED, 0, code, sequence, offset)


def one_lock(count: int, first: int, window: int) -> Pipeline:
    return Pipeline([Publish(0, first + i, b"%d" % i) for i in range(count)], window)


def sent(pipeline: Pipeline) -> list[tuple[int, bytes]]:
    """What goes out of one lock now: sequence and value."""
    found = pipeline.to_send()
    assert {publish.sn for publish in found} <= {0}
    return [(publish.sequence, publish.value) for publish in found]


def test_the_window_bounds_what_is_under_way() -> None:
    pipeline = one_lock(5, 10, 3)
    assert sent(pipeline) == [(10, b"0"), (11, b"1"), (12, b"2")]
    assert sent(pipeline) == []
    assert pipeline.answered(reply(10))
    assert sent(pipeline) == [(13, b"3")]


def test_trouble_waits_for_all_replies_and_begins_at_the_first_unconfirmed() -> None:
    pipeline = one_lock(6, 0, 4)
    pipeline.to_send()
    assert pipeline.answered(reply(0, offset=7))
    assert not pipeline.answered(reply(77, BadChecksum.code))  # the number changed on the way
    assert pipeline.rewind() is None
    assert sent(pipeline) == []
    pipeline.answered(reply(2, SequenceGap.code, 1))
    pipeline.answered(reply(3, SequenceGap.code, 1))
    assert isinstance(pipeline.rewind(), SequenceGap)
    assert sent(pipeline) == [(i, b"%d" % i) for i in (1, 2, 3, 4)]
    for sequence in (1, 2, 3, 4):
        pipeline.answered(reply(sequence, offset=7 + sequence))
    assert sent(pipeline) == [(5, b"5")]
    pipeline.answered(reply(5, offset=12))
    assert pipeline.done
    assert [r.offset for r in pipeline.replies if r] == [*range(7, 13)]


def test_a_repeated_confirm_is_no_progress() -> None:
    pipeline = one_lock(2, 0, 2)
    pipeline.to_send()
    assert pipeline.answered(reply(1))
    assert not pipeline.answered(reply(1))
    assert pipeline.unconfirmed == 0


def test_what_sending_again_does_not_cure_is_raised() -> None:
    pipeline = one_lock(2, 5, 2)
    pipeline.to_send()
    with pytest.raises(Unauthorized):
        pipeline.answered(reply(5, Unauthorized.code))
    with pytest.raises(RemoteProtocolError):
        pipeline.answered(reply(9))
    pipeline = one_lock(1, 5, 2)
    pipeline.to_send()
    pipeline.answered(reply(5, SequenceGap.code, 3))
    with pytest.raises(SequenceGap, match="new boot"):
        pipeline.rewind()


def test_a_lock_whose_window_is_full_holds_back_those_behind_it() -> None:
    first, second, other = Publish(1, 0, b"a"), Publish(1, 1, b"b"), Publish(2, 0, b"c")
    assert Pipeline([first, second, other], 1).to_send() == [first]
    assert Pipeline([first, other, second], 1).to_send() == [first, other]


def test_locks_have_windows_of_their_own() -> None:
    pipeline = Pipeline([Publish(i % 3, i // 3, b"%d" % i) for i in range(9)], 2)
    assert [p.value for p in pipeline.to_send()] == [b"%d" % i for i in range(6)]
    pipeline.answered(DeviceReply(DeviceOpcode.PUBLISH_SEQUENCED, 1, 0, 0, 1))
    assert pipeline.to_send() == [], "the next is lock 0's, whose window is full"
    pipeline.answered(DeviceReply(DeviceOpcode.PUBLISH_SEQUENCED, 0, 0, 0, 0))
    assert [p.value for p in pipeline.to_send()] == [b"6", b"7"]


@given(
    st.integers(0, 12),
    st.integers(1, 3),
    st.integers(1, 5),
    st.lists(st.sampled_from(["ok", "ok", "damage", "busy", "lose", "cut"]), max_size=60),
)
def test_every_value_lands_once_and_in_order(
    count: int, locks: int, window: int, faults: list[str]
) -> None:
    publishes = [Publish(i % locks, 3 + i // locks, b"%d" % i) for i in range(count)]
    pipeline = Pipeline(publishes, window)
    broker = Broker(locks, [*faults])
    for _ in range(len(faults) + 2 * count + 10):
        if pipeline.done:
            break
        if broker.take(pipeline):
            pipeline.lost()
        pipeline.rewind()
    assert pipeline.done
    assert broker.logs == [[b"%d" % i for i in range(sn, count, locks)] for sn in range(locks)]
    assert [r.offset for r in pipeline.replies if r] == [3 + i // locks for i in range(count)]


class Broker:
    """Keeps each lock's values from sequence 3 on, and does as `faults` say, frame by frame."""

    def __init__(self, locks: int, faults: list[str]) -> None:
        self.logs: list[list[bytes]] = [[] for _ in range(locks)]
        self.faults = faults

    def take(self, pipeline: Pipeline) -> bool:
        """Answer all frames of one turn; tell whether the connection was lost."""
        for sn, sequence, value in pipeline.to_send():
            fault = self.faults.pop(0) if self.faults else "ok"
            if fault == "cut":
                return True  # what comes behind a cut never arrives
            if fault in ("ok", "lose"):
                code, offset = self.land(sn, sequence, value)
                if fault == "lose":
                    return True  # it landed; its answer is lost with the connection
            else:
                code, offset = (BadChecksum if fault == "damage" else Overloaded).code, 5
                sequence ^= 8 * (fault == "damage")
            opcode = DeviceOpcode.PUBLISH_SEQUENCED
            pipeline.answered(DeviceReply(opcode, sn, code, sequence, offset))
        return False

    def land(self, sn: int, sequence: int, value: bytes) -> tuple[int, int]:
        log = self.logs[sn]
        if sequence - 3 > len(log):
            return SequenceGap.code, 3 + len(log)
        if sequence - 3 == len(log):
            log.append(value)
        assert log[sequence - 3] == value
        return 0, sequence


def test_a_refusal_names_the_lock_and_what_to_do() -> None:
    pipeline = one_lock(2, 5, 2)
    pipeline.to_send()
    with pytest.raises(SequenceReused, match=r"lock 0 .* higher boot count"):
        pipeline.answered(reply(5, SequenceReused.code))
    assert pipeline.refused == 0
