"""Values of chunks in Spark: loaded up to a limit; above it an error, or null if chosen."""

from __future__ import annotations

from dataclasses import dataclass

from weir.client.core.delivered_batches import Assembly, LargeDelivered
from weir.model.ids import Address
from weir.model.limits import MIB, VALUE_BYTES_LOADED_MAX
from weir.protocol.client import messages as m
from weir.spark.blocking_client import BlockingClient
from weir.spark.errors import ValueTooLarge

#: Of one reply; a single chunk may be larger.
_FETCH_BYTES = 4 * MIB


@dataclass(frozen=True, slots=True)
class LargeValues:
    """What a query does with values that lie in chunks: load up to so many bytes, else null."""

    bytes_max: int = VALUE_BYTES_LOADED_MAX
    null: bool = False

    def loads(self, part: LargeDelivered) -> bool:
        """Whether a value is to be loaded. Raises `ValueTooLarge`, or returns False for null."""
        size = part.references.size
        if size <= self.bytes_max:
            return True
        if self.null:
            return False
        raise ValueTooLarge(
            f"the value of {part.topic}/{part.partition} offset {part.offset} has {size:,} bytes, "
            f"over maxValueBytes={self.bytes_max:,}: raise that option, or set "
            "largeValues='null' to get null for it"
        )


LARGE_VALUES = LargeValues()


def load(client: BlockingClient, address: Address, part: LargeDelivered) -> bytes:
    """Return a value, fetched and checked chunk by chunk. Raises what the client does."""
    assembly = Assembly(part.references, address.group)
    whole = bytearray()
    while (wanted := assembly.wanted()) is not None:
        reply = client.request(m.FetchChunks(address, *wanted, _FETCH_BYTES))
        assert isinstance(reply, m.FetchedChunks)  # decoded by the opcode of the request
        pieces = assembly.opened(reply.batches)
        assembly.took(pieces)
        for piece in pieces:
            whole += piece
    return bytes(whole)
