"""Rules of dedupe, fencing, values in chunks, sinks, devices and access that can be taken away.

Not planted of access is what clients cannot reach, because they check it themselves: a login's
proof, the parts of a scattering; and what another shard looks at again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weir.broker.devices.proofs import Proofs
from weir.broker.forwarding import registry_feed
from weir.broker.metadata.security.fleets import Device, Fleets
from weir.broker.partition import topics
from weir.broker.partition.topics import Topics
from weir.broker.produce.appender import Appender, Pending
from weir.broker.records.entries import BatchRecord
from weir.broker.records.security import DeviceReplaced
from weir.broker.replica.group import Group
from weir.broker.router import Requests
from weir.broker.runtime.reads import PublishedReading
from weir.broker.state.dedupe import OriginTable
from weir.broker.state.large_values import ValuesUnderWay, ValueTable
from weir.broker.state.producers import Answer, ProducerTable
from weir.broker.state.staging import OpenRun, Published, StagingTable
from weir.broker.state.state import PartitionState
from weir.codec import Buffer
from weir.model.batch import Header
from weir.model.columns import StagedRun, boot_of
from weir.model.ids import WINDOW_AT
from weir.protocol.client.messages import Confirm
from weir_lab.sim.mutants.planting import Patch, mutant
from weir_lab.sim.scenarios.audited_changes import play_audited_changes
from weir_lab.sim.scenarios.cut_off_shards import play_cut_off_shards
from weir_lab.sim.scenarios.revocations import play_revocations
from weir_lab.sim.shape import NODE_READS, NODE_REPLACED, SET, SET_READS, SET_REPLACED, Shape

_ROUTER = "weir.broker.router"
_AUDITOR = "weir.broker.audit.auditor"
_CUTOFF = "weir.broker.metadata.security.cutoff"
_LISTING = "weir.broker.listing"
_SESSION = "weir.broker.runtime.session"

#: One producer id, and four who take it from each other.
QUARREL = Shape(
    authors=4,
    producers=1,
    hubs=0,
    consumers=0,
    keepers=0,
    receivers=0,
    operators=(False,),
    rots=(0,),
)


@mutant(seed=19, breaks={"OneOffset", "RisingStamps"})
def dedupe_missing_from_a_snapshot(patch: Patch) -> None:
    """A snapshot forgets who wrote what (counterexample 13)."""
    patch.setattr(ProducerTable, "encode", lambda self: [])
    patch.setattr(ProducerTable, "encode_narrow", lambda self: [])
    patch.setattr(OriginTable, "encode", lambda self: [])


@mutant(seed=5, breaks={"OneOffset"})
def rings_are_shorter_than_their_windows(patch: Patch) -> None:
    """As many answers are kept as may be asked for (ADR 0147)."""
    honest = ProducerTable.answer

    def answer(self: ProducerTable, producer: int, sequence: int) -> Answer | None:
        known, found = self.known(producer), honest(self, producer, sequence)
        if known is None or found is None or not producer >> WINDOW_AT:
            return found
        return found if found.sequence + found.messages == known.next_sequence else None

    patch.setattr(ProducerTable, "answer", answer)


@mutant(seed=2, breaks={"OneOffset", "RisingStamps"})
def dedupe_by_applied_state_only(patch: Patch) -> None:
    """What is pending is not looked at (counterexample 14)."""
    honest = Appender.judge

    def judge(self: Appender, header: Header) -> Pending | Confirm | None:
        ahead, flying = self._ahead, self.flying
        self._ahead, self.flying = {}, {}
        try:
            return honest(self, header)
        finally:
            self._ahead, self.flying = ahead, flying

    patch.setattr(Appender, "judge", judge)


@mutant(seed=3, breaks={"OneOffset", "RisingStamps"}, shape=SET)
def a_producer_is_forgotten_at_its_first_commit(patch: Patch) -> None:
    """While more of a producer's batches are under way, what is known of it includes them: a repeat
    of one is no new batch (counterexample 14).
    """
    honest = Appender.committed

    def committed(self: Appender, record: BatchRecord) -> Pending | None:
        pending = honest(self, record)
        self._ahead.pop(record.producer, None)
        return pending

    patch.setattr(Appender, "committed", committed)


@mutant(seed=25, breaks={"Durable"})
def repeat_answered_before_the_commit(patch: Patch) -> None:
    """A repeat of a pending batch is told where it will be, if the power lasts (DESIGN §5)."""
    honest = Appender.judge

    def judge(self: Appender, header: Header) -> Pending | Confirm | None:
        verdict = honest(self, header)
        if isinstance(verdict, Pending):
            return Confirm(verdict.record.offset, verdict.record.stamp, True)
        return verdict

    patch.setattr(Appender, "judge", judge)


@mutant(seed=2, breaks={"Durable", "OneOffset", "RisingStamps"})
def an_earlier_term_is_taken_for_the_own(patch: Patch) -> None:
    """A leader takes proposals before all it inherited is applied (counterexample 14)."""
    patch.setattr(Group, "begins_own_term", lambda self, index: True)


@mutant(seed=12, breaks={"Fenced"})
def a_fence_waits_for_nobody_away(patch: Patch) -> None:
    """A new epoch is told before a shard that is away has heard of it (ADR 0009 §5)."""
    patch.setattr(registry_feed, "is_fence", lambda record: False)
    patch.setattr(
        registry_feed.HeldReplies,
        "_may_leave",
        lambda self, held: self._topics.is_settled(held.record),
    )


@mutant(seed=4, breaks={"Fenced"})
def a_fence_leaves_what_is_under_way(patch: Patch) -> None:
    """A new epoch is told while batches of the old one wait for their commit (ADR 0009 §5)."""
    patch.setattr(Topics, "_appenders", lambda self: iter(()))


@mutant(seed=8, breaks={"Fenced"})
def epochs_are_not_compared(patch: Patch) -> None:
    """An old epoch goes on where the new one has not written yet (DESIGN §5 Dedupe)."""
    patch.setattr(Requests, "_own", lambda self, *_: None)


@mutant(seed=33, breaks={"Fenced"}, shape=QUARREL)
def positions_of_a_log_that_is_not_applied(patch: Patch) -> None:
    """A partition that starts says where it ended long ago (RealTime; seed 46 found it)."""
    patch.setattr(topics, "_check_applied", lambda partition: None)


@mutant(seed=3, breaks={"Honest"})
def chunks_of_an_ended_epoch_are_taken(patch: Patch) -> None:
    """A value goes on where an older epoch left it (ADR 0007 §4)."""
    honest = ValuesUnderWay._size

    def size(self: ValuesUnderWay, producer: int, epoch: int, now_ms: int) -> int:
        value = self._values.open(producer)
        return honest(self, producer, value.epoch if value else epoch, now_ms)

    patch.setattr(ValueTable, "at", lambda self, producer, epoch, stamp: None)
    patch.setattr(ValuesUnderWay, "_size", size)


@mutant(seed=10, breaks={"Durable"})
def chunks_are_past_retention(patch: Patch) -> None:
    """The chunks of a value go before its message does (ADR 0007 §6)."""
    patch.setattr(ValueTable, "first_needed_index", lambda self, index, *_: index)


@mutant(seed=83, breaks={"OneOffset"})
def open_values_are_not_in_snapshots(patch: Patch) -> None:
    """A checkpoint forgets the values that grow (counterexample 13)."""
    honest = ValueTable.encode

    def encode(self: ValueTable) -> object:
        state = honest(self)
        assert isinstance(state, tuple)
        return [], *state[1:]

    patch.setattr(ValueTable, "encode", encode)


#: Two queries write, and the topic that they write to is read in total order.
NODE_SUNK = replace(NODE_READS, sunk=(8,), typed=(0,), planners=0, shipped=(True,))
SET_SUNK = replace(SET_READS, sunk=(8,), typed=(0,), planners=0, shipped=(True,))


@mutant(seed=3, breaks={"SunkOnce"}, shape=NODE_SUNK)
def a_topic_forgets_what_queries_published(patch: Patch) -> None:
    """Partition 0 remembers the last batch of each query (ADR 0075, 5)."""

    def note_published(self: StagingTable, sink: tuple[str, int], stamp: int) -> None:
        return None

    patch.setattr(StagingTable, "note_published", note_published)


@mutant(seed=10, breaks={"SunkOnce"}, shape=NODE_SUNK)
def a_checkpoint_forgets_queries(patch: Patch) -> None:
    """A snapshot holds what each query has published."""
    patch.source(
        "weir.broker.state.staging",
        "sinks = [(query, *row) for query, row in self.sinks.items()]",
        "sinks = [(query, *row) for query, row in ()]",
    )


@mutant(seed=3, breaks={"SunkOnce", "Crash"}, shape=NODE_SUNK)
def a_batch_of_a_stamp_is_taken_for_all_of_it(patch: Patch) -> None:
    """A register rises to a stamp with the last batch that has it (ADR 0076, 1)."""
    patch.source("weir.order.barrier", "self.roster.report(partition, stamp - 1)",
                 "self.roster.report(partition, stamp)")  # fmt: skip


@mutant(seed=3, breaks={"SunkOnce", "Crash"}, shape=NODE_SUNK)
def no_answer_says_that_it_is_cut(patch: Patch) -> None:
    """An answer that ends within a publication says so (ADR 0075, 6)."""

    def is_cut(self: PublishedReading, payloads: Sequence[Buffer]) -> bool:
        return False

    patch.setattr(PublishedReading, "is_cut", is_cut)


@mutant(seed=3, breaks={"SunkOnce"}, shape=NODE_SUNK)
def runs_are_served_in_another_order(patch: Patch) -> None:
    """A publication gives its runs their offsets in the order in which it names them."""
    honest = Published.add

    def add(self: Published, runs: list[OpenRun], offset: int, stamp: int) -> None:
        honest(self, [*reversed(runs)], offset, stamp)

    patch.setattr(Published, "add", add)


@mutant(seed=3, breaks={"SunkOnce", "Crash"}, shape=SET_SUNK)
def a_repeat_is_staged_again(patch: Patch) -> None:
    """The batches of a run are counted, and a publication says what they come to (ADR 0075, 1)."""

    def is_as(self: OpenRun, said: StagedRun) -> bool:
        return True

    patch.setattr(OpenRun, "is_as", is_as)
    patch.source("weir.broker.produce.staging", "        if request.number < expected:\n",
                 "        if request.number < 0:\n")  # fmt: skip
    patch.source("weir.broker.produce.staging", "        if request.number > expected:\n",
                 "        if request.number > 1 << 40:\n")  # fmt: skip
    patch.source(
        "weir.broker.state.staging",
        "or len(run.indexes) != record.number or number in self.held",
        "or number in self.held",
    )


@mutant(seed=3, breaks={"SunkOnce", "Crash", "Live"}, shape=NODE_SUNK)
def entries_are_given_up_that_were_published(patch: Patch) -> None:
    """Retention keeps the entries that hold published batches (ADR 0075, 4)."""

    def first_needed_index(self: PartitionState, index: int, offset: int, since: int = 0) -> int:
        return self.values.first_needed_index(index, offset, since)

    patch.setattr(PartitionState, "first_needed_index", first_needed_index)


@mutant(seed=3, breaks={"OneOffset", "RealTime"}, shape=NODE_REPLACED)
def rows_hold_no_generation(patch: Patch) -> None:
    """A row says which boot of which generation it is of (ADR 0082 §1)."""
    honest = OriginTable.record

    def record(
        self: OriginTable, hub: int, sn: int, epoch: int, sequence: int, offset: int, hash: int
    ) -> None:
        honest(self, hub, sn, boot_of(epoch), sequence, offset, hash)

    patch.setattr(OriginTable, "record", record)


@mutant(seed=2, breaks={"Fenced"}, shape=NODE_REPLACED)
def a_secret_ends_before_the_next_is_used(patch: Patch) -> None:
    """The device before may come until the new one does (ADR 0082 §4)."""

    def replace_device(self: Fleets, record: DeviceReplaced) -> Device:
        return self._keep(record.hub, Device(record.generation))

    patch.setattr(Fleets, "replace_device", replace_device)


@mutant(seed=0, breaks={"Fenced"}, shape=SET_REPLACED)
def a_shard_refuses_what_it_has_not_heard_of(patch: Patch) -> None:
    """A proof of a generation that is not known yet waits for news (ADR 0083 §3)."""
    patch.setattr(Proofs, "is_ahead", lambda self, hub, generation: False)


@mutant(seed=2, breaks={"Authorized"}, play=play_revocations)
def live_sessions_outlive_their_users(patch: Patch) -> None:
    """When something is taken away, the sessions that had it end."""
    patch.source(
        _ROUTER,
        "if admitted and self._authorizer.still_allows(session):",
        "if admitted or not admitted:",
    )


@mutant(seed=1, breaks={"Authorized"}, play=play_revocations)
def decisions_outlive_changes(patch: Patch) -> None:
    """What a session was allowed counts at that access version alone; and losses end sessions."""
    patch.source(
        _SESSION, "return self._allowed.get(key) if self._version == version else None",
        "return self._allowed.get(key)",
    )  # fmt: skip
    patch.source(
        _ROUTER,
        "if admitted and self._authorizer.still_allows(session):",
        "if admitted or not admitted:",
    )


@mutant(seed=2, breaks={"Authorized"}, play=play_revocations)
def lists_have_what_is_not_there_for_one(patch: Patch) -> None:
    """A list leaves out what its reader may not have described."""
    patch.source(_LISTING, "if not self._authorizer.may_describe(session, topic):", "if False:")


@mutant(seed=4, breaks={"Authorized"}, play=play_cut_off_shards)
def sessions_outlive_the_cut_off(patch: Patch) -> None:
    """A shard without news ends the sessions that it let in (ADR 0095)."""
    patch.source(
        _CUTOFF, "return self._time.monotonic_ms() - since_ms >= self._cutoff_ms", "return False"
    )


@mutant(seed=6, breaks={"Authorized"}, play=play_cut_off_shards)
def a_set_that_watches_has_no_cut_off(patch: Patch) -> None:
    """A set that watches has the cut-off of a closed one (ADR 0106)."""
    patch.source(
        _CUTOFF,
        "return self._time.monotonic_ms() - since_ms >= self._cutoff_ms",
        'return self._catalog.access.mode == "closed" and (\n'
        "            self._time.monotonic_ms() - since_ms >= self._cutoff_ms\n"
        "        )",
    )


@mutant(seed=3, breaks={"Audited"}, play=play_audited_changes)
def who_leads_anew_leaves_out_what_was_not_published(patch: Patch) -> None:
    """What a leader has not published before it is killed is published by the next one."""
    patch.source(
        _AUDITOR,
        "self._next = self._published = self._told = trail.first",
        "self._next = self._published = self._told = trail.first + len(trail)",
    )
