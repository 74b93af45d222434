"""Prepared requests for the program `lockstep.c`, which says how they are laid out. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from weir.codec import U32
from weir.model.batch_builder import encode
from weir.model.ids import Address
from weir.protocol.client import messages as m
from weir.protocol.client.codec import encode_request
from weir_lab.bench.harness.lockstep import DIALECTS
from weir_lab.bench.harness.payload import Block
from weir_lab.bench.sides.peers.dialect import Publishing

_MAGIC = b"WLS1"
#: What peers answer at once: it stands behind what opens a connection, to tell that it is open.
_PINGS = {"redis": b"*1\r\n$4\r\nPING\r\n", "nats": b"PING\r\n"}
#: Values that are made at once.
_ROWS = 256


class Line(NamedTuple):
    """One connection: what opens it, how many requests there are, and those."""

    opening: bytes
    amount: int
    requests: Iterable[bytes]


def pieces(dialect: str, lines: list[Line]) -> Iterator[bytes]:
    """Yield a script, piece by piece."""
    yield _MAGIC + U32.pack(DIALECTS.index(dialect)) + U32.pack(len(lines))
    for line in lines:
        yield U32.pack(len(line.opening)) + line.opening + U32.pack(line.amount)
        for request in line.requests:
            yield U32.pack(len(request)) + request


def own_line(
    address: Address, grant: m.ProducerGrant, producer: int, count: int, size: int
) -> Line:
    """Return the connection of producer number `producer`, which publishes by a grant of its own:
    each message is a batch.
    """

    def requests() -> Iterator[bytes]:
        for sequence, value in enumerate(_values(producer, count, size)):
            batch = encode(
                [value], group=address.group, producer=grant.producer, epoch=grant.epoch,
                sequence=sequence,
            )  # fmt: skip
            yield b"".join(encode_request(m.Produce(address, 0, memoryview(batch)), sequence + 1))

    return Line(b"".join(encode_request(m.Hello("weir-bench"), 1)), count, requests())


def peer_line(peer: str, dialect: Publishing, producer: int, count: int, size: int) -> Line:
    """Return the connection of a producer to a peer."""
    requests = (dialect.head + value + dialect.tail for value in _values(producer, count, size))
    return Line(dialect.opening() + _PINGS[peer], count, requests)


def _values(producer: int, count: int, size: int) -> Iterator[bytes]:
    block = Block(size, _ROWS)
    for first in range(0, count, _ROWS):
        yield from block.values_of(producer, first, min(_ROWS, count - first))
