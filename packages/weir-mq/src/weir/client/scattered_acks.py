"""What a scattering is to ack: taken out of what its consumer acks by itself, or put back there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from weir.client.consumer.consumer import Consumer, Grant
from weir.client.consumer.cursor_lease import Turns
from weir.client.core.grants import Run
from weir.errors import BadRequest, StaleGrant
from weir.model.ids import Address
from weir.model.message import Message


@dataclass(frozen=True, slots=True)
class Aside:
    """Runs of a grant that a scattering is to ack."""

    address: Address
    cluster: str
    fence: int
    runs: list[Run]
    #: Lets them be settled by their consumer again.
    put_back: Callable[[], None]


def set_aside(consumer: Consumer, what: Grant | Message) -> Aside:
    """Take a message, or a grant of `batches()`, out of what its consumer acks by itself.

    Raises `StaleGrant` if its lease is over, and `BadRequest` if it was said to be done, or if its
    cluster has a cursor over all partitions.
    """
    holdings, there = consumer._holdings, list[Run]()
    if isinstance(holdings.acking, Turns):
        raise BadRequest(
            "a cluster that reads in total order has a cursor and no grants, so its acks are no "
            "part of a scattering: read by partition, or make the effect idempotent"
        )
    if isinstance(what, Grant):
        holding, runs = holdings.held.of(what.partition, what.fence), what.leased
    else:
        holding, runs = consumer._holder(what), ((what.offset, what.offset + 1),)
    if holding is not None and not holding.over:
        there = holdings.take_out(holding, runs)
    if holding is None or not there:
        raise StaleGrant("the lease of what is to be acked is over, or it is settled")
    assert holdings.places is not None  # it was pulled

    def put_back() -> None:
        holding.left = sorted([*holding.left, *there])
        holdings.held[holding.partition, holding.fence] = holding

    address = holdings.places[holding.partition]
    return Aside(address, holdings.options.cluster, holding.fence, there, put_back)
