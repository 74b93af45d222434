"""Go-back-N of a device: scripted cases, and a search against a naive broker."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.device.pipeline import Pipeline
from weir.errors import BadChecksum, Overloaded, RemoteProtocolError, SequenceGap, Unauthorized
from weir.wire.device import DeviceOpcode, DeviceReply


def reply(sequence: int, code: int = 0, offset: int = 0) -> DeviceReply:
    return DeviceReply(DeviceOpcode.PUBLISH_SEQUENCED, 0, code, sequence, offset)


def values(count: int) -> list[bytes]:
    return [b"%d" % i for i in range(count)]


def test_the_window_bounds_what_is_under_way() -> None:
    pipeline = Pipeline(values(5), first=10, window=3)
    assert pipeline.to_send() == [(10, b"0"), (11, b"1"), (12, b"2")]
    assert pipeline.to_send() == []
    assert pipeline.answered(reply(10))
    assert pipeline.to_send() == [(13, b"3")]


def test_trouble_waits_for_all_replies_and_begins_at_the_first_unconfirmed() -> None:
    pipeline = Pipeline(values(6), first=0, window=4)
    pipeline.to_send()
    assert pipeline.answered(reply(0, offset=7))
    assert not pipeline.answered(reply(77, BadChecksum.code))  # the number changed on the way
    assert pipeline.rewind() is None
    assert pipeline.to_send() == []
    pipeline.answered(reply(2, SequenceGap.code, 1))
    pipeline.answered(reply(3, SequenceGap.code, 1))
    assert isinstance(pipeline.rewind(), SequenceGap)
    assert pipeline.to_send() == [(i, b"%d" % i) for i in (1, 2, 3, 4)]
    for sequence in (1, 2, 3, 4):
        pipeline.answered(reply(sequence, offset=7 + sequence))
    assert pipeline.to_send() == [(5, b"5")]
    pipeline.answered(reply(5, offset=12))
    assert pipeline.done
    assert [r.offset for r in pipeline.replies if r] == [*range(7, 13)]


def test_a_repeated_confirm_is_no_progress() -> None:
    pipeline = Pipeline(values(2), first=0, window=2)
    pipeline.to_send()
    assert pipeline.answered(reply(1))
    assert not pipeline.answered(reply(1))
    assert pipeline.unconfirmed == 0


def test_what_sending_again_does_not_cure_is_raised() -> None:
    pipeline = Pipeline(values(2), first=5, window=2)
    pipeline.to_send()
    with pytest.raises(Unauthorized):
        pipeline.answered(reply(5, Unauthorized.code))
    with pytest.raises(RemoteProtocolError):
        pipeline.answered(reply(9))
    pipeline = Pipeline(values(1), first=5, window=2)
    pipeline.to_send()
    pipeline.answered(reply(5, SequenceGap.code, 3))
    with pytest.raises(SequenceGap, match="new boot"):
        pipeline.rewind()


@given(
    st.integers(0, 12),
    st.integers(1, 5),
    st.lists(st.sampled_from(["ok", "ok", "damage", "busy", "lose", "cut"]), max_size=60),
)
def test_every_value_lands_once_and_in_order(count: int, window: int, faults: list[str]) -> None:
    pipeline = Pipeline(values(count), first=3, window=window)
    log: list[bytes] = []
    left = [*faults]
    for _ in range(len(faults) + 2 * count + 10):
        if pipeline.done:
            break
        sent = pipeline.to_send()
        lost = False
        for sequence, value in sent:
            fault = left.pop(0) if left else "ok"
            if fault == "cut":
                lost = True
            if lost:  # what comes behind a cut never arrives
                continue
            if fault == "damage":
                pipeline.answered(reply(sequence ^ 8, BadChecksum.code))
            elif fault == "busy":
                pipeline.answered(reply(sequence, Overloaded.code, 5))
            elif sequence - 3 > len(log):
                pipeline.answered(reply(sequence, SequenceGap.code, 3 + len(log)))
            else:
                if sequence - 3 == len(log):
                    log.append(value)
                assert log[sequence - 3] == value
                if fault == "lose":  # it landed; its answer is lost with the connection
                    lost = True
                else:
                    pipeline.answered(reply(sequence, offset=sequence))
        if lost:
            pipeline.lost()
        pipeline.rewind()
    assert pipeline.done
    assert log == values(count)
    assert [r.offset for r in pipeline.replies if r] == [3 + i for i in range(count)]
