"""The request by which a relay pulls from the core; what it carries is of `weir.relay.messages`."""

from __future__ import annotations

import msgspec

from weir.codec import Buffer
from weir.errors import WrongSystem
from weir.model.ids import Address
from weir.protocol.client.declaration import (
    ControlRequest,
    Declaration,
    Request,
    Resource,
    Retry,
    Right,
    Scope,
)


class RelayTold(msgspec.Struct, frozen=True):
    """What a relay is told: a message of `docs/RELAYS.md`, an answer or the refusal of a pull; no
    bytes where nothing is to be said.
    """

    address: Address
    message: tuple[Buffer, ...] = ()


class AskRelay(ControlRequest, frozen=True, array_like=True):
    """A relay asks the leader of a partition: `message` is a pull, a question about a filter, or
    what a relay holds, as docs/RELAYS.md has them, of the same system and partition.

    A pull is answered once there is something to tell, or with nothing after a second. Of the pulls
    of one node the last one counts: an earlier one that still waits is refused. Only what is
    committed and decided is told. Where a topology is applied, the node must be in one of its
    tandem or access sets, and may ask for the tags that the topology gives to that set. Then the
    right to pull as that set is needed, and none to the topic: it gives these tags and no others.
    A topic of namespace `_weir` must be named there, and needs the right to read it as well.
    """

    declaration = Declaration(
        102,
        Scope.PARTITION,
        RelayTold,
        Retry.READ,
        rights=(Right("read", Resource.TOPIC), Right("pull", Resource.SET)),
        is_large=True,
        refusals=(WrongSystem,),
        answer_body=(("address", "address"), ("message", "batches")),
    )

    address: Address
    message: bytes


#: All requests of this page.
REQUESTS: tuple[type[Request], ...] = (AskRelay,)
