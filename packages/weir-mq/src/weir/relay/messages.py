"""What relays say to each other: pulls, answers, questions about filters (docs/RELAYS.md).

A message is, little-endian: kind u8, version u8 = 1, u16 0, u32 bytes of the head, u32 CRC-32C of
bytes 0 to 8 and of the head, u32 bytes of the data; the head in MessagePack, padded with zeros to a
multiple of 8; then data: chunks, then the batches of the rows, in order.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from weir.codec import Buffer, Unsigned32, crc32c, padded, padding, total
from weir.errors import BadRequest, RemoteProtocolError
from weir.model.ids import LIMIT_MAX, NODE_MAX, PARTITIONS_MAX, Natural, group_of
from weir.model.limits import (
    BATCH_BYTES_MAX,
    CHUNKS_PER_FETCH_MAX,
    MIB,
    RELAY_BYTES_MAX,
    RELAY_CREDIT_BYTES_MAX,
    RELAY_MARKS_MAX,
    WAIT_MS_MAX,
)
from weir.relay.entries import Forks, rise
from weir.relay.rows import (
    PackedTags,
    RosterEntries,
    Rows,
    are_sound,
    wrong_roster,
    wrong_rows,
)

_PREFIX = struct.Struct("<BBHIII")
_SUMMED = 8
_VERSION = 1
_HEAD_BYTES_MAX = 8 * MIB
#: Stands for an offset that is not known: of a pull, where the log is to begin; of a filter, that
#: it is not covered.
UNKNOWN = -1

Topic = Annotated[int, Meta(ge=1, le=LIMIT_MAX >> 16)]
Partition = Annotated[int, Meta(ge=0, lt=PARTITIONS_MAX)]
Node = Annotated[int, Meta(ge=1, le=NODE_MAX)]
Known = Annotated[int, Meta(ge=UNKNOWN, le=LIMIT_MAX)]
Credit = Annotated[int, Meta(ge=1, le=RELAY_CREDIT_BYTES_MAX)]
Milliseconds = Annotated[int, Meta(ge=0, le=WAIT_MS_MAX)]


class Mark(NamedTuple):
    """All messages of the partition stamped at or below `stamp` lie below offset `through`; it was
    said when the roster of the topic had `partitions`.
    """

    partitions: Annotated[int, Meta(ge=1, le=PARTITIONS_MAX)]
    stamp: Natural
    through: Natural


Marks = Annotated[tuple[Mark, ...], Meta(max_length=RELAY_MARKS_MAX)]


class Chunk(NamedTuple):
    """A chunk of the large value at the offset asked for: its Raft index in the core, its bytes."""

    core_index: Natural
    size: Annotated[int, Meta(ge=1, le=BATCH_BYTES_MAX)]


class RelayMessage(msgspec.Struct, frozen=True, array_like=True):
    """What relays say to each other."""


class Pull(RelayMessage, msgspec.Struct, frozen=True, array_like=True):
    """Asks for what comes from `offset` on; `UNKNOWN` asks where a log that is empty is to begin.

    `number` is that of the pull: an answer to another one is out of date. At most `credit` bytes of
    batches are to come, except for one batch that is larger. Offsets from `until` on are not asked
    for. The child needs nothing below `durable_through` again. It knows `roster` entries of the
    roster, and the chunks of the value at `offset` up to the core's index `last_chunk`. A mark at
    or above stamp `awaited` is waited for.
    """

    system: Natural
    brokerset: Unsigned32
    node: Node
    topic: Topic
    partition: Partition
    number: Natural
    lineage: Natural
    offset: Known
    filter: Natural
    tags: PackedTags
    credit: Credit
    durable_through: Natural
    until: Natural = LIMIT_MAX
    roster: Natural = 0
    last_chunk: Natural = 0
    awaited: Natural = LIMIT_MAX

    @property
    def group(self) -> int:
        """The number of the partition's group."""
        return group_of(self.topic, self.partition)


