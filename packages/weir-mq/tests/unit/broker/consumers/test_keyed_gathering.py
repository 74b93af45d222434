"""Quick consumers of a keyed cluster wait a moment for keys that are out: then what each is granted
lies close, instead of far apart in batches that all of them are sent.
"""

from __future__ import annotations

from typing import Any

import pytest

from weir.model.topic import Mode
from weir.protocol.client import messages as m

KEYS, PART, WAITERS = 800, 100, (12, 13, 14)
#: What a waiter asks for.
MOST = 400


class Shift:
    """A topic whose keys come in turn, and eight consumers that hold a part of the keys each."""

    def __init__(
        self, rig: Any, wait_ms: int = 20_000, messages: int = 8_000, tagged: int = 0
    ) -> None:
        """Only the first `tagged` of each batch have the tag that the cluster wants, if any."""
        self.rig, self.wait_ms = rig, wait_ms
        self.tags = ("a",) if tagged else ()
        tags = ["a" if n < tagged else "b" for n in range(KEYS)] if tagged else None
        for session in (1, *range(2, 10), *WAITERS):
            rig.connect(session)
        self.info = rig.topic(1)
        producer = rig.answer(1, m.OpenProducer())
        for first in range(0, messages, KEYS):
            keys = [b"%d" % key for key in range(KEYS)]
            batch = rig.batch(self.info, producer, first, *[b"x"] * KEYS, keys=keys, tags=tags)
            assert isinstance(rig.answer(1, batch), m.Confirm)
        self.fences = {}
        for session in range(2, 2 + (tagged or KEYS) // PART):
            self.pull(session, PART)
            (granted,) = self.granted(session)
            assert (granted.next_offset - granted.offset, granted.runs) == (PART, ())
            self.fences[session] = granted

    def pull(self, session: int, most: int = MOST) -> None:
        address, tags = self.info.addresses[0], self.tags
        pull = m.Pull(address, "crew", most, 1 << 20, self.wait_ms, 30_000, Mode.KEYED, tags=tags)
        self.rig.ask(session, pull)
        self.rig.settle()

    def tick(self, ms: int = 50) -> None:
        self.rig.tick(ms)
        self.rig.settle()

    def granted(self, session: int) -> list[m.Granted]:
        found = [reply for _, reply in self.rig.replies[session] if isinstance(reply, m.Granted)]
        self.rig.replies[session].clear()
        return found

    def finish(self, session: int) -> None:
        """A consumer does all that it holds."""
        granted = self.fences.pop(session)
        ranges = [(granted.fence, granted.offset, granted.next_offset)]
        reply = self.rig.answer(session, m.Ack(self.info.addresses[0], "crew", ranges))
        assert isinstance(reply, m.Acked)


def test_what_is_granted_lies_close_once_more_keys_are_free(rig: Any) -> None:
    shift = Shift(rig)
    shift.pull(WAITERS[0])
    shift.finish(2)
    assert shift.granted(WAITERS[0]) == []
    shift.finish(3)
    (granted,) = shift.granted(WAITERS[0])
    assert granted.runs == ((800, 1_000), (1_600, 1_800))


def test_keys_that_are_long_in_coming_are_not_waited_for(rig: Any) -> None:
    shift = Shift(rig)
    shift.pull(WAITERS[0])
    shift.finish(2)
    shift.tick()
    (granted,) = shift.granted(WAITERS[0])
    assert granted.runs == tuple((800 * n, 800 * n + PART) for n in range(1, 5))
    # It did not help: who asks next does not wait.
    shift.finish(3)
    shift.pull(WAITERS[1])
    (granted,) = shift.granted(WAITERS[1])
    assert granted.runs[0] == (900, 1_000)
    shift.tick(2_000)
    shift.pull(WAITERS[2])
    shift.finish(4)
    assert shift.granted(WAITERS[2]) == []
    shift.finish(5)
    assert shift.granted(WAITERS[2])[0].runs[0] == (1_000, 1_200)


def test_who_asks_for_little_does_not_wait_behind_those_who_wait(rig: Any) -> None:
    shift = Shift(rig)
    for session in WAITERS[:2]:
        shift.pull(session)
    shift.finish(2)
    shift.pull(WAITERS[2], 1)
    assert [len(shift.granted(session)) for session in WAITERS] == [0, 0, 1]


def test_messages_that_a_cluster_does_not_want_do_not_count(rig: Any) -> None:
    """Else all that it wants would lie apart, whichever keys are out."""
    shift = Shift(rig, tagged=200)
    shift.pull(WAITERS[0])
    shift.finish(2)
    assert len(shift.granted(WAITERS[0])) == 1


def test_nobody_waits_for_ever_while_one_key_after_the_other_becomes_free(rig: Any) -> None:
    """They are free one at a time, and those before are taken by who does not wait."""
    shift = Shift(rig)
    shift.pull(WAITERS[0])
    waited = 0
    for session in range(2, 10):
        granted = shift.fences[session]
        for offset in range(granted.offset, granted.offset + 2):
            ranges = [(granted.fence, offset, offset + 1)]
            rig.answer(session, m.Ack(shift.info.addresses[0], "crew", ranges))
            rig.settle()
            if shift.granted(WAITERS[0]):
                assert 300 <= waited <= 500
                return
            shift.tick(40)
            waited += 40
    raise AssertionError("nothing was granted")


@pytest.mark.parametrize(
    ("most", "wait_ms", "messages"), [(20, 20_000, 8_000), (MOST, 0, 8_000), (MOST, 20_000, 1_600)]
)
def test_who_is_slow_or_in_a_hurry_or_near_the_end_does_not_wait(
    rig: Any, most: int, wait_ms: int, messages: int
) -> None:
    shift = Shift(rig, wait_ms, messages)
    shift.finish(2)
    shift.pull(WAITERS[0], most)
    (granted,) = shift.granted(WAITERS[0])
    assert granted.offset == 800
