"""The columns of a batch in Arrow layout (DESIGN §4 Batch).

Every buffer begins on a multiple of 8 bytes behind the header and is padded with zeros. `n` is the
number of messages; a *bytes column* is int32 offsets [n+1], then data. In this order, each only
where its flag is set:

    TAG      the tag list: u32 number of tags, u32 0, bytes column of the tags (UTF-8; an empty
             one stands for "no tag"). It comes first and is never compressed.
    CHUNK    u64 position of this piece in its value, u64 bytes of the piece; never compressed
    SLICED   u64 hash of the batch that these are some messages of, u32 rows [n]: where each lay in
             it, from 0 on, rising
    DUE      int64 µs [n], 0: at once; never compressed, because replicas read it
    VALUE    bytes column; with REFERENCES, what closes a large value where it would be
    KEY      validity bitmap (bit set: there is a key), bytes column, u32 key hash [n]
             (xxh3-64 of the key, lower half; 0 where there is none)
    TAG      int32 index into the tag list [n]
    TIME     int64 µs since 1970 [n]; without the column every message has the base time
    EXPIRES  int64 µs [n], 0: never
    HEADERS  int32 offsets into the pairs [n+1], bytes column of names, bytes column of values
    ORIGIN   u64 hub [n], u32 boot [n], u32 sequence [n], u8 sn [n]; with the flag GENERATION then
             u32 generation [n]
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Literal, NamedTuple

import msgspec
import xxhash

from weir.codec import ALIGNMENT, Buffer, padded, padding
from weir.errors import BadBatch, TooLarge
from weir.model.ids import LIMIT_MAX, are_parts
from weir.model.limits import (
    BATCH_BYTES_MAX,
    GENERATION_MAX,
    HEADERS_PER_BATCH_MAX,
    KIB,
    NAME_CHARACTERS_MAX,
    SCATTER_PARTS_MAX,
    STAGED_RUNS_MAX,
    TAGS_PER_BATCH_MAX,
)

_TAGS = struct.Struct("<II")
_PAIR = struct.Struct("<QQ")
_U64 = struct.Struct("<Q")
_PUBLICATION = struct.Struct("<QII")
_RUN = struct.Struct("<QQQQ")
#: Left free in a batch of one message, for the header and what an estimate leaves out.
_SPARE_BYTES = 64 * KIB
#: An origin without a sequence: the device did not ask for dedupe.
NO_SEQUENCE = 0xFFFFFFFF


#: What an epoch has above its boot.
_GENERATION_AT = 32


def epoch_of(generation: int, boot: int) -> int:
    """Return the epoch of a device: its generation, then its boot. Sequences begin anew with each,
    and what an earlier one sent is refused once a later one is known.
    """
    return generation << _GENERATION_AT | boot


def generation_of(epoch: int) -> int:
    """Return an epoch's generation."""
    return epoch >> _GENERATION_AT


def boot_of(epoch: int) -> int:
    """Return an epoch's boot count."""
    return epoch & 0xFFFFFFFF


Code = Literal["i", "I", "q", "Q", "B"]
_WIDTHS: dict[Code, int] = {"i": 4, "I": 4, "q": 8, "Q": 8, "B": 1}


class Origins(msgspec.Struct, frozen=True):
    """Where fan-in messages come from, column by column (DESIGN §4 Fan-in)."""

    hubs: Sequence[int]
    boots: Sequence[int]
    sequences: Sequence[int]
    sns: Sequence[int]
    #: Empty where no device of the batch was ever replaced: all are 0.
    generations: Sequence[int] = ()

    @property
    def epochs(self) -> Iterable[int]:
        """The epoch of each message: see `epoch_of`."""
        return map(epoch_of, self.generations, self.boots) if self.generations else self.boots


#: Messages of one width are common (device records); their offsets are the same every time.
_UNIFORM_MAX = 4_096


@lru_cache(maxsize=64)
def _uniform(n: int, width: int) -> bytes:
    """Return the offsets of `n` values of `width` bytes each."""
    return struct.pack(f"<{n + 1}i", *(i * width for i in range(n + 1)))