class Answer(RelayMessage, frozen=True, array_like=True):
    """Offsets [first, next) of a lineage, filtered as a pull asked; or, with first = next, chunks
    of the large value that comes next, or only that there is nothing more by now.

    Retention has reached `log_start`; `head` is the end of the upper's log. The upper's last news
    of the core are `age_ms` old. Unless `knows_log_start`, nobody has told the upper since it
    started where the log of the core begins: retention may have passed more.
    """

    group: Natural
    number: Natural
    lineage: Natural
    first: Natural
    next: Natural
    rows: Rows
    log_start: Natural
    head: Natural
    roster: RosterEntries = ()
    marks: Marks = ()
    chunks: Annotated[tuple[Chunk, ...], Meta(max_length=CHUNKS_PER_FETCH_MAX)] = ()
    age_ms: Natural = 0
    knows_log_start: bool = True


class Refusal(RelayMessage, frozen=True, array_like=True):
    """Why a pull is not answered; `group` and `number` are those of the pull."""

    group: Natural
    number: Natural


class FilterNotCovered(Refusal, frozen=True, array_like=True):
    """What was asked for was kept under a filter that excludes some of it. From `offset` on all is
    here; `UNKNOWN` if it is not yet known from where on.
    """

    offset: Known


class OffsetOutOfRange(Refusal, frozen=True, array_like=True):
    """What was asked for is not here; the next offset that is here is `start`. Retention has passed
    what lies below `log_start`, as far as is known here: the rest is lost.
    """

    start: Natural
    log_start: Natural = 0


class LineageEnded(Refusal, frozen=True, array_like=True):
    """The lineage asked for ended where another one began: its first offset is `fork`. `lineage` is
    the one that goes on, `forks` are all changes.
    """

    lineage: Natural
    fork: Natural
    forks: Forks


class TopicGone(Refusal, frozen=True, array_like=True):
    """The topic was deleted."""


class Overloaded(Refusal, frozen=True, array_like=True):
    """There is no room for this pull; try again after so many milliseconds, or elsewhere."""

    retry_after_ms: Milliseconds


class Behind(Refusal, frozen=True, array_like=True):
    """What was asked for has not come here: the log ends at `end`, or is of an older lineage."""

    end: Natural


class AskFilter(RelayMessage, frozen=True, array_like=True):
    """Asks from which offset on all messages with these tags are kept."""

    system: Natural
    brokerset: Unsigned32
    node: Node
    topic: Topic
    partition: Partition
    number: Natural
    tags: PackedTags

    @property
    def group(self) -> int:
        """The number of the partition's group."""
        return group_of(self.topic, self.partition)


class FilterFrom(RelayMessage, frozen=True, array_like=True):
    """All messages with the tags asked for are kept from `offset` on; `UNKNOWN`: not yet."""

    group: Natural
    number: Natural
    offset: Known


class SayHold(RelayMessage, frozen=True, array_like=True):
    """Tells an upper node that is not pulled from by now that the child needs nothing below
    `durable_through` again: else what it needed once would be kept for long.
    """

    system: Natural
    brokerset: Unsigned32
    node: Node
    topic: Topic
    partition: Partition
    lineage: Natural
    durable_through: Natural

    @property
    def group(self) -> int:
        """The number of the partition's group."""
        return group_of(self.topic, self.partition)


AnyRefusal = FilterNotCovered | OffsetOutOfRange | LineageEnded | TopicGone | Overloaded | Behind
AnyMessage = Pull | Answer | AnyRefusal | AskFilter | FilterFrom | SayHold
_KINDS: dict[type[RelayMessage], int] = {
    Pull: 1, Answer: 2, FilterNotCovered: 3, OffsetOutOfRange: 4, LineageEnded: 5, TopicGone: 6,
    Overloaded: 7, Behind: 8, AskFilter: 9, FilterFrom: 10, SayHold: 11,
}  # fmt: skip
_DECODERS = {kind: msgspec.msgpack.Decoder(message) for message, kind in _KINDS.items()}
_encode = msgspec.msgpack.Encoder().encode


