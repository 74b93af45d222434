"""The modes of clusters: a picker for each cluster that is pulled for, of its mode."""

from __future__ import annotations

from collections.abc import Sequence

from weir.broker.consumers.keyed import KeyedPicker
from weir.broker.consumers.ordered import OrderedPicker
from weir.broker.consumers.picker import Picker, PickerContext
from weir.broker.consumers.shared import DueTimes, SharedPicker
from weir.broker.records.entries import due_span
from weir.broker.records.partition import MessagesAcked, UnwantedSkipped
from weir.broker.state.state import is_past
from weir.errors import BadRequest, Overloaded, StaleGrant
from weir.model.batch import Batch, Columns
from weir.model.limits import DELAY_MS_MAX, DELAYED_BATCHES_MAX, RETRY_AFTER_MS
from weir.model.topic import Mode
from weir.order.clock import milliseconds_of
from weir.protocol.client.messages import Ack

_DUE = int(Columns.DUE)
_DAY_MS = 24 * 3600 * 1000


class Pickers:
    """Makes a picker for each cluster that is pulled for, and tells it what concerns it."""

    __slots__ = ("_context", "_due_times", "_full_until_ms", "_of")

    def __init__(self, context: PickerContext) -> None:
        """Begin with none."""
        self._context = context
        self._due_times = DueTimes(context)
        self._of: dict[str, Picker] = {}
        #: Delayed batches are not counted again before who was refused should ask again.
        self._full_until_ms = 0

    def __contains__(self, name: str) -> bool:
        return name in self._of

    def __getitem__(self, name: str) -> Picker:
        return self._of[name]

    def check_mode(self, name: str, mode: Mode, tags: frozenset[str]) -> None:
        """Raise `BadRequest` for a pull in another mode than the cluster's, or with other `tags`,
        or in a mode that has no use for what is there.
        """
        state = self._context.state
        cluster, picker = state.clusters.get(name), self._of.get(name)
        known = cluster.mode if cluster is not None else None
        if known is None and picker is not None:
            known = picker.mode
        if known is not None and known is not mode:
            raise BadRequest(
                f"cluster {name!r} is {known.name.lower()}: pull with mode={known.name.lower()!r}, "
                "or delete it, or take another name"
            )
        if known is not None:
            chosen = picker.unwanted.tags if picker is not None else frozenset()
            if cluster is not None and cluster.mode is not None:
                chosen = frozenset(cluster.tags)
            if tags != chosen:
                raise BadRequest(
                    f"cluster {name!r} takes {_said(chosen)}, and was opened for {_said(tags)}: "
                    "open it with the same tags, or delete it, or take another name"
                )
        if known is None and mode is not Mode.SHARED and len(state.delays):
            start = state.log_start if cluster is None else cluster.cursor
            if state.delays.has_live(start, self._context.due_ms()):
                raise BadRequest(
                    f"messages wait here until they are due, and a {mode.name.lower()} cluster "
                    "would wait for them: pull with mode='shared', or use another topic"
                )

    def check_live(self, name: str, fences: Sequence[int]) -> None:
        """Raise `StaleGrant` for grants that have ended, if order matters: what they hold may be on
        its way to others already, and none of it must be with two.
        """
        cluster = self._context.state.clusters[name]
        if cluster.keeps_order:
            now_ms = self._context.time.monotonic_ms()
            over = set(fences).intersection(self._context.leases.over(name, cluster, now_ms))
            if over:
                raise StaleGrant(f"{len(over)} of the grants, first {min(over)}, have ended")

    def begin(self, name: str, mode: Mode, tags: frozenset[str]) -> None:
        """Let a cluster have a picker."""
        if name not in self._of:
            self._of[name] = self._make(name, mode, tags)

    def begin_anew(self, name: str, is_pulled: bool) -> None:
        """A cluster goes on at another place, or not at all."""
        picker = self._of.get(name)
        self.forget(name)
        if picker is not None and is_pulled:
            self._of[name] = self._make(name, picker.mode, picker.unwanted.tags)

    def forget(self, name: str) -> None:
        """Forget a cluster of which nothing is to be known."""
        self._of.pop(name, None)
        self._due_times.leave(name)

    def forget_all(self) -> None:
        """Another leads: what a read ends with later says nothing of clusters as they are then."""
        for name in list(self._of):
            self.forget(name)

    def _make(self, name: str, mode: Mode, tags: frozenset[str]) -> Picker:
        if mode is Mode.KEYED:
            return KeyedPicker(self._context, name, tags)
        if mode is Mode.ORDERED:
            return OrderedPicker(self._context, name, tags)
        return SharedPicker(self._context, name, tags, self._due_times)

    # -- what happens ------------------------------------------------------------------------

    def acks_came(self, session: int, request: Ack) -> None:
        """A peer acks what was granted to it, or to its client by another connection."""
        if self.keep_order(request.cluster):
            grants = self._context.state.clusters[request.cluster].grants
            for fence, _, _ in request.ranges:
                if fence in grants and grants[fence].consumer != session:
                    self._of[request.cluster].moved(grants[fence].consumer)

    def acking(self, record: MessagesAcked) -> None:
        """What an ack names of live grants will be done."""
        if self.keep_order(record.cluster):
            grants = self._context.state.clusters[record.cluster].grants
            runs = [
                run
                for fence, first, behind in record.ranges
                if fence in grants
                for run in grants[fence].left.within(first, behind)
            ]
            if runs:
                self._of[record.cluster].done(runs)

    def handed_out(self, name: str, fence: int, behind: int) -> None:
        """Of what a cluster was granted last, all below `behind` has left; the rest will not."""
        if (picker := self._of.get(name)) is not None:
            picker.handed_out(fence, behind)

    def has_left(self, name: str, fence: int, behind: int) -> None:
        """A grant is with another session of its consumer, which has all of it below `behind`."""
        if (picker := self._of.get(name)) is not None:
            picker.has_left(fence, behind)

    def unread(self, name: str, fence: int, first: int, behind: int) -> None:
        """Of a grant, what lies from `first` on cannot be read."""
        if (picker := self._of.get(name)) is not None:
            picker.unread(fence, first, behind)

    def skipped(self, record: UnwantedSkipped) -> None:
        """Messages that a cluster does not want are done."""
        if (picker := self._of.get(record.cluster)) is not None:
            picker.unwanted.done(record.runs)

    def with_unwanted(self) -> list[str]:
        """Return the clusters of which an entry is to say that messages are unwanted."""
        return [name for name, picker in self._of.items() if picker.unwanted]

    def closed(self, name: str, session: int) -> None:
        """A peer of a cluster is gone."""
        if (picker := self._of.get(name)) is not None:
            picker.closed(session)

    def start_moved(self, start: int) -> None:
        """Messages below `start` are gone."""
        for picker in self._of.values():
            picker.start_moved(start)

    # -- what there is -----------------------------------------------------------------------

    def keep_order(self, name: str) -> bool:
        """Whether a cluster that is pulled for is keyed or ordered."""
        picker = self._of.get(name)
        return picker is not None and picker.mode is not Mode.SHARED

    def is_looking(self, name: str) -> bool:
        """Whether something is being read that decides what to grant: no pull ends meanwhile."""
        picker = self._of.get(name)
        return picker is not None and picker.is_looking

    def check_dues(self, batch: Batch) -> None:
        """Raise `BadRequest` or `Overloaded` for delayed messages that cannot be taken."""
        span = due_span(batch) if batch.header.columns & _DUE else None
        if span is None:
            return
        context = self._context
        if span[1] > context.due_ms():
            self._check_delay(span[1])
        stamp_ms, mono_ms = milliseconds_of(context.clock.last), context.time.monotonic_ms()
        if is_past(span[1], stamp_ms):
            return  # it takes no row
        if mono_ms >= self._full_until_ms:
            if not context.state.delays.is_full(DELAYED_BATCHES_MAX, stamp_ms):
                return
            self._full_until_ms = mono_ms + RETRY_AFTER_MS
        raise Overloaded(
            f"{DELAYED_BATCHES_MAX:,} batches here wait until they are due", RETRY_AFTER_MS
        )

    def _check_delay(self, due_ms: int) -> None:
        # A client counts from the last stamp that it saw, which may be ahead of the time.
        if due_ms > milliseconds_of(self._context.clock.last) + DELAY_MS_MAX:
            days = DELAY_MS_MAX // _DAY_MS
            raise BadRequest(f"a message is due in over {days} days: delay it by less")
        if any(map(self.keep_order, self._of)) or any(
            one.keeps_order for one in self._context.state.clusters.values()
        ):
            raise BadRequest(
                "a keyed or ordered cluster reads this partition, and would wait for a delayed "
                "message: publish it without delay, or to a topic that only shared clusters read"
            )

    def delayed(self, name: str) -> int:
        """Return how many messages a cluster passed by because they are not due."""
        picker = self._of.get(name)
        return 0 if picker is None else picker.delayed


def _said(tags: frozenset[str]) -> str:
    if not tags:
        return "messages of all tags"
    names = ", ".join(repr(tag) if tag else "none" for tag in sorted(tags))
    return f"messages with the tags {names} alone"
