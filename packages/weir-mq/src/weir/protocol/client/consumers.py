"""Requests and replies of consumers (DESIGN §5 Consume): pull, ack, nack, extend; and the turns of
those that read a topic in total order, which go to partition 0, whose group keeps the cursors.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from weir.codec import Buffer, Unsigned8
from weir.errors import DamagedRange, StaleGrant, UnknownCluster
from weir.model.ids import Address, Natural
from weir.model.limits import (
    ACK_RANGES_MAX,
    CONSUMER_TOKEN_BYTES,
    PARTITIONS_PER_TOPIC_MAX,
    TAG_BYTES_MAX,
    TAGS_PER_FETCH_MAX,
)
from weir.model.topic import Mode
from weir.order.clock import milliseconds_of
from weir.protocol.client.declaration import (
    ControlReply,
    ControlRequest,
    Declaration,
    Request,
    Resource,
    Retry,
    Right,
    Scope,
)

#: Runs [first, next) of messages.
Runs = Annotated[list[tuple[Natural, Natural]], msgspec.Meta(max_length=ACK_RANGES_MAX)]
#: A vector: offsets by partition.
Offsets = Annotated[tuple[Natural, ...], msgspec.Meta(max_length=PARTITIONS_PER_TOPIC_MAX)]


#: Tags of a cluster or of a fetch.
WantedTags = Annotated[
    tuple[Annotated[str, msgspec.Meta(max_length=TAG_BYTES_MAX)], ...],
    msgspec.Meta(max_length=TAGS_PER_FETCH_MAX),
]

#: What a consumer shows that goes from one relay to another; empty: it stays where it is.
Token = Annotated[bytes, msgspec.Meta(max_length=CONSUMER_TOKEN_BYTES)]


class ClusterIsOpen(ControlReply, frozen=True, array_like=True):
    """A majority knows that the cluster has the mode that was asked for, and these `tags`, sorted.
    A broker of an earlier release filters nothing, and says none.
    """

    tags: WantedTags = ()


class OpenCluster(ControlRequest, frozen=True, array_like=True):
    """Set the `mode` of a cluster in all partitions of its topic; send it to partition 0. A cluster
    without a mode gets this one, and begins. Answered by `ClusterIsOpen`; `BadRequest` refuses
    any mode but the cluster's. Consumers ask it before they pull.

    With `tags`, the cluster takes only messages with one of them, "" for messages without a tag;
    all others are done. They are chosen with the mode, and other tags are refused the same.
    """

    declaration = Declaration(
        23,
        Scope.FIRST_PARTITION,
        ClusterIsOpen,
        Retry.SAME,
        rights=(Right("consume", Resource.TOPIC), Right("consume", Resource.CLUSTER)),
        methods=("Client.consumer",),
    )

    address: Address
    cluster: str
    mode: Mode
    tags: WantedTags = ()


class Granted(msgspec.Struct, frozen=True):
    """A lease of messages [offset, next_offset); `fence` 0 and nothing in it when the time was up.
    To a pull of offsets only, `batches` are empty.

    With `runs`, only the messages of the runs [first, next) are granted, whatever else the batches
    hold. `deadline` is the stamp at which the lease ends; `stamp` is the time of the grant, which
    is `ahead_ms` ahead of the leader's wall clock. `attempts` counts how often these messages were
    tried, this time included.
    """

    address: Address
    fence: int
    deadline: int
    offset: int
    next_offset: int
    attempts: int = 0
    stamp: int = 0
    runs: tuple[tuple[int, int], ...] = ()
    batches: tuple[Buffer, ...] = ()
    ahead_ms: int = 0

    @property
    def granted_ms(self) -> int:
        """When it was granted by the leader's wall clock, in ms since 1970: what has expired by
        then is not to be handled any more.
        """
        return milliseconds_of(self.stamp) - self.ahead_ms


class Pull(ControlRequest, frozen=True, array_like=True):
    """Ask for a grant of messages of one partition for a consumer of `cluster`.

    With `max_messages` 0 nothing is granted: the reply says which offsets a pull would get, once
    there are some. A cluster without a mode gets this `mode` (a `Mode`) in this partition; a
    cluster with another mode refuses it. `OpenCluster` sets the mode in the whole topic.

    `begun` are runs [first, next) of messages that the client works on, even if their leases have
    ended: this pull is granted none of them, unless the client gives some back while it waits; and
    if the client loses them, that was an attempt.
    Once a lease of the client has ended that ran when the pull came, the pull is answered with
    nothing, for the client may have begun more since. None: the client does not say, as those of
    earlier releases. `tags` are the cluster's, as in `OpenCluster`: other ones are refused.

    With `offsets_only`, the grant has no batches: a relay adds them from its own log. A broker of
    an earlier release sends them all the same.

    A consumer that can go to another relay has a `token`, a secret of its own: when the session of
    a relay ends that pulled with one, what it holds is kept for 10 s, for `MoveGrants`, which also
    says that nobody comes for it.
    """

    declaration = Declaration(
        18,
        Scope.PARTITION,
        Granted,
        Retry.ANEW,
        rights=(Right("consume", Resource.TOPIC), Right("consume", Resource.CLUSTER)),
        is_large=True,
        refusals=(DamagedRange,),
        answer_body=(
            ("address", "address"),
            ("fence", "i64"),
            ("deadline", "i64"),
            ("offset", "i64"),
            ("next_offset", "i64"),
            ("attempts", "i64"),
            ("stamp", "i64"),
            ("number of runs", "u32"),
            ("ahead_ms", "u32"),
            ("runs", "runs"),
            ("batches", "batches"),
        ),
        methods=("Client.consumer",),
    )

    address: Address
    cluster: str
    max_messages: Natural
    max_bytes: Natural
    wait_ms: Natural = 0
    lease_ms: Natural = 30_000
    mode: Mode = Mode.SHARED
    begun: Runs | None = None
    tags: WantedTags = ()
    offsets_only: bool = False
    token: Token = b""


class GrantsMoved(ControlReply, frozen=True, array_like=True):
    """Grants that the peer holds now: (fence that it named, fence from now on) each. What is not in
    it was not kept.
    """

    fences: tuple[tuple[Natural, Natural], ...] = ()


class MoveGrants(ControlRequest, frozen=True, array_like=True):
    """Take over grants `fences` of one partition, which an earlier session of the same user was
    granted with the same `token`. Each has another fencing number then, and ends when it would have
    ended; no attempt is counted. All else that such sessions hold here goes to others. `begun` as
    in `Pull`. What such a session holds is moved only if it pulled by a relay.

    Each request with a token has a greater `number` than those before, also one that is sent again:
    what came late by an old connection is refused, and takes nothing back.

    Without a `token` the peer's consumer leaves: nothing is taken over, and what this session holds
    here goes to others when it ends, whatever its pulls showed.
    """

    declaration = Declaration(
        110,
        Scope.PARTITION,
        GrantsMoved,
        Retry.ANEW,
        rights=(Right("consume", Resource.TOPIC), Right("consume", Resource.CLUSTER)),
        methods=("Client.consumer",),
    )

    address: Address
    cluster: str
    token: Token
    number: Natural
    fences: Annotated[list[Natural], msgspec.Meta(max_length=ACK_RANGES_MAX)]
    begun: Runs | None = None


class Withdrawn(ControlReply, frozen=True, array_like=True):
    """No request of the peer waits there."""


class Withdraw(ControlRequest, frozen=True, array_like=True):
    """Answer the peer's pulls of one partition that wait in `cluster`, and its requests for the
    turn, with nothing. A grant that is being made still comes, so its answer may be behind this
    one's. Each connection is another peer: send it by the one that the pulls went by.
    """

    declaration = Declaration(
        22,
        Scope.PARTITION,
        Withdrawn,
        Retry.SAME,
        rights=(Right("consume", Resource.TOPIC), Right("consume", Resource.CLUSTER)),
    )

    address: Address
    cluster: str


class Acked(ControlReply, frozen=True, array_like=True):
    """The acks are durable on a majority. `done` is the cluster's cursor: all below it is done.

    To an `exact` ack, `late` has rows (fence, first, next, outcome) of the messages that were acked
    and that their grant did not do; `outcome` is an `AckOutcome`. All others are `DONE`.
    """

    done: Natural
    late: tuple[tuple[Natural, Natural, Natural, Unsigned8], ...] = ()


class Ack(ControlRequest, frozen=True, array_like=True):
    """Mark ranges [first, next) of grants as done: (fence, first, next) each.

    If `exact`, the answer is always `Acked`, and its `late` holds what these grants did not do.
    Without it, `StaleGrant` refuses ranges that are not done, as earlier releases expect.
    """

    declaration = Declaration(
        19,
        Scope.PARTITION,
        Acked,
        Retry.SAME,
        rights=(Right("consume", Resource.TOPIC), Right("consume", Resource.CLUSTER)),
        is_large=True,
        refusals=(UnknownCluster, StaleGrant),
        methods=("LeasedMessage.ack",),
    )

    address: Address
    cluster: str
    ranges: Annotated[
        list[tuple[Natural, Natural, Natural]], msgspec.Meta(max_length=ACK_RANGES_MAX)
    ]
    exact: bool = False


class Nacked(ControlReply, frozen=True, array_like=True):
    """Nobody is granted what was given back until `deadline`, a stamp; 0: it is granted at once."""

    deadline: Natural


class Nack(ControlRequest, frozen=True, array_like=True):
    """Give back ranges [first, next) of grant `fence`, to be granted again no sooner than in
    `delay_ms`. With `untried`, nobody began the messages: the grant does not count as an attempt.
    """

    declaration = Declaration(
        20,
        Scope.PARTITION,
        Nacked,
        Retry.SAME,
        rights=(Right("consume", Resource.TOPIC), Right("consume", Resource.CLUSTER)),
        refusals=(UnknownCluster, StaleGrant),
        methods=("LeasedMessage.nack",),
    )

    address: Address
    cluster: str
    fence: Natural
    ranges: Annotated[list[tuple[Natural, Natural]], msgspec.Meta(max_length=ACK_RANGES_MAX)]
    delay_ms: Natural = 0
    untried: bool = False


class Extended(ControlReply, frozen=True, array_like=True):
    """The grants last until `deadline`, a stamp, or longer if they did before."""

    deadline: Natural


class Extend(ControlRequest, frozen=True, array_like=True):
    """Extend grants: they end no sooner than in `lease_ms`; `begun` as in `Pull`."""

    declaration = Declaration(
        21,
        Scope.PARTITION,
        Extended,
        Retry.SAME,
        rights=(Right("consume", Resource.TOPIC), Right("consume", Resource.CLUSTER)),
        refusals=(UnknownCluster, StaleGrant),
        methods=("LeasedMessage.extend",),
    )

    address: Address
    cluster: str
    fences: Annotated[list[Natural], msgspec.Meta(max_length=ACK_RANGES_MAX)]
    lease_ms: Natural
    begun: Runs | None = None


class Turn(ControlReply, frozen=True, array_like=True):
    """The turn, until `deadline`, a stamp by the leader's wall clock: all below `offsets` is done.

    `attempts` counts the turns that began at this place, this one included. `fence` 0: the time
    is up, and another consumer has the turn.
    """

    fence: Natural
    deadline: Natural = 0
    offsets: Offsets = ()
    attempts: Natural = 0


class TakeTurn(ControlRequest, frozen=True, array_like=True):
    """Ask for the turn of `cluster`, and wait for it for `wait_ms` at most.

    A new cluster begins at `offsets`.
    """

    declaration = Declaration(
        28,
        Scope.FIRST_PARTITION,
        Turn,
        Retry.ANEW,
        rights=(Right("consume", Resource.TOPIC), Right("consume", Resource.CLUSTER)),
        methods=("Client.consumer",),
    )

    address: Address
    cluster: str
    offsets: Offsets
    lease_ms: Natural = 30_000
    wait_ms: Natural = 0


class Moved(ControlReply, frozen=True, array_like=True):
    """The cursor is durable on a majority, and the turn lasts until `deadline`, as in `Turn`."""

    deadline: Natural


class MoveCursor(ControlRequest, frozen=True, array_like=True):
    """Mark everything below `offsets` as done, and keep the turn for `lease_ms` more.

    With `ends` the turn is given back: others may take it in `lease_ms`. With `untried` it does not
    count as an attempt, because the consumer did not begin the message at the cursor.
    """

    declaration = Declaration(
        29,
        Scope.FIRST_PARTITION,
        Moved,
        Retry.SAME,
        rights=(Right("consume", Resource.TOPIC), Right("consume", Resource.CLUSTER)),
        refusals=(UnknownCluster, StaleGrant),
        methods=("LeasedMessage.ack",),
    )

    address: Address
    cluster: str
    fence: Natural
    offsets: Offsets
    lease_ms: Natural
    ends: bool = False
    untried: bool = False


class SeekCursor(ControlRequest, frozen=True, array_like=True):
    """Move a cluster to `offsets`; the current turn ends."""

    declaration = Declaration(
        30,
        Scope.FIRST_PARTITION,
        Moved,
        Retry.SAME,
        rights=(Right("steer", Resource.TOPIC), Right("steer", Resource.CLUSTER)),
        refusals=(UnknownCluster,),
        methods=("Client.seek_cluster",),
    )

    address: Address
    cluster: str
    offsets: Offsets


#: All requests of this page.
REQUESTS: tuple[type[Request], ...] = (
    OpenCluster,
    Pull,
    MoveGrants,
    Withdraw,
    Ack,
    Nack,
    Extend,
    TakeTurn,
    MoveCursor,
    SeekCursor,
)
