"""What clusters that keep order promise, and delayed messages (DESIGN §5 Consume)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from weir.model.topic import Mode
from weir.order.clock import milliseconds_of
from weir.testing.simulator.world import EPOCH_MS, MS
from weir_lab.sim.history import Ack, Grant, History

Place = tuple[int, str]


class KeyOrder:
    """A keyed cluster grants a message only when all before it of its key are done, or with it."""

    name = "KeyOrder"

    def check(self, history: History) -> Iterator[str]:
        """Compare each grant with the acks that were sent by then."""
        for place, grants in _of_mode(history, Mode.KEYED):
            keys = _keys(history, place[0])
            sent = _first_sent(history, place)
            start = history.starts.get(place[0], 0)
            together: dict[int, set[int]] = defaultdict(set)
            for grant in grants:
                together[grant.fence].update(range(grant.first, grant.behind))
            for grant in grants:
                for offset in range(grant.first, grant.behind):
                    for earlier in keys.get(offset, ()):
                        done = sent.get(earlier, grant.arrived + 1) <= grant.arrived
                        if earlier >= start and not done and earlier not in together[grant.fence]:
                            yield f"{place}: {offset} under {grant.fence}, {earlier} is not done"


class OrderedOnce:
    """An ordered cluster works in order: when a consumer gets or acks a message, all before it are
    done, or held by the same consumer. The client as it ships hands out nothing behind what it has
    given back.
    """

    name = "OrderedOnce"

    def check(self, history: History) -> Iterator[str]:
        """Compare each grant, and each ack that is confirmed, with the acks sent by then."""
        for place, grants in _of_mode(history, Mode.ORDERED):
            sent = _first_sent(history, place)
            start = history.starts.get(place[0], 0)
            holders: dict[int, Grant] = {}
            back = _given_back(history, place)
            for grant in sorted(grants, key=lambda one: one.fence):
                later = grant.arrived + 1
                for earlier in range(start, grant.first):
                    if history.is_void(place[0], earlier, earlier + 1):
                        continue
                    if sent.get(earlier, later) <= grant.arrived:
                        continue
                    before = holders.get(earlier)
                    if before is None or before.holder != grant.holder:
                        yield f"{place}: {grant.first} under {grant.fence}, {earlier} is not done"
                    elif grant.tells and back.get((before.fence, earlier), later) < grant.arrived:
                        yield f"{place}: {grant.first} under {grant.fence}, {earlier} went back"
                holders.update(dict.fromkeys(range(grant.first, grant.behind), grant))
            for ack in _acks(history, place):
                late = [
                    o
                    for o in range(start, ack.first)
                    if sent.get(o, ack.confirmed + 1) > ack.confirmed
                    and not history.is_void(place[0], o, o + 1)
                ]
                if ack.confirmed >= 0 and late:
                    yield f"{place}: {ack.first} was done under {ack.fence}, before {late}"


class NotBeforeDue:
    """No message is granted before its time, by the grant's stamp or, where clocks are right, by
    when it came.
    """

    name = "NotBeforeDue"

    def check(self, history: History) -> Iterator[str]:
        """Compare grants with when their messages are due."""
        if not history.dues:
            return
        dues: dict[tuple[int, int], int] = {}
        for seen in history.seen:
            for offset, value in enumerate(seen.values, seen.offset):
                if value in history.dues:
                    dues[seen.partition, offset] = history.dues[value]
        for grant in history.grants:
            granted_ms = milliseconds_of(grant.stamp)
            if not history.skewed:
                granted_ms = min(granted_ms, EPOCH_MS + grant.arrived // MS)
            for offset in range(grant.first, grant.behind) if grant.stamp else ():
                early = dues.get((grant.partition, offset), 0) - granted_ms
                if early > 0:
                    yield f"{offset} of {grant.partition} was granted {early} ms before it was due"


def _of_mode(history: History, mode: Mode) -> Iterator[tuple[Place, list[Grant]]]:
    for place in sorted(history.modes):
        if history.modes[place] is mode:
            yield place, [g for g in history.grants if (g.partition, g.cluster) == place]


def _acks(history: History, place: Place) -> list[Ack]:
    return [ack for ack in history.acks if (ack.partition, ack.cluster) == place]


def _given_back(history: History, place: Place) -> dict[tuple[int, int], int]:
    """Return by fencing number and offset when it was known that a message had gone back."""
    return {
        (one.fence, offset): one.confirmed
        for one in history.returns
        if (one.partition, one.cluster) == place and one.confirmed >= 0
        for offset in one.span
    }


def _first_sent(history: History, place: Place) -> dict[int, int]:
    """Return by offset when it was acked first."""
    sent: dict[int, int] = {}
    for ack in _acks(history, place):
        for offset in range(ack.first, ack.behind):
            sent[offset] = min(ack.sent, sent.get(offset, ack.sent))
    return sent


def _keys(history: History, partition: int) -> dict[int, list[int]]:
    """Return by offset the earlier ones of its key."""
    values: dict[int, bytes] = {}
    for seen in history.seen:
        if seen.partition == partition:
            values.update(enumerate(seen.values, seen.offset))
    rows: dict[bytes, list[int]] = defaultdict(list)
    earlier: dict[int, list[int]] = {}
    for offset in sorted(values):
        key = history.keys.get(values[offset])
        if key is not None:
            earlier[offset] = list(rows[key])
            rows[key].append(offset)
    return earlier
