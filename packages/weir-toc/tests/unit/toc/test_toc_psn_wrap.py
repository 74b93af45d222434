"""Packet numbers that pass 2^31 and 2^32, of which packets carry 32 bits."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from rigs.one_rack import OneRack
from weir_toc import packet as wire
from weir_toc.endpoint.events import SendFailed, Service

BE, R = Service.BEST_EFFORT, Service.RELIABLE
A, B = 1, 2
COUNT = 40
#: Where flows begin: below a wrap, so that it is passed, and above, where its numbers are in use.
FIRSTS = [
    (1 << 31) - 20, (1 << 31) + 100, (1 << 32) - 20, (1 << 32) + 100, (5 << 31) - 20,
]  # fmt: skip


@dataclass
class Every:
    """Loses every nth packet of data; none if `n` is 0."""

    n: int
    met: int = 0

    def __call__(self, _process: int, data: bytearray) -> bool:
        if not self.n or data[22] not in (wire.DATA_BE, wire.DATA_R):
            return False
        self.met += 1
        return self.met % self.n == 0


def check(rack: OneRack, service: Service, texts: list[bytes], lossy: bool) -> None:
    """All texts are delivered, in their order; by best effort, or their sender was told."""
    failed = [one for one in rack.events[A] if isinstance(one, SendFailed)]
    found = rack.texts(B)
    if service is R:
        assert found == texts
        assert not failed
    else:
        missed = {texts[one.ticket - 1] for one in failed}
        assert len(missed) == len(failed)
        assert found == [text for text in texts if text not in missed]
        assert bool(failed) == lossy
    assert rack.endpoints[B].counters.damaged == rack.endpoints[B].counters.duplicates == 0
    state = rack.endpoints[A].describe()
    assert not any(state[name] for name in ("open", "best_effort", "buffered"))
    assert rack.endpoints[B].describe()["reordering"] == 0


@pytest.mark.parametrize("every", [0, 4])
@pytest.mark.parametrize("first", FIRSTS)
@pytest.mark.parametrize("service", [BE, R])
def test_messages_cross_a_wrap(service: Service, first: int, every: int) -> None:
    rack = OneRack(2, first_psn=first)
    rack.loses = Every(every)
    texts = [b"%d" % number for number in range(COUNT)]
    for text in texts:
        rack.send(A, service, (B, text))
        rack.run(0.5)
    rack.loses = Every(0)
    rack.run(200)
    check(rack, service, texts, lossy=bool(every))
    assert rack.endpoints[A].describe()["credits"] == 0


@pytest.mark.parametrize("every", [0, 7])
@pytest.mark.parametrize("first", [(1 << 31) - 20, (1 << 32) - 20])
@pytest.mark.parametrize("service", [BE, R])
def test_batches_and_fragments_cross_a_wrap(service: Service, first: int, every: int) -> None:
    rack = OneRack(2, first_psn=first)
    sender = rack.endpoints[A]
    rack.send(A, service, (B, b"a window"))
    rack.run(5)
    large = bytes(n % 251 for n in range(15 * wire.PAYLOAD_BYTES_MAX - 3))
    texts = [b"%03d" % number for number in range(10)]
    rack.loses = Every(every)
    for batch in (texts, [large], [b"a" + one for one in texts], [b"b" + one for one in texts]):
        sender.send_many(rack.now, service, [[(B, one)] for one in batch])
        rack.carry()
        rack.run(3)
    rack.loses = Every(0)
    rack.run(300)
    sent = [b"a window", *texts, large, *(b"a" + one for one in texts),
            *(b"b" + one for one in texts)]  # fmt: skip
    check(rack, service, sent, lossy=bool(every))


@pytest.mark.parametrize("first", [(1 << 31) + 100, (1 << 32) - 3, (1 << 33) + 7])
def test_an_ack_of_best_effort_tells_of_what_its_sender_can_place(first: int) -> None:
    rack = OneRack(2, first_psn=first)
    acks: list[wire.Acknowledgement] = []

    def read(_process: int, data: bytearray) -> bool:
        if data[22] == wire.ACK:
            acks.append(wire.decode_ack(wire.decode(data, rack.now).payload))
        return False

    rack.loses = read
    rack.send(A, BE, (B, b"x"))
    rack.run(5)
    (ranges,) = {one.ranges for one in acks if one.service == wire.DATA_BE and one.packets}
    ((begin, count),) = ranges
    assert count == 1 << 30
    assert wire.unwrap_psn(begin, first) + count == first + 1