def encode_message(message: AnyMessage, data: Sequence[Buffer] = ()) -> tuple[Buffer, ...]:
    """Return the buffers of a message; those of its data are among them, uncopied."""
    # The last field of an answer is left out where it says nothing.
    is_short = isinstance(message, Answer) and message.knows_log_start
    head = _encode(msgspec.structs.astuple(message)[:-1] if is_short else message)
    kind, size = _KINDS[type(message)], total(data)
    start = _PREFIX.pack(kind, _VERSION, 0, len(head), 0, size)[:_SUMMED]
    crc = crc32c(head, crc32c(start))
    prefix = _PREFIX.pack(kind, _VERSION, 0, len(head), crc, size)
    return (prefix + head + padding(len(head)), *data)


def decode_message(payload: Buffer) -> tuple[AnyMessage, memoryview]:
    """Read a message: its head, and a view of its data, whose batches are not checked yet.

    Raises `RemoteProtocolError` for one that nobody may send: the connection is to end.
    """
    view = memoryview(payload)
    if len(view) < _PREFIX.size:
        raise RemoteProtocolError(f"{len(view)} bytes are no message of a relay")
    kind, version, _, head_size, crc, size = _PREFIX.unpack_from(view)
    behind = _PREFIX.size + padded(head_size)
    if head_size > _HEAD_BYTES_MAX or size > RELAY_BYTES_MAX or behind + size != len(view):
        raise RemoteProtocolError(
            f"a relay's message of {len(view):,} bytes says {head_size:,} and {size:,}"
        )
    head = view[_PREFIX.size : _PREFIX.size + head_size]
    if crc32c(head, crc32c(view[:_SUMMED])) != crc:
        raise RemoteProtocolError("a relay's message fails its CRC-32C")
    decoder = _DECODERS.get(kind)
    if decoder is None or version != _VERSION:
        raise RemoteProtocolError(f"no message of a relay has kind {kind}, version {version}")
    try:
        message: AnyMessage = decoder.decode(head)  # type: ignore[assignment]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RemoteProtocolError(f"a relay's message makes no sense: {error}") from None
    if wrong := _wrong(message, size):
        raise RemoteProtocolError(f"a relay's message makes no sense: {wrong}")
    return message, view[behind:]


def decode_question(payload: Buffer, group: int) -> Pull | AskFilter | SayHold:
    """Read what a relay asks of a group. Raises `BadRequest` for what no relay may ask, or what is
    about another group.
    """
    try:
        message, data = decode_message(payload)
    except RemoteProtocolError as error:
        raise BadRequest(str(error)) from None
    if not isinstance(message, Pull | AskFilter | SayHold) or len(data):
        kind = type(message).__name__
        raise BadRequest(f"a relay does not send {kind}: upper nodes send it to relays")
    if message.group != group:
        raise BadRequest(f"a message about group {message.group} was sent to group {group}")
    return message


def _wrong(message: AnyMessage, size: int) -> str:
    """Return what is wrong with a message beside `size` bytes of data; "" if all is well."""
    if isinstance(message, Answer):
        return _wrong_answer(message, size)
    if size:
        return f"{size:,} bytes of data where none belong"
    if isinstance(message, Pull | AskFilter) and not are_sound(message.tags):
        return "tags that are not sorted, or too long"
    if isinstance(message, LineageEnded) and not rise(message.forks, message.lineage):
        return "lineages that do not rise"
    return ""


def _wrong_answer(answer: Answer, size: int) -> str:
    chunks = sum(chunk.size for chunk in answer.chunks)
    if answer.chunks:
        indexes = [chunk.core_index for chunk in answer.chunks]
        if answer.rows or indexes != sorted(set(indexes)):
            return "chunks that do not rise, or come with messages"
    if any(mark.through > answer.next for mark in answer.marks):
        return "a mark before its messages"
    if not answer.log_start <= answer.head:
        return f"a log of [{answer.log_start}, {answer.head})"
    return wrong_rows(answer.first, answer.next, answer.rows, size - chunks) or wrong_roster(
        answer.first, answer.next, answer.roster
    )
