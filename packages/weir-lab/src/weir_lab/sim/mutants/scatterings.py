"""Rules of scatterings, and of partitions that end, that can be taken away."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weir.broker.barriers.topic_order import Ends
from weir.broker.partition import fetches
from weir.broker.partition.partition import Partition, PartitionLeader
from weir.broker.produce.appender import Appender
from weir.broker.runtime.outbox import Caller
from weir.broker.scattering.coordinator import Scattering
from weir.broker.scattering.participant import Participant
from weir.broker.state import scatterings, state
from weir.broker.state.clusters import ClusterState
from weir.broker.state.ranges import Ranges
from weir.broker.state.scatterings import Taken
from weir.broker.state.state import PartitionState
from weir.codec import Buffer
from weir.model.ids import Attempt
from weir.model.topic import Topic
from weir.order.barrier import Barrier, barrier_at
from weir.protocol.client.order import ReportEnded
from weir_lab.sim.mutants.order import ORDER
from weir_lab.sim.mutants.planting import Patch, mutant
from weir_lab.sim.programs.publishers.atomic import PublishAttempt
from weir_lab.sim.programs.publishers.scatterers import Scatterer
from weir_lab.sim.shape import NODE_ENDING

#: Three clients scatter, and half of the time for what they are granted.
SCATTERED = replace(ORDER, ordered=(1,), scatterers=(3,), takers=(0,), producers=2, batches=20)

_PARTS = {"AllOrNone", "OneOrder", "BarrierHolds"}
_SEEN = {"AllOrNone", "Durable", "OneOrder", "BarrierHolds"}
_BARRIER = {"BarrierHolds", "OneOrder"}
#: Those who publish to the partition that ends do so for longer.
BUSY = replace(NODE_ENDING, batches=40, device_messages=40, shipped=(False,))


@mutant(seed=0, breaks=_PARTS, shape=SCATTERED)
def half_of_the_prepares_decide(patch: Patch) -> None:
    """A scattering is committed once all its parts are prepared (ADR 0024, step 3)."""
    honest = Scattering._judge

    def judge(self: Scattering) -> None:
        own = sum(map(self._is_own, self._answers.values()))
        if 2 * own >= len(self._parts):
            self._commit()
        else:
            honest(self)

    patch.setattr(Scattering, "_judge", judge)


@mutant(seed=135, breaks=_PARTS, shape=SCATTERED)
def never_is_said_without_a_bar(patch: Patch) -> None:
    """What is said never to be prepared is barred first, by an entry (ADR 0024, recovery)."""

    def ask(self: Participant, key: tuple[Attempt, bool], caller: Caller) -> None:
        self._reports.answer(caller, self._standing(key))

    patch.setattr(Participant, "_ask", ask)


@mutant(seed=0, breaks=_PARTS | {"OneOffset", "RisingStamps"}, shape=SCATTERED)
def who_asks_again_scatters_again(patch: Patch) -> None:
    """A retry is told the stamp of the attempt that was committed (ADR 0024, exactly once)."""

    def decide_batch(self: PartitionState, attempt: Attempt, committed: bool) -> bool:
        prepared = self.scatterings.decide_batch(attempt, committed)
        if prepared is not None and not committed:
            self.bar(attempt.stamp)
            self._skip(prepared.answer.offset, prepared.behind)
        return prepared is not None

    patch.setattr(PartitionState, "decide_batch", decide_batch)


@mutant(seed=1, breaks=_SEEN, shape=SCATTERED)
def readers_do_not_wait_for_decisions(patch: Patch) -> None:
    """Readers of every mode stop before what is undecided (DESIGN §5 Scattering)."""
    patch.setattr(PartitionState, "decided_offset", property(lambda self: self.next_offset))


@mutant(seed=0, breaks=_PARTS, shape=SCATTERED)
def a_barrier_goes_by_what_is_undecided(patch: Patch) -> None:
    """The barrier stays below the stamp of what is undecided (ADR 0024, readers)."""

    def barrier(self: PartitionLeader, fenced: int) -> Barrier:
        under_way = self.appender.lowest_under_way
        return barrier_at(fenced, self._state.last_stamp, under_way, self._state.decided_offset)

    patch.setattr(PartitionLeader, "barrier", barrier)


@mutant(seed=0, breaks=_SEEN, shape=SCATTERED)
def what_is_void_is_given(patch: Patch) -> None:
    """Fetches leave the batches of aborted attempts out (ADR 0024, readers)."""

    def without(payloads: Sequence[Buffer], voids: Ranges) -> list[Buffer]:
        return list(payloads)

    patch.setattr(fetches, "without", without)


@mutant(seed=1, breaks=_PARTS | {"AckedOnce"}, shape=SCATTERED)
def acks_of_what_is_not_held(patch: Patch) -> None:
    """What a scattering acks must be held by the grants that it names (ADR 0024, step 2)."""
    honest = scatterings.put_aside

    def put_aside(
        cluster: ClusterState, name: str, fence: int, ranges: Sequence[tuple[int, int, int]]
    ) -> list[Taken]:
        return honest(cluster, name, fence, ranges) or []

    patch.setattr(state, "put_aside", put_aside)
    patch.setattr(Participant, "_check_held", lambda self, acks: None)


@mutant(seed=3, breaks={"AllOrNone"}, shape=SCATTERED)
def a_client_scatters_on_under_an_id_whose_end_it_does_not_know(patch: Patch) -> None:
    """Who never learns what became of a scattering uses its producer id no more (ADR 0024)."""

    def die(self: Scatterer, held: PublishAttempt) -> None:
        if not held.is_over:
            self._over(held)
            self._hang_up(None)

    patch.setattr(Scatterer, "_die", die)


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
        if state.membership.sealed:
            stamp = state.undecided - 1 if state.undecided else state.membership.sealed
            self._tell(ReportEnded(topic.id, partition, stamp, state.decided_offset))
        else:
            honest(self, found, topic, partition)

    patch.setattr(Ends, "_seal", seal)


@mutant(seed=1, breaks=_BARRIER, shape=BUSY)
def who_leads_next_opens_a_sealed_partition(patch: Patch) -> None:
    """A seal is an entry: every leader goes by it (docs/adr/0031)."""
    patch.setattr(Appender, "check_open", lambda self: None)
