"""The client dialect, both sides (DESIGN §4 Client frame)."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from weir.codec import Buffer, total
from weir.errors import BadRequest, RemoteProtocolError, TooLarge, UnknownOpcode
from weir.model.ids import ADDRESS, Address
from weir.model.limits import CLIENT_FRAME_BYTES_MAX, CONTROL_FRAME_BYTES_MAX, GRANT_RUNS_MAX
from weir.protocol.client import admin as a
from weir.protocol.client import messages as m
from weir.protocol.client import nodes as n
from weir.protocol.client import order
from weir.protocol.client.access import Login, LoginStep
from weir.protocol.client.declaration import opcode_of
from weir.protocol.client.quotas import Throttled
from weir.protocol.frame import (
    CLIENT_HEADER,
    CLIENT_VERSION,
    ClientFrame,
    Flags,
    Reassembler,
    check_no_http,
    take_client_frame,
)

#: How msgspec points into an array: "Expected `int` >= 0 - at `$[1]`".
_PLACE = re.compile(r"(?P<what>.*) - at `\$\[(?P<field>\d+)\](?P<rest>.*)`", re.DOTALL)
#: The address, the highest stamp seen, the level.
_PRODUCED = struct.Struct("<HHIQqB7x")
#: All of a publish before its batch, frame header included: what comes oftenest is packed at once.
_PRODUCE_HEAD = struct.Struct("<BBHIQHHIQqB7x")
#: Behind the address: offset, next offset, committed, barrier, partitions, number of voids, whether
#: it is cut in a stamp, whether it is filtered (releases before wrote zeros there); then first and
#: next of each void. If it is filtered, the number of skipped runs, then first and next of each.
_FETCHED = struct.Struct("<qqqqqIBBH")
_COUNT = struct.Struct("<Q")
#: Behind the address: Raft index of the first chunk.
_CHUNKS = struct.Struct("<q")
#: Behind the address: fence, deadline, offset, next offset, attempts, stamp, number of runs, by
#: how many ms the stamp is ahead of the leader's clock; then first and next of each run.
_GRANTED = struct.Struct("<qqqqqqII")
_RUN = struct.Struct("<qq")
_U32_MAX = 0xFFFFFFFF

_LEVELS = frozenset(m.Level)
#: Plain numbers: flag arithmetic costs more than all else in a small frame.
_RESPONSE, _ERROR = int(Flags.RESPONSE), int(Flags.ERROR)
#: Opcodes at hand: looking one up in its class takes as long as decoding a confirm.
_OP_PRODUCE, _OP_FETCH = opcode_of(m.Produce), opcode_of(m.Fetch)
_OP_PULL, _OP_FETCH_CHUNKS = opcode_of(m.Pull), opcode_of(m.FetchChunks)
_OP_ASK_RELAY = opcode_of(m.AskRelay)
_REPLY_FLAGS = (_RESPONSE, _RESPONSE | _ERROR)

_pack = msgspec.msgpack.Encoder().encode

#: By opcode.
_REQUESTS: dict[int, type[m.Request]] = {opcode_of(kind): kind for kind in m.REQUESTS}
_REPLIES: dict[int, type[m.ControlReply]] = {
    opcode_of(kind): answer
    for kind in m.REQUESTS
    if (answer := kind.declaration.answer) is not None and issubclass(answer, m.ControlReply)
}


class _Decoders(dict[int, msgspec.msgpack.Decoder[Any]]):
    """Decoders by opcode, each made when it is first asked for: a process needs few of them, and to
    make all takes as long as to load ten modules. Raises `KeyError` for an unknown opcode.
    """

    def __init__(self, kinds: Mapping[int, type[Any]]) -> None:
        self._kinds = kinds

    def __missing__(self, opcode: int) -> msgspec.msgpack.Decoder[Any]:
        made = self[opcode] = msgspec.msgpack.Decoder(self._kinds[opcode])
        return made


_REQUEST_DECODERS = _Decoders(_REQUESTS)
_REPLY_DECODERS = _Decoders(_REPLIES)
_REFUSAL = msgspec.msgpack.Decoder(m.Refusal)
_THROTTLED = msgspec.msgpack.Decoder(Throttled)
#: Frames that may be as long as batches are: those of large requests, and of what a later release
#: knows.
_SHORT = frozenset(op for op, kind in _REQUESTS.items() if not kind.declaration.is_large)


#: What a body that is not what it should be makes the decoder raise; the last is deep nesting.
_MALFORMED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def body_bytes_max(opcode: int) -> int:
    """Return how long the body of a frame may be, of a request as of its reply."""
    return CONTROL_FRAME_BYTES_MAX if opcode in _SHORT or not opcode else CLIENT_FRAME_BYTES_MAX


def client_frame_size(view: memoryview, at: int) -> int:
    """Return the size of the client frame that begins at `at`, header included."""
    version, _, opcode, length, _ = CLIENT_HEADER.unpack_from(view, at)
    if version != CLIENT_VERSION:
        check_no_http(view, at)
        raise RemoteProtocolError(f"a client frame begins with version 2, not {version}")
    limit = body_bytes_max(opcode)
    if length > limit:
        raise RemoteProtocolError(f"a frame of {length:,} bytes; opcode {opcode} allows {limit:,}")
    return int(CLIENT_HEADER.size + length)


def _framed(flags: int, opcode: int, correlation: int, *body: Buffer) -> tuple[Buffer, ...]:
    size, limit = total(body), body_bytes_max(opcode)
    if size > limit:
        raise _too_large(size, limit)
    header = CLIENT_HEADER.pack(CLIENT_VERSION, flags, opcode, size, correlation)
    return (header, *body) if len(body) > 1 else (header + body[0],)


def _too_large(size: int, limit: int) -> TooLarge:
    return TooLarge(f"a frame of {size:,} bytes; {limit:,} allowed: ask for less", limit)


def encode_request(request: m.Request, correlation: int) -> tuple[Buffer, ...]:
    """Return the buffers of a request's frame; a batch is among them as it is, uncopied.

    Raises `TooLarge` for one that the other side would have to close the connection for.
    """
    if isinstance(request, m.Produce):
        shard, log, group, node = request.address
        batch = request.batch
        size = _PRODUCED.size + len(batch)
        if size > CLIENT_FRAME_BYTES_MAX:
            raise _too_large(size, CLIENT_FRAME_BYTES_MAX)
        head = _PRODUCE_HEAD.pack(
            CLIENT_VERSION, 0, _OP_PRODUCE, size, correlation,
            shard, log, node, group, request.seen, request.level,
        )  # fmt: skip
        return head, batch
    opcode = request.declaration.opcode
    if isinstance(request, n.ReportSettled) and not request.learning:
        return _framed(0, opcode, correlation, _pack((request.rows,)))  # as most are
    if unsaid := _unsaid(request):
        fields = msgspec.structs.astuple(request)[:-unsaid]
        return _framed(0, opcode, correlation, _pack(fields))
    return _framed(0, opcode, correlation, _pack(request))


def _unsaid(request: m.Request) -> int:
    """Return how many fields at the end say nothing and are left out, as earlier releases, which do
    not know them, write it.
    """
    match request:
        case m.Pull(token=b""):
            return 1 if request.offsets_only else 2 if request.tags else 3
        case m.Fetch(lineage=-1):
            return 1 if request.tags else 2
        case m.Hello(notices=said) | n.ChangeNode(join_key=said) | Login(ticket=said):
            return not said
        case m.OpenCluster(tags=said) | m.OpenProducer(window=said):
            return not said
        case order.Prepare(sink=sink):
            return sink == order.NO_SINK
    return type(request) is m.CreateTopic and not request.key_by


def decode_request(frame: ClientFrame) -> m.Request:
    """Read a request. Raises `UnknownOpcode` or `BadRequest`; the connection can go on."""
    if frame.flags:
        raise BadRequest(f"opcode {frame.opcode}: a request has no flags, not {frame.flags:#x}")
    if frame.opcode == _OP_PRODUCE:
        body = frame.body
        if len(body) < _PRODUCED.size:
            raise BadRequest(f"{len(body)} bytes are too few for this request")
        shard, log, node, group, seen, level = _PRODUCED.unpack_from(body)
        if level not in _LEVELS:
            raise BadRequest(f"level {level} is not known here")
        address = tuple.__new__(Address, (shard, log, group, node))  # in C: there are many
        return m.Produce(address, seen, body[_PRODUCED.size :], level)
    if frame.opcode not in _REQUESTS:
        raise UnknownOpcode(f"opcode {frame.opcode} is not known here", frame.opcode)
    try:
        request: m.Request = _REQUEST_DECODERS[frame.opcode].decode(frame.body)
    except _MALFORMED as error:
        raise BadRequest(_complaint(_REQUESTS[frame.opcode], error)) from None
    return request


def encode_reply(reply: m.Reply, opcode: int, correlation: int) -> tuple[Buffer, ...]:
    """Return the buffers of a reply's frame; batches are among them as they are, uncopied.

    One that is too long for its frame becomes a `Refusal`: the client must not lose its connection
    for having asked.
    """
    if isinstance(reply, m.Confirm):
        body = _pack(reply)
        size = len(body)
        return (CLIENT_HEADER.pack(CLIENT_VERSION, _RESPONSE, opcode, size, correlation) + body,)
    try:
        return _encode_reply(reply, opcode, correlation)
    except TooLarge as error:
        refusal = m.Refusal(error.code, str(error), error.detail)
        return _encode_reply(refusal, opcode, correlation)


def _encode_reply(reply: m.Reply, opcode: int, correlation: int) -> tuple[Buffer, ...]:
    if isinstance(reply, m.Fetched):
        shard, log, group, node = reply.address
        prefix = ADDRESS.pack(shard, log, node, group) + _FETCHED.pack(
            reply.offset, reply.next_offset, reply.committed, reply.barrier, reply.partitions,
            len(reply.voids), reply.is_cut, reply.is_filtered, reply.lineage + 1,
        )  # fmt: skip
        prefix += b"".join(_RUN.pack(*run) for run in reply.voids)
        if reply.is_filtered:
            prefix += _COUNT.pack(len(reply.skipped))
            prefix += b"".join(_RUN.pack(*run) for run in reply.skipped)
        return _framed(_RESPONSE, opcode, correlation, prefix, *reply.batches)
    if isinstance(reply, m.Granted):
        shard, log, group, node = reply.address
        prefix = ADDRESS.pack(shard, log, node, group) + _GRANTED.pack(
            reply.fence, reply.deadline, reply.offset, reply.next_offset, reply.attempts,
            reply.stamp, len(reply.runs), min(reply.ahead_ms, _U32_MAX),
        )  # fmt: skip
        prefix += b"".join(_RUN.pack(*run) for run in reply.runs)
        return _framed(_RESPONSE, opcode, correlation, prefix, *reply.batches)
    if isinstance(reply, m.FetchedChunks):
        shard, log, group, node = reply.address
        prefix = ADDRESS.pack(shard, log, node, group) + _CHUNKS.pack(reply.index)
        return _framed(_RESPONSE, opcode, correlation, prefix, *reply.batches)
    if isinstance(reply, m.RelayTold):
        shard, log, group, node = reply.address
        prefix = ADDRESS.pack(shard, log, node, group)
        return _framed(_RESPONSE, opcode, correlation, prefix, *reply.message)
    flags = _RESPONSE | _ERROR if isinstance(reply, m.Refusal) else _RESPONSE
    return _framed(flags, opcode, correlation, _pack(_bare(reply)))


def _bare(reply: m.ControlReply) -> object:
    """Return a reply without its last fields where they say nothing, as of most topics and nodes:
    which partitions have ended, what schema there is, which offsets hold nothing, that a node has
    met its set, that a login gives no ticket, and which lineages there are.
    """
    match reply:
        case m.Welcome(met=True):
            return msgspec.structs.astuple(reply)[:-1]
        case LoginStep(ticket=b""):
            return msgspec.structs.astuple(reply)[:-1]
        case m.Barriers(ends=()) | m.ClusterIsOpen(tags=()):
            return msgspec.structs.astuple(reply)[:-1]
        case m.TopicInfo(ends=ends, schema=0, checked=False, key_by=""):
            return msgspec.structs.astuple(reply)[: -3 if ends else -4]
        case m.TopicInfo(key_by=""):
            return msgspec.structs.astuple(reply)[:-1]
        case a.ClusterList(voids=voids, tags=tags, pending=(), is_cut_off=False):
            return msgspec.structs.astuple(reply)[: -2 if tags else -3 if voids else -4]
        case m.TopicList(topics, more):
            return [_bare(topic) for topic in topics], more
        case m.OffsetList(topics, offsets, more):
            return [_bare(topic) for topic in topics], offsets, more
        case m.ResolvedCut(stamp, topics, lineages):
            cuts = [(_bare(one.info), one.starts, one.ends, one.committed) for one in topics]
            return (stamp, cuts, lineages) if lineages else (stamp, cuts)
        case order.LocatedOffsets(lineages=[]):
            return msgspec.structs.astuple(reply)[:-1]
    return reply


def decode_reply(frame: ClientFrame) -> m.Reply:
    """Read a reply; a refusal comes back as `Refusal`. Raises `RemoteProtocolError`."""
    if frame.flags not in _REPLY_FLAGS:
        raise RemoteProtocolError(f"flags {frame.flags:#x} make no reply")
    try:
        if frame.flags & _ERROR:
            refusal: m.Refusal = _REFUSAL.decode(frame.body)
            return refusal
        if frame.opcode == _OP_FETCH:
            return _fetched(frame.body)
        if frame.opcode == _OP_PULL:
            return _granted(frame.body)
        if frame.opcode == _OP_FETCH_CHUNKS:
            address, at = _address(frame.body, _CHUNKS.size)
            (index,) = _CHUNKS.unpack_from(frame.body, at)
            return m.FetchedChunks(address, index, _batches(frame.body, at + _CHUNKS.size))
        if frame.opcode == _OP_ASK_RELAY:
            address, at = _address(frame.body, 0)
            return m.RelayTold(address, _batches(frame.body, at))
        reply: m.Reply = _REPLY_DECODERS[frame.opcode].decode(frame.body)
    except (*_MALFORMED, KeyError, BadRequest) as error:
        raise RemoteProtocolError(
            f"a reply to opcode {frame.opcode} makes no sense: {error}"
        ) from None
    return reply


def is_notice(frame: ClientFrame) -> bool:
    """Return whether a frame is no reply, but tells what concerns the whole connection."""
    return not frame.correlation and frame.opcode == Throttled.opcode


def decode_notice(frame: ClientFrame) -> Throttled:
    """Read a notice. Raises `RemoteProtocolError`."""
    try:
        notice: Throttled = _THROTTLED.decode(frame.body)
    except _MALFORMED as error:
        raise RemoteProtocolError(f"a notice makes no sense: {error}") from None
    return notice


def _address(body: memoryview, more: int) -> tuple[Address, int]:
    if len(body) < ADDRESS.size + more:
        raise BadRequest(f"{len(body)} bytes are too few for this request")
    shard, log, node, group = ADDRESS.unpack_from(body)
    return Address(shard, log, group, node), ADDRESS.size


def _fetched(body: memoryview) -> m.Fetched:
    address, at = _address(body, _FETCHED.size)
    numbers = _FETCHED.unpack_from(body, at)
    offset, behind, committed, barrier, partitions, count, cut, filtered, lineage = numbers
    voids, at = _runs(body, at + _FETCHED.size, count)
    skipped: tuple[tuple[int, int], ...] = ()
    if filtered:
        if len(body) - at < _COUNT.size:
            raise BadRequest("a filtered answer ends before its skipped runs")
        skipped, at = _runs(body, at + _COUNT.size, *_COUNT.unpack_from(body, at))
    return m.Fetched(
        address, offset, behind, committed, _batches(body, at), barrier, partitions, voids,
        bool(cut), bool(filtered), skipped, lineage - 1,
    )  # fmt: skip


def _runs(body: memoryview, at: int, count: int) -> tuple[tuple[tuple[int, int], ...], int]:
    """Return so many runs [first, next) from byte `at` on, and the byte behind them."""
    end = at + count * _RUN.size
    if len(body) < end:
        raise BadRequest(f"{len(body)} bytes hold no {count:,} runs of offsets")
    return tuple(_RUN.iter_unpack(body[at:end])), end


def _granted(body: memoryview) -> m.Granted:
    address, at = _address(body, _GRANTED.size)
    fence, deadline, offset, behind, attempts, stamp, count, ahead = _GRANTED.unpack_from(body, at)
    at += _GRANTED.size
    if count > GRANT_RUNS_MAX or len(body) - at < count * _RUN.size:
        raise BadRequest(f"{len(body)} bytes hold no {count:,} runs of a grant")
    runs = tuple(_RUN.iter_unpack(body[at : at + count * _RUN.size]))
    if min(fence, deadline, offset, behind, attempts, stamp, *(min(run) for run in runs)) < 0:
        raise BadRequest("a grant with a number below 0")
    batches = _batches(body, at + count * _RUN.size)
    return m.Granted(
        address, fence, deadline, offset, behind, attempts, stamp, runs, batches, ahead
    )  # fmt: skip


def _batches(body: memoryview, at: int) -> tuple[Buffer, ...]:
    return (body[at:],) if at < len(body) else ()


class ClientStream:
    """Frames of one connection in the client dialect, either side."""

    __slots__ = ("_reassembler", "pending")

    def __init__(self) -> None:
        """Start at the first byte of the connection."""
        self._reassembler = Reassembler(CLIENT_HEADER.size, client_frame_size)
        #: Bytes held for a frame that is not whole yet.
        self.pending = 0

    @property
    def claimed(self) -> int:
        """Bytes that the frame under way will take when it is whole; 0 until its header is."""
        return self._reassembler.claimed

    @property
    def unfinished(self) -> tuple[int, int] | None:
        """Opcode and correlation of the frame under way; None until its header has come."""
        if (start := self._reassembler.header) is None:
            return None
        _, _, opcode, _, correlation = CLIENT_HEADER.unpack_from(start)
        return int(opcode), int(correlation)

    def receive(self, data: bytes) -> Sequence[ClientFrame]:
        """Take bytes as they come, return whole frames. Raises `RemoteProtocolError`."""
        if not self.pending and (size := len(data) - CLIENT_HEADER.size) >= 0:
            version, flags, opcode, length, correlation = CLIENT_HEADER.unpack_from(data)
            # A frame a read, as small ones mostly come; whatever else comes goes the long way.
            if length == size <= CONTROL_FRAME_BYTES_MAX and version == CLIENT_VERSION:
                body = memoryview(data)[CLIENT_HEADER.size :]
                return (ClientFrame(flags, opcode, correlation, body),)
        frames = [take_client_frame(view) for view in self._reassembler.receive(data)]
        self.pending = self._reassembler.pending
        return frames


def _complaint(kind: type[Any], error: Exception) -> str:
    """Return the decoder's complaint with the field's name in place of its number."""
    found = _PLACE.fullmatch(str(error))
    fields = kind.__struct_fields__
    if found is None or int(found["field"]) >= len(fields):
        return f"{kind.__name__}: {error}"
    name = fields[int(found["field"])] + found["rest"]
    return f"{kind.__name__}: {name}: {found['what']}"
