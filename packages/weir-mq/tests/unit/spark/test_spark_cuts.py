"""Bounds by stamp become exact offsets, whatever portion of the log an answer covers."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.errors import BadOption, OffsetOutOfRange
from weir.model.batch import HEADER_SIZE, stamped
from weir.model.batch_builder import encode
from weir.model.ids import Address, group_of
from weir.protocol.client.messages import Fetched, PositionsReply, TopicInfo
from weir.spark import blocking_client, cuts
from weir.spark.cuts import Cuts
from weir.spark.options import Earliest, Latest, Offsets, Options, Stamped
from weir.spark.planning import Range
from weir.spark.source import BatchReader, Task

OPTIONS = Options("t", (("broker", 1),))
PER_BATCH = 2


class Broker:
    """Partitions of batches of two messages: a list of stamps each, `entry` batches an entry."""

    def __init__(self, *partitions: list[int], entry: int = 3, start: int = 0) -> None:
        self.partitions = partitions
        self.entry = entry
        self.start = start
        self.fetched = 0
        #: Where retention has come to when something is fetched.
        self.next_start = 0

    def describe(self, topic: str) -> TopicInfo:
        places = [Address(0, 0, group_of(1, p)) for p in range(len(self.partitions))]
        return TopicInfo(1, "default", topic, "partition", places)

    def positions(self, topic: str, stamp: int = 0) -> tuple[TopicInfo, list[PositionsReply]]:
        return self.describe(topic), [self._place(stamps, stamp) for stamps in self.partitions]

    def await_partitions(self, topic: str, info: TopicInfo, count: int) -> TopicInfo:
        return self.describe(topic)

    def _place(self, stamps: list[int], stamp: int) -> PositionsReply:
        """As a broker does: the offset at which the entry begins that holds such a stamp."""
        end, at = PER_BATCH * len(stamps), self.start
        for first in range(0, len(stamps), self.entry):
            if max(stamps[first : first + self.entry]) >= stamp:
                at = max(PER_BATCH * first, self.start)
                break
        else:
            at = end
        return PositionsReply(self.start, end, at)

    def fetch(self, address: Address, offset: int, max_bytes: int) -> Fetched:
        """One batch an answer, so that a bound lies several answers away."""
        self.fetched += 1
        self.start = max(self.start, self.next_start)
        if offset < self.start:
            raise OffsetOutOfRange(f"offset {offset} is not there", self.start)
        stamps = self.partitions[address.group & 0xFFFF]
        number = offset // PER_BATCH
        first = number * PER_BATCH
        raw = encode([b"a", b"b"], group=address.group)
        data = stamped(raw, stamps[number], first) + bytes(raw[HEADER_SIZE:])
        return Fetched(address, offset, first + PER_BATCH, PER_BATCH * len(stamps), (data,))

    def resolve_cut(self, request: object) -> None:
        """As a broker of a release that does not resolve them."""

    def close(self) -> None:
        pass


def use(monkeypatch: pytest.MonkeyPatch, broker: Broker) -> Broker:
    monkeypatch.setattr(blocking_client, "BlockingClient", lambda *_: broker)
    monkeypatch.setattr(blocking_client, "_kept", {})
    return broker


@pytest.fixture
def patch() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patched:
        yield patched


@given(
    gaps=st.lists(st.integers(1, 3), min_size=1, max_size=12),
    entry=st.integers(1, 5),
    stamp=st.integers(0, 40),
)
def test_a_bound_by_stamp_is_exact(gaps: list[int], entry: int, stamp: int) -> None:
    stamps = [sum(gaps[: n + 1]) for n in range(len(gaps))]
    with pytest.MonkeyPatch.context() as patched:
        use(patched, Broker(stamps, entry=entry))
        cut = Cuts(OPTIONS).resolve("startingTime", Stamped(stamp))
    assert cut.positions == {0: PER_BATCH * sum(s < stamp for s in stamps)}


def test_few_bounds_are_remembered(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cuts, "_FOUND_MAX", 3)
    use(patch, Broker([*range(10, 60)]))
    made = Cuts(OPTIONS)
    sizes = []
    for stamp in range(12, 40):
        assert made.resolve("startingOffsets", Stamped(stamp)).positions == {0: 2 * (stamp - 10)}
        sizes.append(len(pickle.dumps(made)))
    assert max(sizes) == max(sizes[:3])


def test_a_bound_that_was_found_is_not_looked_for_again(patch: pytest.MonkeyPatch) -> None:
    broker = use(patch, Broker([1, 2, 3, 4]))
    cuts = Cuts(OPTIONS)
    assert cuts.resolve("endingTime", Stamped(3)).positions == {0: 4}
    looked = broker.fetched
    assert cuts.resolve("endingTime", Stamped(3)).positions == {0: 4}
    assert broker.fetched == looked
    # One that is not there yet is: it appears with the data.
    assert cuts.resolve("endingTime", Stamped(5)).positions == {0: 8}
    broker.partitions[0].extend([5, 6])
    assert cuts.resolve("endingTime", Stamped(5)).positions == {0: 8}
    broker.partitions[0].append(9)
    assert cuts.resolve("endingTime", Stamped(7)).positions == {0: 12}


def test_retention_that_goes_on_moves_a_bound_up(patch: pytest.MonkeyPatch) -> None:
    broker = use(patch, Broker([1, 2, 3, 4], entry=4))
    broker.next_start = 4
    assert Cuts(OPTIONS).resolve("startingTime", Stamped(2)).positions == {0: 4}


def planned(options: Options) -> list[Range]:
    tasks = BatchReader(options).partitions()
    return [one.range for task in tasks if isinstance(task, Task) for one in task.portions]


@pytest.mark.parametrize(
    ("starting", "ending", "expected"),
    [
        (Earliest(), None, [Range(0, 0, 8), Range(1, 0, 4)]),
        (Offsets({0: 3}), Offsets({1: 1}), [Range(0, 3, 8), Range(1, 0, 1)]),
        (Stamped(20), Stamped(30), [Range(0, 2, 4), Range(1, 0, 2)]),
        (Stamped(99), Latest(), []),
    ],
)
def test_a_table_is_what_lies_between_its_bounds(
    patch: pytest.MonkeyPatch, starting: object, ending: object, expected: list[Range]
) -> None:
    use(patch, Broker([10, 20, 30, 40], [25, 35]))
    assert planned(Options("t", OPTIONS.hosts, starting, ending)) == expected  # type: ignore[arg-type]


def test_bounds_that_are_not_there_are_refused(patch: pytest.MonkeyPatch) -> None:
    use(patch, Broker([10, 20]))
    for starting, ending, text in [
        (Offsets({1: 0}), None, "has partitions 0 to 0"),
        (Offsets({0: 5}), None, "0 to 4"),
        (Earliest(), Offsets({0: 5}), "0 to 4"),
        (Offsets({0: 3}), Offsets({0: 2}), "begin at offset 3 of t/0 and end at 2"),
        (Stamped(20), Stamped(10), "begin at offset 2 of t/0 and end at 0"),
    ]:
        with pytest.raises(BadOption, match=text):
            planned(Options("t", OPTIONS.hosts, starting, ending))
