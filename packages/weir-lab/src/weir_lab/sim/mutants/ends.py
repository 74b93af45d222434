"""Rules of partitions that end that can be taken away."""

from __future__ import annotations

from dataclasses import replace

from weir.broker.barriers.membership import Ends
from weir.broker.partition.partition import Partition
from weir.broker.produce.appender import Appender
from weir.model.topic import Topic
from weir.protocol.client.barriers import ReportEnded
from weir_lab.sim.mutants.planting import Patch, mutant
from weir_lab.sim.shape import NODE_ENDING

_BARRIER = {"BarrierHolds", "OneOrder"}
#: Those who publish to the partition that ends do so for longer.
BUSY = replace(NODE_ENDING, batches=40, device_messages=40, shipped=(False,))


@mutant(seed=1, breaks=_BARRIER, shape=BUSY)
def a_partition_ends_without_its_seal(patch: Patch) -> None:
    """What the order waits for no more takes no messages any more, by an entry of its own group."""

    def seal(self: Ends, found: Partition, topic: Topic, partition: int) -> None:
        state = found.state
        self._tell(ReportEnded(topic.id, partition, state.last_stamp, state.next_offset))

    patch.setattr(Ends, "_seal", seal)


@mutant(seed=1, breaks=_BARRIER, shape=replace(BUSY, scatterers=(3,)))
def a_partition_ends_before_its_last_message(patch: Patch) -> None:
    """What is undecided when a partition is sealed belongs to it still (docs/adr/0031)."""
    honest = Ends._seal

    def seal(self: Ends, found: Partition, topic: Topic, partition: int) -> None:
        state = found.state
        if state.sealed:
            stamp = state.undecided - 1 if state.undecided else state.sealed
            self._tell(ReportEnded(topic.id, partition, stamp, state.decided_offset))
        else:
            honest(self, found, topic, partition)

    patch.setattr(Ends, "_seal", seal)


@mutant(seed=1, breaks=_BARRIER, shape=BUSY)
def who_leads_next_opens_a_sealed_partition(patch: Patch) -> None:
    """A seal is an entry: every leader goes by it (docs/adr/0031)."""
    patch.setattr(Appender, "check_open", lambda self: None)