def put_bytes(parts: list[Buffer], values: Sequence[Buffer]) -> None:
    """Append a bytes column: its offsets, then its data, each padded to 8 bytes."""
    n = len(values)
    widths = set(map(len, values))
    if len(widths) == 1 and n <= _UNIFORM_MAX:
        size = n * widths.pop()
        check_size(size)
        parts.append(_uniform(n, size // n))
    else:
        ends = list(accumulate(map(len, values), initial=0))
        size = ends[-1]
        check_size(size)
        parts.append(struct.pack(f"<{n + 1}i", *ends))
    if n % 2 == 0:  # n + 1 offsets of four bytes: an odd n fills whole eights
        parts.append(padding(4))
    parts.extend(values)
    parts.append(padding(size))


def check_size(size: int) -> None:
    """Raise `TooLarge` over 8 MiB: before bytes are joined, so that no memory is spent in vain."""
    if size > BATCH_BYTES_MAX:
        raise TooLarge(
            f"{size:,} bytes in one batch; {BATCH_BYTES_MAX:,} are allowed: send fewer at once",
            BATCH_BYTES_MAX,
        )


def put_fixed(parts: list[Buffer], code: Code, numbers: Iterable[int]) -> None:
    """Append a column of fixed-width numbers (an `array` type code), padded to 8 bytes."""
    data = array(code, numbers).tobytes()
    parts.append(data)
    parts.append(padding(len(data)))


def put_keys(parts: list[Buffer], keys: Sequence[bytes | None]) -> None:
    """Append the KEY column: validity, bytes, hashes."""
    bits = bytearray(padded((len(keys) + 7) // 8))
    for i, key in enumerate(keys):
        if key is not None:
            bits[i >> 3] |= 1 << (i & 7)
    parts.append(bytes(bits))
    put_bytes(parts, [key or b"" for key in keys])
    put_fixed(parts, "I", [0 if k is None else key_hash(k) for k in keys])


def key_hash(key: bytes) -> int:
    """Return the 32 bits that stand for a key: the lower half of its xxh3-64."""
    return int(xxhash.xxh3_64_intdigest(key)) & 0xFFFFFFFF


def put_headers(parts: list[Buffer], headers: Sequence[Mapping[str, bytes]]) -> None:
    """Append the HEADERS column: offsets into the pairs, names, values."""
    put_fixed(parts, "i", accumulate(map(len, headers), initial=0))
    put_bytes(parts, [name.encode() for pairs in headers for name in pairs])
    put_bytes(parts, [value for pairs in headers for value in pairs.values()])


def put_origins(parts: list[Buffer], origins: Origins) -> None:
    """Append the ORIGIN column."""
    put_fixed(parts, "Q", origins.hubs)
    put_fixed(parts, "I", origins.boots)
    put_fixed(parts, "I", origins.sequences)
    put_fixed(parts, "B", origins.sns)
    if origins.generations:
        put_fixed(parts, "I", origins.generations)


def put_tag_list(parts: list[Buffer], tags: Sequence[str]) -> None:
    """Append the tag list."""
    parts.append(_TAGS.pack(len(tags), 0))
    put_bytes(parts, [tag.encode() for tag in tags])


class BytesColumn(msgspec.Struct, frozen=True):
    """A bytes column in place: `offsets` is int32 [n+1], `data` what they point into."""

    offsets: memoryview
    data: memoryview

    def to_list(self, first: int = 0, behind: int | None = None) -> list[bytes]:
        """Split into one `bytes` a message: those of rows [first, behind), or all."""
        n = len(self.offsets) - 1
        lo, hi, _ = slice(first, behind).indices(n)
        if hi <= lo:
            return []
        if width := self._uniform_width():
            part = self.data[lo * width : hi * width]
            return list(struct.unpack(f"{width}s" * (hi - lo), part))
        ends = rising(self.offsets)[lo : hi + 1]
        start = ends[0]
        data = bytes(self.data[start : ends[-1]])
        if start:
            ends = [end - start for end in ends]
        return [data[a:b] for a, b in pairwise(ends)]

    def check(self) -> None:
        """Raise `BadBatch` where `to_list` would; nothing is split."""
        if not self._uniform_width():
            check_rising(self.offsets)

    def _uniform_width(self) -> int:
        """Return the width that all elements have; 0 where they differ, or might."""
        n = len(self.offsets) - 1
        # The first width is a guess that spares mixed columns the making of uniform offsets.
        width: int = self.offsets[1] if n else 0
        if (
            n <= _UNIFORM_MAX
            and 0 < width * n == len(self.data)
            # As bytes, for they are compared at once; two views are compared item by item.
            and self.offsets.tobytes() == _uniform(n, width)
        ):
            return width
        return 0

    def at(self, i: int) -> bytes:
        """Return element `i` alone, from 0 on. Raises `BadBatch` where it leaves the data."""
        start, end = self.offsets[i], self.offsets[i + 1]
        if not 0 <= start <= end <= len(self.data):
            raise BadBatch(f"element {i} lies from {start} to {end} of {len(self.data)} bytes")
        return bytes(self.data[start:end])


def are_set(bits: memoryview, first: int, behind: int) -> bool:
    """Return whether all bits [first, behind) of a bitmap are set, those before them within the
    first byte included.
    """
    some = bits[first >> 3 : behind + 7 >> 3].tobytes()
    whole = some[:-1] if behind & 7 else some
    if whole != b"\xff" * len(whole):
        return False
    return not behind & 7 or not ~some[-1] & ((1 << (behind & 7)) - 1)


def rising(offsets: memoryview) -> list[int]:
    """Return offsets as a list. Raises `BadBatch` where one is below the one before it.

    `Cursor` has checked the first and the last, so none of them leaves the data.
    """
    ends: list[int] = offsets.tolist()
    if ends != sorted(ends):  # linear and in C for what is sorted already
        raise BadBatch("the offsets of a column fall: its encoder is at fault")
    return ends


#: Numbers compared at once. They are taken as one, with 32 bits for each: no object is made of any,
#: so that a batch of a million empty messages is checked in milliseconds.
_LANES = 4_096
_TOPS = int.from_bytes(b"\0\0\0\x80" * _LANES, "little")


def check_rising(offsets: memoryview) -> None:
    """Raise `BadBatch` where `rising` would; no list is made."""
    for at in range(0, len(offsets) - 1, _LANES):
        some = offsets[at : at + _LANES + 1]
        _check_lanes(some[:-1], _number(some[1:]), "the offsets of a column fall")


def check_tag_indices(column: memoryview, tags: int) -> None:
    """Raise `BadBatch` where `tag_indices` would; no list is made."""
    for at in range(0, len(column), _LANES):
        some = column[at : at + _LANES]
        highest = (_tops(len(some)) >> 31) * (tags - 1)
        _check_lanes(some, highest, "a tag index points outside the tag list")


def _check_lanes(lower: memoryview, upper: int, wrong: str) -> None:
    """Raise `BadBatch` unless 0 <= lower <= upper in every lane, by one subtraction."""
    tops, below = _tops(len(lower)), _number(lower)
    # The top bit lent to each lane is still there if nothing had to be borrowed.
    if (below | upper) & tops or ((upper | tops) - below) & tops != tops:
        raise BadBatch(f"{wrong}: its encoder is at fault")


def _tops(lanes: int) -> int:
    return _TOPS >> 32 * (_LANES - lanes)


def _number(lanes: memoryview) -> int:
    return int.from_bytes(lanes.tobytes(), "little")


def tag_indices(column: memoryview, tags: int) -> list[int]:
    """Return indices as a list. Raises `BadBatch` where one is outside a list of `tags` tags."""
    indices: list[int] = column.tolist()
    if not 0 <= min(indices) <= max(indices) < tags:
        raise BadBatch("a tag index points outside the tag list")
    return indices


#: 1 for the bytes that go on with a character of UTF-8, 0 for those that begin one.
_INSIDE = bytes(0x80 <= byte < 0xC0 for byte in range(256))


def check_names(names: BytesColumn) -> None:
    """Raise `BadBatch` unless each header's name is UTF-8."""
    if bytes(names.data).isascii():
        names.check()
    else:
        names.check()
        data = bytes(names.data)
        text(data)
        inside = data.translate(_INSIDE) + b"\0"
        if any(map(inside.__getitem__, names.offsets.tolist())):
            raise BadBatch("a header's name begins amid a character: it is not UTF-8")


def text(data: bytes) -> str:
    """Return a tag or a header's name. Raises `BadBatch` unless it is UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise BadBatch(f"{data[:32]!r} is not UTF-8") from None


class Cursor:
    """Walks a batch's buffers in order; every length is checked against what is there."""

    __slots__ = ("at", "view")

    def __init__(self, view: memoryview, at: int) -> None:
        """Start at byte `at` of `view`."""
        self.view = view
        self.at = at

    def take(self, size: int) -> memoryview:
        """Return the next `size` bytes and step over their padding."""
        end = self.at + size
        if size < 0 or end > len(self.view):
            raise BadBatch(f"a column of {size:,} bytes at {self.at:,} leaves the batch")
        part = self.view[self.at : end]
        self.at = end + -size % ALIGNMENT
        return part

    def numbers(self, code: Code, n: int) -> memoryview:
        """Return the next fixed-width column as a view of numbers."""
        return self.take(_WIDTHS[code] * n).cast(code)

    def bytes(self, n: int) -> BytesColumn:
        """Return the next bytes column; its first and last offset are checked, not each one."""
        offsets = self.take(4 * (n + 1)).cast("i")
        if offsets[0] != 0:
            raise BadBatch(f"a bytes column begins at {offsets[0]}, not 0")
        return BytesColumn(offsets, self.take(offsets[n]))

    def tag_list(self) -> list[str]:
        """Return the tag list."""
        (count, _) = _TAGS.unpack(self.take(_TAGS.size))
        if count > TAGS_PER_BATCH_MAX:
            raise BadBatch(f"{count:,} tags in a batch; at most {TAGS_PER_BATCH_MAX:,}")
        return [text(tag) for tag in self.bytes(count).to_list()]

    def headers(self, n: int) -> tuple[memoryview, BytesColumn, BytesColumn]:
        """Return the HEADERS column: offsets into the pairs, names, values."""
        offsets = self.numbers("i", n + 1)
        if offsets[0] != 0 or not 0 <= offsets[n] <= HEADERS_PER_BATCH_MAX:
            raise BadBatch(f"{offsets[n]:,} headers in a batch; at most {HEADERS_PER_BATCH_MAX:,}")
        return offsets, self.bytes(offsets[n]), self.bytes(offsets[n])

    def slice_of(self, n: int, of: int) -> SliceOf:
        """Return the SLICED column of `n` messages of a batch of so many. Raises `BadBatch` unless
        the rows rise, and are rows of that.
        """
        (hash_,) = _U64.unpack(self.take(_U64.size))
        rows = self.numbers("I", n).tolist()
        if rows[-1] >= of or rows != sorted(set(rows)):
            raise BadBatch(f"a slice of {n:,} messages has rows that {of:,} messages have not")
        return SliceOf(hash_, rows)

    def origins(self, n: int, has_generations: bool) -> Origins:
        """Return the ORIGIN column. Raises `BadBatch` for a generation that no device has."""
        origins = Origins(
            self.numbers("Q", n),
            self.numbers("I", n),
            self.numbers("I", n),
            self.numbers("B", n),
            self.numbers("I", n) if has_generations else (),
        )
        if has_generations and max(origins.generations) > GENERATION_MAX:
            raise BadBatch(f"a device has a generation of up to {GENERATION_MAX:,}")
        return origins


class SliceOf(NamedTuple):
    """Of which batch these are some messages, by its hash, and which of its rows."""

    hash: int
    rows: Sequence[int]

    def offsets(self, first: int) -> list[int]:
        """Return the offset of each message; `first` is that of the whole batch."""
        return [first + row for row in self.rows]

    def pack(self) -> bytes:
        """Return the SLICED column, padded."""
        numbers = array("I", self.rows).tobytes()
        return b"".join((_U64.pack(self.hash), numbers, padding(len(numbers))))


class Piece(NamedTuple):
    """Where a chunk's piece lies in its value, and how long it is: the CHUNK column."""

    position: int
    size: int

    def pack(self) -> bytes:
        """Return the CHUNK column."""
        return _PAIR.pack(*self)


def piece_at(view: Buffer, at: int) -> Piece:
    """Read the CHUNK column at byte `at`. Raises `BadBatch` for an empty piece or one too long."""
    if len(view) - at < _PAIR.size:
        raise BadBatch("a chunk ends before its column")
    piece = Piece(*_PAIR.unpack_from(view, at))
    if not 0 < piece.size <= BATCH_BYTES_MAX or piece.position > LIMIT_MAX:
        raise BadBatch(f"a chunk says {piece.size:,} bytes from {piece.position:,}")
    return piece


class References(NamedTuple):
    """What a closing batch knows of its value; `runs` are (first Raft index, chunks) in order.

    A value too large for one batch is cut into pieces. Each is the value of a *chunk*, a batch with
    the flag CHUNK: one sequence of its producer, one entry of the partition's log, no offset.
    Behind the last one the *closing* batch, with the flag REFERENCES, takes the value's one offset
    and stamp, and holds its key, tag, time and headers. Where its value would lie it has references
    (little-endian):

        u64 bytes of the whole value
        u64 hash of the whole value: that of its chunks in order, see `chained`
        then, in order, u64 Raft index of a chunk, u64 number of chunks in entries from there on

    A producer has one open value in a partition: a piece at position 0 begins one, and any other
    continues at the position behind the last piece.
    """

    size: int
    hash: int
    runs: tuple[tuple[int, int], ...]

    @property
    def first_index(self) -> int:
        """The entry of the first chunk."""
        return self.runs[0][0]

    @property
    def chunks(self) -> int:
        """How many entries hold the value."""
        return sum(count for _, count in self.runs)

    def pack(self) -> bytes:
        """Return what lies where the value would."""
        return b"".join(
            (_PAIR.pack(self.size, self.hash), *(_PAIR.pack(*run) for run in self.runs))
        )

    @classmethod
    def unpack(cls, data: Buffer) -> References:
        """Read what `pack` gave. Raises `BadBatch` unless the runs rise and can hold the size."""
        if len(data) < 2 * _PAIR.size or len(data) % _PAIR.size:
            raise BadBatch(f"{len(data)} bytes make no references to chunks")
        (size, hash_), *runs = _PAIR.iter_unpack(data)
        behind = 1  # Raft indices begin at 1
        for first, count in runs:
            if first < behind or count < 1 or first + count > LIMIT_MAX:
                raise BadBatch(f"references name {count:,} entries from {first:,}: that is wrong")
            behind = first + count
        found = cls(size, hash_, tuple(runs))
        if not found.chunks <= size <= found.chunks * BATCH_BYTES_MAX:
            raise BadBatch(f"{size:,} bytes cannot lie in {found.chunks:,} chunks")
        return found


def chained(value: int, chunk: int) -> int:
    """Return a value's hash with one more chunk behind those that made hash `value`, 0 at first.

    `chunk` is the hash in the chunk's header: it covers the piece, its place, its producer and its
    partition. So a receiver of chunks knows their value's hash without reading them again. The
    result is the xxh3-64 of both numbers, u64 little-endian each.
    """
    return int(xxhash.xxh3_64_intdigest(_PAIR.pack(value, chunk)))


def runs_of(indices: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Gather rising Raft indices into runs (first, count)."""
    runs: list[tuple[int, int]] = []
    for index in indices:
        extend(runs, index)
    return tuple(runs)


def extend(runs: list[tuple[int, int]], index: int) -> None:
    """Add the index of one more chunk to runs, in place."""
    if runs and sum(runs[-1]) == index:
        runs[-1] = (runs[-1][0], runs[-1][1] + 1)
    else:
        runs.append((index, 1))


def is_large(size: int, batch_bytes_max: int = BATCH_BYTES_MAX) -> bool:
    """Whether a message of about `size` bytes fits no batch, so that its value goes as chunks."""
    return size > min(batch_bytes_max, BATCH_BYTES_MAX) - _SPARE_BYTES


class Scattered(NamedTuple):
    """What a batch says of its scattering: its producer's number for it, and all its parts.

    A part is a number: the group of a partition · 2, + 1 if it is acks there and not a batch. The
    SCATTERED column of a batch lies bare behind the tag list, little-endian u64 each: the number
    that its producer gave the scattering, how many parts it has, and these, rising.
    """

    number: int
    parts: tuple[int, ...]

    @property
    def packed_size(self) -> int:
        """Bytes of the column."""
        return _PAIR.size + 8 * len(self.parts)

    def pack(self) -> bytes:
        """Return the SCATTERED column."""
        return _PAIR.pack(self.number, len(self.parts)) + struct.pack(
            f"<{len(self.parts)}Q", *self.parts
        )

    @classmethod
    def unpack(cls, data: Buffer, most: int = SCATTER_PARTS_MAX) -> Scattered:
        """Read the column that begins with `data`. Raises `BadBatch` unless its parts rise, and are
        `most` at most.
        """
        if len(data) < _PAIR.size:
            raise BadBatch("a batch of a scattering ends before its column")
        number, count = _PAIR.unpack_from(data)
        if not 1 <= count <= most or len(data) < _PAIR.size + 8 * count:
            raise BadBatch(f"a scattering of {count:,} parts: 1 to {most}")
        found = cls(number, struct.unpack_from(f"<{count}Q", data, _PAIR.size))
        if number > LIMIT_MAX or not are_parts(found.parts):
            raise BadBatch(f"scattering {number} has parts that do not rise")
        return found


class StagedRun(NamedTuple):
    """Batches that one writer staged in one partition, in order: its number, how many batches and
    messages they are, and the hashes of their headers, `chained`.
    """

    number: int
    batches: int
    messages: int
    hash: int


class Publication(NamedTuple):
    """What publishes staged batches by reference: it lies where its batch's value would.

    A batch of a query's result is staged by many writers, as runs of batches without offsets or
    stamps. A *publication*, a batch with the flag PUBLICATION, is a part of a scattering: it takes
    the offsets and the one stamp of all of them, in the order of its runs. Little-endian:

        u64 number of the query's batch
        u32 bytes of the query's name, u32 number of runs
        the name in UTF-8, padded with zeros to a multiple of 8
        then, of each run, u64 number, u64 batches, u64 messages, u64 hash
    """

    query: str
    batch: int
    runs: tuple[StagedRun, ...]

    @property
    def messages(self) -> int:
        """How many messages it publishes: as many as its batch's header says."""
        return sum(run.messages for run in self.runs)

    def pack(self) -> bytes:
        """Return what lies where the value would."""
        name = self.query.encode()
        head = _PUBLICATION.pack(self.batch, len(name), len(self.runs))
        return b"".join((head, name, padding(len(name)), *(_RUN.pack(*run) for run in self.runs)))

    @classmethod
    def unpack(cls, data: Buffer) -> Publication:
        """Read what `pack` gave. Raises `BadBatch` for what makes no sense."""
        if len(data) < _PUBLICATION.size:
            raise BadBatch(f"{len(data)} bytes make no publication")
        batch, size, count = _PUBLICATION.unpack_from(data)
        start = _PUBLICATION.size + padded(size)
        if not 1 <= count <= STAGED_RUNS_MAX or len(data) != start + count * _RUN.size:
            raise BadBatch(f"a publication of {count:,} runs does not take {len(data):,} bytes")
        name = bytes(data[_PUBLICATION.size : _PUBLICATION.size + size])
        runs = tuple(StagedRun(*row) for row in _RUN.iter_unpack(data[start:]))
        if batch > LIMIT_MAX or not 1 <= size <= 4 * NAME_CHARACTERS_MAX:
            raise BadBatch(f"no query publishes batch {batch} under a name of {size} bytes")
        if len({run.number for run in runs}) < count:
            raise BadBatch("a publication names a run twice")
        if any(not run.batches or run.messages < run.batches for run in runs):
            raise BadBatch("a publication names a run without a message in each of its batches")
        return cls(text(name), batch, runs)
