"""STOMP 1.1, as ActiveMQ speaks it: SEND with receipts, SUBSCRIBE with cumulative acks."""

from __future__ import annotations

import re

from weir_lab.bench.sides.peers.dialect import Marker, OneByOne, Records, refused

_CONNECT = b"CONNECT\naccept-version:1.1\nhost:localhost\n\n\0"
_PREFETCH = 2_000


class Sending(OneByOne):
    """SEND of a persistent message; each asks for a receipt, which comes when it is on disk."""

    def __init__(self, topic: str, size: int) -> None:
        """Publish values of `size` bytes to a queue."""
        destination = f"/queue/{topic}"
        self.head = (
            f"SEND\ndestination:{destination}\npersistent:true\nreceipt:r\n"
            f"content-length:{size}\n\n"
        ).encode()
        self.tail = b"\0"
        self.ready = False
        self.confirmed = 0
        self._connected = Marker(b"CONNECTED\n")
        self._receipts = Marker(b"RECEIPT\n")
        self._errors = Marker(b"ERROR\n")

    def opening(self) -> bytes:
        """Return the CONNECT frame; ActiveMQ takes no message before it has answered."""
        return _CONNECT

    def receive(self, data: bytes) -> bytes:
        """Count receipts. Raises `PeerRefused`."""
        if self._errors.count(data):
            raise refused("activemq", data)
        self.ready = self.ready or bool(self._connected.count(data))
        self.confirmed += self._receipts.count(data)
        return b""


class Subscribing:
    """SUBSCRIBE with client acks: one acks all of its subscription before it, and is sent once a
    read. The broker does what comes by one connection in its order, so that it has done all acks
    when the receipt of an UNSUBSCRIBE behind them comes.
    """

    def __init__(self, topic: str, size: int, prefetch: int = _PREFETCH) -> None:
        """Consume values of `size` bytes from a queue; up to `prefetch` of them may wait for their
        ack.
        """
        self.ready = False
        self.settled = False
        self._prefetch = prefetch
        self._topic = topic
        self._records = Records(rb"MESSAGE\n((?:[^\n]+\n)+)\n(.{%d})\0\n?" % size)
        self._id = re.compile(rb"(?:^|\n)message-id:([^\n]+)\n")
        self._errors = Marker(b"ERROR\n")
        self._connected = Marker(b"CONNECTED\n")
        self._receipts = Marker(b"RECEIPT\n")

    def opening(self) -> bytes:
        """Return the CONNECT frame."""
        return _CONNECT

    def begin(self) -> bytes:
        """Return the SUBSCRIBE frame."""
        return (
            f"SUBSCRIBE\nid:1\ndestination:/queue/{self._topic}\nack:client\n"
            f"activemq.prefetchSize:{self._prefetch}\n\n\0"
        ).encode()

    def end(self) -> bytes:
        """Return the UNSUBSCRIBE frame, which asks for a receipt."""
        return b"UNSUBSCRIBE\nid:1\nreceipt:u\n\n\0"

    def receive(self, data: bytes) -> tuple[list[bytes], bytes]:
        """Return the values of whole messages and the ack of the last. Raises `PeerRefused`."""
        if self._errors.count(data):
            raise refused("activemq", data)
        self.ready = self.ready or bool(self._connected.count(data))
        self.settled = bool(self._receipts.count(data)) or self.settled
        answer = b""
        found = self._records.take(data)
        if found:
            last = self._id.search(found[-1][0])
            if last is None:
                raise refused("activemq", found[-1][0])
            answer = b"ACK\nsubscription:1\nmessage-id:%b\n\n\0" % last[1]
        return [value for _, value in found], answer
