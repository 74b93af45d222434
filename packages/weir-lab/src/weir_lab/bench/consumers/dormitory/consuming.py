"""A consumer of ActiveMQ: `python -m weir_lab.bench.consumers.dormitory.consuming`, led over its
pipes.
"""

from __future__ import annotations

import asyncio
import re
from typing import cast

from weir_lab.bench.consumers.dormitory.ledger import AT_ONCE, TOPIC, Ledger
from weir_lab.bench.consumers.dormitory.serving import BackEnd, Keeping, Kept
from weir_lab.bench.harness.led import Orders, Ready, be_led, report
from weir_lab.bench.sides.devices import VALUE_BYTES
from weir_lab.bench.sides.peers.dialect import Marker, Records, refused

_CONNECT = b"CONNECT\naccept-version:1.1\nhost:localhost\n\n\0"
#: Each message is acked by itself, so none has to wait for another one's insert.
_SUBSCRIBE = (
    f"SUBSCRIBE\nid:1\ndestination:/queue/{TOPIC}\nack:client-individual\nreceipt:s\n"
    f"activemq.prefetchSize:{4 * AT_ONCE}\n\n\0"
).encode()
_MESSAGE_ID = re.compile(rb"(?:^|\n)message-id:([^\n]+)\n")


class Subscriber(asyncio.Protocol):
    """A subscription to the queue."""

    def __init__(self, keeping: Keeping) -> None:
        """Connect."""
        self.subscribed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        #: Set to what ended it.
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._keeping = keeping
        self._transport: asyncio.Transport | None = None
        self._connected = Marker(b"CONNECTED\n")
        self._receipts = Marker(b"RECEIPT\n")
        self._errors = Marker(b"ERROR\n")
        self._records = Records(rb"MESSAGE\n((?:[^\n]+\n)+)\n(.{%d})\0\n?" % VALUE_BYTES)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say hello."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by descent
        self._transport.write(_CONNECT)

    def connection_lost(self, error: Exception | None) -> None:
        """Wake the waiter."""
        if not self.ended.done():
            self.ended.set_exception(error or ConnectionError("activemq closed the connection"))

    def data_received(self, data: bytes) -> None:
        """Keep the records of whole messages; each is acked when it is kept."""
        transport = self._transport
        assert transport is not None
        if self._errors.count(data):
            # Its connection goes on, and so do others' messages.
            self._keeping.failed(str(refused("activemq", data)))
        if not self.subscribed.done():
            if self._connected.count(data):
                transport.write(_SUBSCRIBE)
            if self._receipts.count(data):
                self.subscribed.set_result(None)
        for head, value in self._records.take(data):
            known = _MESSAGE_ID.search(head)
            assert known is not None  # every MESSAGE has one
            ack = b"ACK\nsubscription:1\nmessage-id:%b\n\n\0" % known[1]
            self._keeping.begin(value, transport, ack)


async def consume(plan: BackEnd, orders: Orders) -> Kept:
    """Consume until told to stop."""
    ledger = Ledger()
    await ledger.open()
    keeping = Keeping(ledger)
    subscriber = Subscriber(keeping)
    await asyncio.get_running_loop().create_connection(lambda: subscriber, "127.0.0.1", plan.port)
    told = asyncio.ensure_future(orders.get())
    await asyncio.wait((subscriber.subscribed, subscriber.ended), return_when="FIRST_COMPLETED")
    report(Ready())
    await asyncio.wait((told, subscriber.ended), return_when="FIRST_COMPLETED")
    if subscriber.ended.done():
        subscriber.ended.result()
    return keeping.result()


if __name__ == "__main__":
    be_led(BackEnd, consume)
