"""Fan-in: device frames of many connections become batches of one partition (DESIGN §4 Fan-in).

The one place where the broker spends time per message: dedupe by origin, (hub, sn), decided like a
producer's by what is replicated and by what is under way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from weir.broker.produce.appender import Admission, Appender
from weir.broker.runtime.budget import Budget
from weir.broker.runtime.outbox import Outbox
from weir.broker.runtime.session import ROW_BYTES, DeviceSession
from weir.broker.state.dedupe import Origin, value_hash
from weir.broker.state.state import PartitionState
from weir.errors import (
    Fenced,
    NotAuthenticated,
    Overloaded,
    Refused,
    SequenceGap,
    SequenceReused,
)
from weir.model.batch import Batch
from weir.model.batch_builder import encode
from weir.model.columns import NO_SEQUENCE, Origins, boot_of, epoch_of, generation_of
from weir.model.limits import (
    BATCH_BYTES_DEFAULT,
    ORIGINS_PER_PARTITION_MAX,
    RETRY_AFTER_MS,
    TAG_RUN_BYTES,
)
from weir.model.topic import key_of_hub
from weir.protocol.device import DevicePublishes, encode_confirm

#: The offset of a repeat: nothing new is there. A hub that sent it once did not raise its boot.
DUPLICATE = (1 << 64) - 1

_ACCEPT = -1

#: Devices and what they published.
DeviceBatch = Sequence[tuple[DeviceSession, DevicePublishes]]


#: A device, what it published, what is charged for that, and what goes with refusals.
_Arrived = tuple[DeviceSession, DevicePublishes, int, int]
#: An epoch, an offset, and a value's hash.
First = tuple[int, int, int]


class _Confirms:
    """Replies, column by column, in the order of the frames that they answer."""

    __slots__ = ("codes", "devices", "offsets", "sequences", "sns")

    def __init__(self) -> None:
        self.devices: list[DeviceSession] = []
        self.sns: list[int] = []
        self.sequences: list[int] = []
        self.codes: list[int] = []
        self.offsets: list[int] = []


def _runs_of(arrived: list[_Arrived]) -> list[list[_Arrived]]:
    """Return what arrived of verified devices, cut by the tags of their fleets where one has so
    much that a batch of its own is worth while; readers that want one tag skip the others whole.
    """
    by_tag: dict[str, list[_Arrived]] = {}
    for one in arrived:
        by_tag.setdefault(one[0].tag, []).append(one)
    if len(by_tag) <= 1:
        return [arrived]
    runs, rest = [], []
    for some in by_tag.values():
        if sum(charged for _, _, charged, _ in some) >= TAG_RUN_BYTES:
            runs.append(some)
        else:
            rest += some
    return [*runs, rest]


def refused(publishes: DevicePublishes, error: Refused) -> DevicePublishes:
    """Return publishes that will all be answered with a refusal; they hold no values any more."""
    codes = [code or error.code for code in publishes.codes]
    return DevicePublishes(publishes.sns, publishes.sequences, [b""] * len(codes), codes)


class _Rows:
    """Messages that were accepted, column by column."""

    __slots__ = ("boots", "generations", "hubs", "sequences", "sns", "tags", "values")

    def __init__(self) -> None:
        self.values: list[bytes] = []
        self.hubs: list[int] = []
        self.boots: list[int] = []
        self.sequences: list[int] = []
        self.sns: list[int] = []
        #: Of verified devices alone: only those are replaced, or have a fleet with a tag.
        self.generations: list[int] = []
        self.tags: list[str] = []


class _Gathering:
    """The batch that is being built, and the replies that wait for it."""

    __slots__ = ("behind", "bytes", "charged", "confirms", "fresh", "is_verified", "known",
                 "replaced", "rows", "seen")  # fmt: skip

    def __init__(self, is_verified: bool = False) -> None:
        #: Whether all devices in it proved their identity; otherwise none of them did.
        self.is_verified = is_verified
        self.rows = _Rows()
        #: The generations of hubs whose devices were replaced before: none below is taken any more.
        self.replaced: dict[int, int] = {}
        self.confirms = _Confirms()
        #: Of those that came next and added nothing to the log: told behind this one.
        self.behind: list[_Gathering] = []
        #: Standings once this batch is committed; dropped with it, then the table has them. Of a
        #: first message what `Origin.first` makes of it: that is mostly asked for by nobody.
        self.known: dict[tuple[int, int], Origin | First] = {}
        #: How many of these were not known before.
        self.fresh = 0
        self.bytes = 0
        self.seen = 0
        self.charged = 0


class DeviceBatcher:
    """Gathers publishes until the next entry is cut, and confirms them after the commit."""

    __slots__ = (
        "_admission",
        "_appender",
        "_arrived",
        "_budget",
        "_flying",
        "_fresh",
        "_group",
        "_is_keyed",
        "_outbox",
        "_producer",
        "_sequence",
        "_state",
    )  # fmt: skip

    def __init__(
        self,
        appender: Appender,
        state: PartitionState,
        producer: int,
        outbox: Outbox,
        budget: Budget,
        admission: Admission,
        is_keyed: bool,
    ) -> None:
        """Write as `producer`, the shard's own: go on behind what it wrote here when it led before.
        Where it `is_keyed`, messages get the number of their hub as their key.

        All that it ever proposed is applied by now, or never will be.
        """
        self._appender = appender
        self._group = appender.group_id
        self._state = state
        self._producer = producer
        self._outbox = outbox
        self._budget = budget
        self._admission = admission
        self._is_keyed = is_keyed
        known = state.producers.known(producer)
        self._sequence = known.next_sequence if known is not None else 0
        self._arrived: list[_Arrived] = []
        self._flying: deque[_Gathering] = deque()
        #: How many devices in those were not known before.
        self._fresh = 0

    @property
    def has_arrived(self) -> bool:
        """Whether `cut` has something to do."""
        return bool(self._arrived)

    def publish(self, batch: DeviceBatch) -> None:
        """Take the publishes of each connection, or refuse all of it, in line either way: one
        without a sequence knows its reply by its place alone.
        """
        charges = [
            sum(map(len, publishes.values)) + ROW_BYTES * len(publishes.values)
            for _, publishes in batch
        ]
        charged = sum(charges)
        if len(batch) > 1 and not self._budget.fits(charged):  # there may be room for some
            for one in batch:
                self.publish((one,))
            return
        try:
            self._admission.check(self._group)
            self._budget.charge(charged)
        except Refused as error:
            for device, publishes in batch:
                self._add(device, refused(publishes, error), 0, error.detail)
        else:
            for (device, publishes), charged in zip(batch, charges, strict=True):
                self._add(device, publishes, charged)

    def _add(
        self, device: DeviceSession, publishes: DevicePublishes, charged: int, detail: int = 0
    ) -> None:
        """Put publishes in line; `charged` bytes of the budget come back with the confirms.

        `detail` goes with those that are refused already.
        """
        device.in_flight += len(publishes.sns)
        self._arrived.append((device, publishes, charged, detail))

    def cut(self) -> int:
        """Turn what has arrived into batches for the appender; return how many reads that were."""
        arrived, self._arrived = self._arrived, []
        verified = [one for one in arrived if one[0].is_verified]
        others = [one for one in arrived if not one[0].is_verified] if verified else arrived
        runs = [(False, others), *((True, run) for run in _runs_of(verified))]
        for is_verified, some in runs:
            gathering = _Gathering(is_verified)
            for device, publishes, charged, detail in some:
                gathering.charged += charged
                gathering.seen = max(gathering.seen, device.seen)
                self._gather(gathering, device, publishes, detail)
                if gathering.bytes > BATCH_BYTES_DEFAULT:
                    self._close(gathering)
                    gathering = _Gathering(is_verified)
            self._close(gathering)
        return len(arrived)

    def _gather(
        self, into: _Gathering, device: DeviceSession, publishes: DevicePublishes, detail: int
    ) -> None:
        epoch, generation = device.epoch, device.generation
        barred = self._barred(into, device.hub, epoch)
        rows, confirms = into.rows, into.confirms
        before = len(rows.values)
        confirms.sns += publishes.sns
        confirms.sequences += publishes.sequences
        base = self._appender.next_offset
        published = zip(
            publishes.sns, publishes.sequences, publishes.values, publishes.codes, strict=True
        )
        for sn, sequence, value, code in published:
            offset = detail
            if not code and barred is not None:
                code, offset = barred
            elif not code:
                place = base + len(rows.values)
                code, offset = self._judge(into, device.hub, epoch, sn, sequence, value, place)
            if code == _ACCEPT:
                code = 0
                rows.values.append(value)
                rows.hubs.append(device.hub)
                rows.boots.append(device.boot)
                rows.sequences.append(sequence)
                rows.sns.append(sn)
                into.bytes += len(value) + ROW_BYTES
            confirms.devices.append(device)
            confirms.codes.append(code)
            confirms.offsets.append(offset)
        accepted = len(rows.values) - before
        if accepted and into.is_verified:
            rows.generations += [generation] * accepted
            rows.tags += [device.tag] * accepted
            if generation:
                into.replaced[device.hub] = generation

    def _barred(self, into: _Gathering, hub: int, epoch: int) -> tuple[int, int] | None:
        """Return the code and the offset that answer all of a hub whose epoch has ended here: its
        device was replaced, and the next one has published, or it was forgotten.
        """
        least = self._state.origins.floors.least(hub)
        for gathering in (*self._flying, into):
            if gathering.replaced:
                least = max(least, epoch_of(gathering.replaced.get(hub, 0), 0))
        if epoch >= least:
            return None
        if generation_of(epoch) < generation_of(least):
            return NotAuthenticated.code, 0
        return Fenced.code, boot_of(least) - 1

    def _judge(
        self,
        into: _Gathering,
        hub: int,
        epoch: int,
        sn: int,
        sequence: int,
        value: bytes,
        place: int,
    ) -> tuple[int, int]:
        """Return `_ACCEPT` and `place`, its offset then, or the code and offset to answer with."""
        closed = None if self._appender.is_open else self._closed()
        if sequence == NO_SEQUENCE:
            return closed or (_ACCEPT, place)
        known = self._known(into, hub, sn)
        if known is None and closed is not None:
            return closed
        if known is None and self._is_full(into):
            return Overloaded.code, RETRY_AFTER_MS
        if known is not None and epoch < known.epoch:  # of one generation: else it is barred
            return Fenced.code, boot_of(known.epoch)
        here = known if known is not None and epoch == known.epoch else None
        wanted = 0 if here is None else here.next_sequence
        if closed is not None and sequence >= wanted:
            return closed
        if sequence > wanted:
            return SequenceGap.code, wanted
        hash_ = value_hash(value)
        if here is None:
            into.known[hub, sn] = epoch, place, hash_
            into.fresh += known is None
            return _ACCEPT, place
        if sequence == wanted:
            into.known[hub, sn] = here.after(sequence, place, hash_)
            return _ACCEPT, place
        if not here.holds(sequence, hash_):
            return SequenceReused.code, 0
        return 0, DUPLICATE

    def _closed(self) -> tuple[int, int] | None:
        try:
            self._appender.check_open()
        except Refused as error:
            return error.code, error.detail
        return None

    def _is_full(self, into: _Gathering) -> bool:
        """Whether a device that is not known would be one too many, once all is committed."""
        coming = into.fresh + self._fresh
        return len(self._state.origins) + coming >= ORIGINS_PER_PARTITION_MAX

    def _known(self, into: _Gathering, hub: int, sn: int) -> Origin | None:
        key = (hub, sn)
        known = into.known.get(key)
        if known is None:
            for gathering in reversed(self._flying):
                if (known := gathering.known.get(key)) is not None:
                    break
            else:
                return self._state.origins.known(hub, sn)
        return known if isinstance(known, Origin) else Origin.first(*known)

    def _close(self, gathering: _Gathering) -> None:
        rows = gathering.rows
        if not rows.values:
            self._answer_alone(gathering)
            return
        origins = Origins(
            rows.hubs,
            rows.boots,
            rows.sequences,
            rows.sns,
            rows.generations if gathering.replaced else (),
        )
        batch = encode(
            rows.values,
            group=self._group,
            producer=self._producer,
            sequence=self._sequence,
            base_time=self._appender.wall_us(),
            origins=origins,
            keys=[key_of_hub(hub) for hub in rows.hubs] if self._is_keyed else None,
            tags=rows.tags if any(rows.tags) else None,
            verified=gathering.is_verified,
        )
        opened = Batch(batch)
        # A hub cannot tell a stamp that is too far ahead from a good one: it is not refused for it.
        appender = self._appender
        seen = appender.clock.clamp(appender.wall_us() // 1_000, gathering.seen)
        appender.accept(opened, seen)
        self._sequence += len(rows.values)
        self._flying.append(gathering)
        self._fresh += gathering.fresh

    def _answer_alone(self, gathering: _Gathering) -> None:
        """Nothing was accepted: answer behind the batches under way, so that replies keep order."""
        if not gathering.confirms.devices:
            return
        if self._flying:
            self._flying[-1].behind.append(gathering)
        else:
            self._tell(gathering, 0)

    def stall(self, error: Refused) -> None:
        """No majority has room for publishes under way: refuse their waiting callers. It stays
        under way, so that what comes again is known as a repeat, and keeps its bytes of the budget.
        Those behind it added nothing.
        """
        for gathering in self._flying:
            charged, gathering.charged = gathering.charged, 0
            self._refuse(gathering, error)
            gathering.charged, gathering.confirms = charged, _Confirms()
            behind, gathering.behind = gathering.behind, []
            for one in behind:
                self._refuse(one, error)

    def lose(self, error: Refused) -> None:
        """This node leads no more: refuse what is under way, and then what was not cut.

        What was decided by messages that may never be committed is not told: it is asked again.
        """
        while self._flying:
            for one in self._next():
                self._refuse(one, error)
        arrived, self._arrived = self._arrived, []
        gathering = _Gathering()
        for device, publishes, charged, detail in arrived:
            gathering.charged += charged
            self._gather(gathering, device, refused(publishes, error), detail)
        self._refuse(gathering, error)

    def committed(self, stamp: int) -> None:
        """The batch that was accepted first is applied, with this `stamp`: confirm its messages."""
        for one in self._next():
            self._tell(one, stamp)

    def _next(self) -> list[_Gathering]:
        gathering = self._flying.popleft()
        self._fresh -= gathering.fresh
        return [gathering, *gathering.behind]

    def _refuse(self, gathering: _Gathering, error: Refused) -> None:
        confirms = gathering.confirms
        confirms.codes = [error.code] * len(confirms.codes)
        confirms.offsets = [error.detail] * len(confirms.offsets)
        self._tell(gathering, 0)

    def _tell(self, gathering: _Gathering, stamp: int) -> None:
        self._budget.release(gathering.charged)
        c = gathering.confirms
        self._appender.counts.devices.told(c.codes)
        replies: dict[int, bytes] = {}
        more: dict[int, list[bytes]] = {}  # of those who published several: few, as a rule
        rows = zip(c.devices, c.sns, c.sequences, c.codes, c.offsets, strict=True)
        for device, sn, sequence, code, offset in rows:
            if device.seen < stamp:
                device.seen = stamp
            device.in_flight -= 1
            reply = encode_confirm(sn, sequence, code, offset)
            if (first := replies.setdefault(device.session, reply)) is not reply:
                more.setdefault(device.session, [first]).append(reply)
        for session, parts in more.items():
            replies[session] = b"".join(parts)
        self._outbox.answer(replies)
