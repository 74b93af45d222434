"""A partition without a quorum stops the readers of its own order, and nobody else's."""

from __future__ import annotations

from typing import Any

from weir.model.batch import split
from weir.order.barrier import Barrier, Merge, Roster
from weir.protocol.client import messages as m

_BYTES_MAX = 1 << 20


class InOrder:
    """Reads a topic in total order, by the merge that clients use; ask it with `read`."""

    def __init__(self, trio: Any, info: m.TopicInfo) -> None:
        self.trio, self.info = trio, info
        partitions = range(len(info.addresses))
        self.merge: Merge[bytes] = Merge(
            Roster(partitions), dict.fromkeys(partitions, 0), _BYTES_MAX
        )
        self.given: list[bytes] = []

    def read(self) -> list[bytes]:
        """Return all that was given, after another look at what can be reached."""
        trio = self.trio
        for partition, address in enumerate(self.info.addresses):
            if all(node.group(address.group) is None for node in trio.live()):
                continue  # whoever has it is away
            request = m.Fetch(address, self.merge.next(partition), _BYTES_MAX)
            for payload in trio.answer(trio.leader(address.group), request).batches:
                for batch in split(payload, address.group):
                    header = batch.header
                    (value,) = batch.values()
                    self.merge.push(
                        partition, header.stamp, header.first_offset, header.next_offset,
                        header.total_size, value,
                    )  # fmt: skip
        barriers = trio.answer(trio.live()[0], m.AskBarriers(self.info.id, 0, 200))
        for partition, stamp, through in barriers.registers:
            self.merge.barrier(partition, Barrier(stamp, through))
        self.given += [merged.item for merged in self.merge.take()]
        return self.given


def test_a_partition_without_a_quorum_stops_its_own_order_and_no_other(
    trio: Any, produce: Any
) -> None:
    stopped = trio.topic("stopped", partitions=3, replicas=1)
    other = trio.topic("other", partitions=3)
    grant = trio.producer()

    def publish(info: m.TopicInfo, partition: int, sequence: int, value: bytes) -> None:
        request = produce(info, grant, sequence, value, partition=partition)
        assert isinstance(trio.told(request, info.addresses[partition].group), m.Confirm)

    for partition in range(3):
        publish(stopped, partition, 0, b"s%d" % partition)
        publish(other, partition, 0, b"o%d" % partition)
    readers = {name: InOrder(trio, info) for name, info in (("s", stopped), ("o", other))}
    assert readers["s"].read() == [b"s0", b"s1", b"s2"]
    assert readers["o"].read() == [b"o0", b"o1", b"o2"]

    registry = trio.leader().id
    away = next(
        node
        for node in trio.live()
        if node.id != registry and any(node.group(a.group) for a in stopped.addresses)
    )
    (gone,) = (p for p, a in enumerate(stopped.addresses) if away.group(a.group))
    here = (gone + 1) % 3
    away.kill()
    for partition in range(3):
        publish(other, partition, 1, b"more%d" % partition)
    publish(stopped, here, 1, b"waits")
    for _ in range(3):
        assert readers["o"].read()[3:] == [b"more0", b"more1", b"more2"]
        assert readers["s"].read()[3:] == []
        trio.run(1_000)
    assert readers["s"].merge.held, "it was not even read"

    away.boot()
    publish(stopped, gone, 1, b"back")
    assert readers["s"].read()[3:] == [b"waits", b"back"]
    assert readers["o"].read()[3:] == [b"more0", b"more1", b"more2"]
