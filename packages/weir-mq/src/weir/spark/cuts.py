"""What a query asks of the broker while it is planned: where its topic stands, as cuts.

A bound given by time or barrier becomes a cut here, exactly: the broker answers by entries, which
hold several batches, so the first batches from there on are looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from weir.client.core.delivered_batches import deliver
from weir.errors import OffsetOutOfRange, UnknownTopic
from weir.model.ids import Address
from weir.model.limits import KIB, MIB
from weir.protocol.client.messages import PositionsReply, TopicInfo
from weir.spark.blocking_client import BlockingClient
from weir.spark.bounds import Bound, Earliest, Latest, Offsets, Stamped
from weir.spark.connections import ask
from weir.spark.errors import BadOption
from weir.spark.options import EVERYTHING, Options
from weir.spark.planning import Cut
from weir.spark.selection import Selection

T = TypeVar("T")
#: Asked for where a bound is looked for: mostly it lies in the first entry, so more comes later.
_LOOK_BYTES = 4 * KIB
_MORE = 8


@dataclass(frozen=True)
class Standing:
    """A topic as of one moment: where each partition begins and ends."""

    info: TopicInfo
    places: list[PositionsReply]
    #: Of them, those that the query reads.
    selection: Selection = EVERYTHING

    @property
    def partitions(self) -> list[int]:
        """The partitions that the query reads."""
        return [p for p in range(len(self.places)) if self.selection.reads(p)]

    @property
    def begin(self) -> Cut:
        """The first offsets that are still there."""
        return Cut(self.info.id, {p: self.places[p].start for p in self.partitions})

    @property
    def end(self) -> Cut:
        """The offsets behind the last committed messages."""
        return Cut(self.info.id, {p: self.places[p].end for p in self.partitions})


@dataclass
class Cuts:
    """Resolves bounds for one topic; picklable, as it holds no connection."""

    options: Options
    #: (partition, stamp) of bounds that were found: they never move again.
    _found: dict[tuple[int, int], int] = field(default_factory=dict)
    #: So many partitions the topic has at least, though a node may not have heard of all of them.
    _least: int = 0

    def expect(self, partitions: Iterable[int]) -> None:
        """Take it that the topic has these: a node that has not heard of them is asked until it
        has, or is sure that they are not there.
        """
        self._least = max([self._least, *(partition + 1 for partition in partitions)])

    def standing(self, stamp: int = 0) -> Standing:
        """Ask where the topic stands; `at` of each place is meant for `stamp`.

        Raises `BadOption` if the query selects partitions that are not there.
        """
        topic, selection = self.options.topic, self.options.selection
        self.expect(selection.partitions or ())

        def question(client: BlockingClient) -> tuple[TopicInfo, list[PositionsReply]]:
            found = client.positions(topic, stamp)
            if len(found[1]) < self._least:
                client.await_partitions(topic, found[0], self._least)
                found = client.positions(topic, stamp)
            return found

        info, places = self.ask(question)
        if missing := sorted((selection.partitions or frozenset()) - set(range(len(places)))):
            raise BadOption(
                f"option partitions names partition {missing[0]}; {self.options.topic} has "
                f"partitions 0 to {len(places) - 1}"
            )
        return Standing(info, places, selection)

    def describe(self) -> TopicInfo:
        """Ask where the topic's partitions are served. Raises `UnknownTopic`."""

        def question(client: BlockingClient) -> TopicInfo:
            info = client.describe(self.options.topic)
            if len(info.addresses) < self._least:
                info = client.await_partitions(self.options.topic, info, self._least)
            return info

        return self.ask(question)

    def resolve(self, name: str, bound: Bound) -> Cut:
        """Return the cut that a bound means now; `name` is its option's, for errors.

        Raises `BadOption` for offsets that are not there.
        """
        match bound:
            case Earliest():
                return self.standing().begin
            case Latest():
                return self.standing().end
            case Offsets(by_partition):
                self.expect(by_partition)
                standing = self.standing()
                self._check(name, by_partition, standing)
                rest = standing.end if name.startswith("ending") else standing.begin
                return Cut(rest.epoch, {**rest.positions, **by_partition})
            case Stamped(stamp):
                standing = self.standing(stamp)
                return Cut(standing.info.id, self.first_from(standing, stamp))

    def first_from(self, standing: Standing, stamp: int) -> dict[int, int]:
        """Return each partition's first offset stamped `stamp` or later; its end if there is none.

        `standing` must have been asked for this stamp.
        """
        return {
            partition: self._exact(standing, partition, stamp) for partition in standing.partitions
        }

    def _exact(self, standing: Standing, partition: int, stamp: int) -> int:
        place = standing.places[partition]
        known = self._found.get((partition, stamp))
        if known is not None:
            return min(max(known, place.start), place.end)
        at = self._first_stamped(standing.info, partition, stamp, place.at, place.end)
        if at < place.end:
            self._found[partition, stamp] = at
        return at

    def first_above(
        self, info: TopicInfo, partition: int, stamp: int, begin: int, behind: int
    ) -> int:
        """Return the first offset in [begin, behind) stamped above `stamp`, or `behind`."""
        return self._first_stamped(info, partition, stamp + 1, begin, behind)

    def _first_stamped(
        self, info: TopicInfo, partition: int, stamp: int, at: int, behind: int
    ) -> int:
        size = _LOOK_BYTES
        while at < behind:
            address, topic = info.addresses[partition], self.options.topic
            found, at = self.ask(_first_stamped(address, topic, partition, at, stamp, size))
            if found:
                break
            size = min(size * _MORE, MIB)
        return min(at, behind)

    def _check(self, name: str, given: Mapping[int, int], standing: Standing) -> None:
        topic, places = self.options.topic, standing.places
        for partition, offset in given.items():
            if not 0 <= partition < len(places):
                raise BadOption(
                    f"{name} names partition {partition}; {topic} has partitions 0 to "
                    f"{len(places) - 1}"
                )
            if not standing.selection.reads(partition):
                raise BadOption(
                    f"{name} names partition {partition}, which the option partitions leaves out"
                )
            first, behind = places[partition].start, places[partition].end
            if not first <= offset <= behind:
                raise BadOption(
                    f"{name} names offset {offset:,} of {topic}/{partition}, which holds "
                    f"{first:,} to {behind:,}"
                )

    def ask(self, question: Callable[[BlockingClient], T]) -> T:
        """Ask a broker for half a minute if need be. Raises `UnknownTopic`."""
        options = self.options
        try:
            return ask(options.hosts, question)
        except UnknownTopic as error:
            places = ", ".join(f"{host}:{port}" for host, port in options.hosts)
            raise UnknownTopic(
                f"{places} has no topic {options.topic!r}: check the options topic and url, or "
                f"create it with `weir topic create {options.topic}`"
            ) from error


def _first_stamped(
    address: Address, topic: str, partition: int, at: int, stamp: int, max_bytes: int
) -> Callable[[BlockingClient], tuple[bool, int]]:
    """Return a question: is the bound in the next portion from `at` on, and where, or how far."""

    def question(client: BlockingClient) -> tuple[bool, int]:
        try:
            fetched = client.fetch(address, at, max_bytes)
        except OffsetOutOfRange as error:
            if error.detail <= at:
                raise
            # Retention goes on: nothing is left before that. If the query has not read it, it is
            # told when it comes to read.
            return False, error.detail
        behind = fetched.next_offset
        for part in deliver(fetched.batches, address.group, topic, partition, at, behind):
            if part.batch.header.stamp >= stamp:
                return True, part.offset
        # With nothing there the end has been reached: no offset is skipped by giving up here.
        return behind <= at, max(behind, at)

    return question
