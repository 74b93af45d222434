"""Rules of the client that publishes and scatters, of large values, delays and schemas, that can be
taken away.
"""

from __future__ import annotations

from dataclasses import replace

from weir.broker.consumers.picker import PickerContext
from weir.order.clock import milliseconds_of
from weir_lab.sim.mutants.planting import Patch, bug, mutant
from weir_lab.sim.outcome import CRASH
from weir_lab.sim.shape import NODE_PARCELS, NODE_READS, SET, SET_READS

#: Three nodes over a network that breaks.
THREE = replace(SET, shipped=(True,), rots=(0,), retentions=(0,), takers=(0,), scatterers=(2,))

_CONNECTION = "weir.client.connection.connection"
_PARTITION = "weir.client.producer.partition_sender"
_NETWORK = "weir.client.connection.network_client"
_RECEIPTS = "weir.client.producer.receipts"
_SCATTERING = "weir.client.scattering"
_SEQUENCER = "weir.client.core.sequencer"
#: One node, and nothing in total order, whose stamps may run ahead of the time.
SHAPE = replace(NODE_PARCELS, parcels=(60,), ordered=(0,), takers=(0,), scatterers=(0,), rots=(0,))
#: With versions of a schema.
_NODE_TYPED = replace(NODE_READS, typed=(10,), planners=0, shipped=(True,))
_SET_TYPED = replace(SET_READS, typed=(10,), planners=0, shipped=(True,))
_ROUTER = "weir.broker.router"


@bug(breaks={"OneOffset"})
def a_retry_does_not_keep_its_sequence(patch: Patch) -> None:
    """What is in doubt is sent again under the same producer id and sequence."""
    patch.source(
        _PARTITION,
        "            self._sequencer.lost()\n            return",
        "            self._sequencer.lost()\n            self._routes.renew(self)\n"
        "            return",
    )


@bug(breaks={"Live"})
def what_is_lost_with_a_connection_is_not_sent_again(patch: Patch) -> None:
    """All that is unconfirmed goes out again when a connection has ended."""
    patch.source(
        _SEQUENCER,
        "        self._sends.clear()\n        for held in self.held:\n"
        "            held.correlation = 0\n\n    def resume",
        "        self._sends.clear()\n\n    def resume",
    )


@bug(breaks={"Live", "OneOffset"})
def a_rewind_leaves_out_what_was_refused(patch: Patch) -> None:
    """A pipeline goes back to the batch that was refused, and that one is sent again."""
    patch.source(_SEQUENCER, "if later.sequence >= begin:", "if later.sequence > begin:")


@bug(breaks={"OneOffset", CRASH})
def a_batch_is_sealed_twice(patch: Patch) -> None:
    """A batch that was sealed takes no more messages."""
    patch.source(
        _PARTITION,
        "            if not batcher.ready:\n                batcher.cut()\n",
        "            if not batcher.ready and batcher.gathering is not None:\n"
        "                self._hold(batcher.gathering)\n"
        "                linger.is_over = False\n"
        "                continue\n",
    )


@bug(breaks={"Causal"})
def what_a_producer_has_seen_is_not_told(patch: Patch) -> None:
    """A publish names the highest stamp that its client has seen."""
    patch.source(_PARTITION, "held.seen = held.seen or network.seen", "held.seen = 0")


@bug(breaks={"Causal"})
def only_what_was_seen_last_counts(patch: Patch) -> None:
    """What was seen is the highest stamp of all, not the latest."""
    patch.source(
        _NETWORK,
        "        if stamp > self.seen:\n            self.seen = stamp",
        "        self.seen = stamp",
    )


@bug(breaks={"Causal"})
def what_was_read_is_not_seen(patch: Patch) -> None:
    """What is published behind what a client has read is stamped above it."""
    patch.source(
        "weir.client.reader.fetcher",
        "        for part in delivered:\n            self._network.saw(part.batch.header.stamp)\n",
        "",
    )


@bug(breaks={"Durable"})
def a_flush_waits_for_nothing(patch: Patch) -> None:
    """A flush of a producer returns once all that was sent before is confirmed."""
    patch.source(
        _RECEIPTS,
        "            if batch.result is None:\n"
        "                await self.until_done(batch)\n"
        "        error,",
        "            if batch.result is None:\n                break\n        error,",
    )


@bug(breaks={"Live"})
def who_asked_first_is_not_told_of_a_connections_end(patch: Patch) -> None:
    """All who wait for an answer hear that none will come."""
    patch.source(
        _CONNECTION,
        "for on_answer, correlation in self._session.end():",
        "for on_answer, correlation in self._session.end()[1:]:",
    )


@bug(breaks={"Live"})
def an_early_turn_is_never_given_back(patch: Patch) -> None:
    """A stream of batches is over with its last answer: the next may go by another connection."""
    patch.source(
        _NETWORK,
        "            stream.count -= 1\n            is_left",
        "            stream.count -= 0\n            is_left",
    )


@mutant(seed=13, breaks={"AllOrNone", "Durable", "OneOffset"}, shape=THREE)
def a_producer_id_is_used_again_in_doubt(patch: Patch) -> None:
    """Of a producer id it is known what it sent last, or it scatters nothing more."""
    patch.source(
        _SCATTERING,
        "        except (UnknownTopic, PartitionEnded):\n",
        "        except Exception as error:\n"
        "            if not isinstance(error, UnknownTopic | PartitionEnded):\n"
        "                self.producers.idle.append(producer)\n"
        "                raise\n",
    )


@bug(breaks={"AllOrNone", "Durable"})
def a_scattering_counts_batches(patch: Patch) -> None:
    """A producer id counts on by each message that it scattered to a partition."""
    patch.source(
        _SCATTERING,
        "producer.sequences.get(group, 0) + count",
        "producer.sequences.get(group, 0) + 1",
    )


@bug(breaks={"AllOrNone", "Durable"})
def a_participant_is_forgotten(patch: Patch) -> None:
    """A producer id counts on in each partition that it scattered to."""
    patch.source(
        _SCATTERING,
        "        for group, count in sequences.items():\n",
        "        for group, count in [*sequences.items()][:1]:\n",
    )


@bug(breaks={"AllOrNone", "Durable"})
def receipts_of_a_scattering_do_not_count_on(patch: Patch) -> None:
    """Messages of one scattering in one partition have offsets that follow each other."""
    patch.source(_SCATTERING, "            offsets[group] += 1\n", "")


@bug(breaks={"AllOrNone", "AckedOnce"})
def acks_of_a_scattering_are_left_out(patch: Patch) -> None:
    """What is acked with a scattering is done once the scattering came to be."""
    patch.source(
        _SCATTERING,
        "found_parts += [Part(at, acks=[*clusters.items()]) for at, clusters in done.values()]",
        "parts = parts",
    )


@mutant(seed=10, breaks={"Delivered"}, shape=SHAPE)
def a_large_value_is_closed_without_its_last_piece(patch: Patch) -> None:
    """A large value is closed by references to all of its chunks."""
    patch.source(
        "weir.client.producer.chunker",
        "            extend(runs, (await unconfirmed.confirmed(waiting.popleft())).index)\n"
        "        references",
        "            extend(runs, (await unconfirmed.confirmed(waiting.popleft())).index)\n"
        "        runs = runs[:-1] if len(runs) > 1 else runs\n"
        "        references",
    )


@mutant(seed=8, breaks={"Delivered"}, shape=SHAPE)
def delays_count_from_this_machines_clock(patch: Patch) -> None:
    """A delay counts from what the clock of the broker says."""
    patch.source(
        "weir.client.producer.producer",
        "self._asked = said, steady, wall",
        "self._asked = wall, steady, wall",
    )


@mutant(seed=17, breaks={"Delivered"}, shape=SHAPE)
def delays_follow_a_wall_clock_that_jumps(patch: Patch) -> None:
    """What the clock of the broker says now is counted by a clock that is never set back."""
    patch.source(
        "weir.client.producer.producer", "passed = max(steadily, by_wall)", "passed = by_wall"
    )


@bug(breaks={"Delivered"})
def delays_end_by_stamps(patch: Patch) -> None:
    """What is due is so by the leader's wall clock, which stamps may be ahead of."""
    honest = PickerContext.due_ms

    def due_ms(self: PickerContext) -> int:
        honest(self)
        return milliseconds_of(self.clock.last)

    patch.setattr(PickerContext, "due_ms", due_ms)


@mutant(seed=9, breaks={"Delivered"}, shape=SHAPE)
def the_next_message_says_that_the_one_before_is_done(patch: Patch) -> None:
    """A message is done once that is said, and never because the next one was asked for."""
    patch.source(
        "weir.client.consumer.consumer",
        "        task = asyncio.current_task(settlement.loop)\n",
        "        task = asyncio.current_task(settlement.loop)\n"
        "        for one in [*self._in_hand._holders]:\n"
        "            settlement.done(one)\n",
    )


@mutant(seed=3, breaks={"Delivered"}, shape=SHAPE)
def a_block_that_raises_says_that_its_message_is_done(patch: Patch) -> None:
    """What a block raises gives its message back."""
    patch.source(
        "weir.client.consumer.settlement",
        "            self.give_back(leased, verdict.delay, untried=False)\n",
        "            self.done(leased)\n",
    )


@mutant(seed=30, breaks={"Delivered"}, shape=SHAPE)
def what_is_not_settled_is_acked_when_its_consumer_closes(patch: Patch) -> None:
    """What has no outcome when its consumer is left goes to others."""
    patch.source(
        "weir.client.consumer.leases",
        "        try:\n            is_withdrawn = await self._withdraw()\n",
        "        try:\n            for topic in self.topics.values():\n"
        "                for one in [*topic.held.values()]:\n"
        "                    topic.outcomes.settle(one, one.grant.offset, one.handed)\n"
        "            is_withdrawn = await self._withdraw()\n",
    )


@mutant(seed=69, breaks={"SchemaNamed"}, shape=_SET_TYPED)
def a_node_that_is_cut_off_lists_versions(patch: Patch) -> None:
    """Versions are listed by a node whose registry has all that anybody was told."""
    patch.source(_ROUTER, "        if not self._trunks.in_sync:  #", "        if False:  #")


@bug(breaks={"SchemaNamed"})
def an_unknown_version_is_refused_at_once(patch: Patch) -> None:
    """A version that is not known to a leader may have been added a moment ago."""
    patch.source(
        _ROUTER,
        "except (UnknownTopic, UnknownProducer, UnknownSchema, NotTogether) as error:",
        "except (UnknownTopic, UnknownProducer, NotTogether) as error:",
    )


@mutant(seed=0, breaks={"SchemaNamed"}, shape=_NODE_TYPED)
def a_producer_names_no_version(patch: Patch) -> None:
    """A batch names the version that its producer said."""
    patch.source(
        "weir.client.producer.sender",
        "        self._packing = replace(self._packing, schema=asked)\n",
        "        self._packing = replace(self._packing, schema=0)\n",
    )


@mutant(seed=0, breaks={"SchemaNamed"}, shape=_NODE_TYPED)
def a_checkpoint_forgets_schemas(patch: Patch) -> None:
    """A registry that is restored has its schemas."""
    patch.source(
        "weir.broker.metadata.catalog",
        "for topic, *row in (row for known in later_parts[:1] for row in known):",
        "for topic, *row in ():",
    )


@mutant(seed=1, breaks={"SchemaNamed"}, shape=_NODE_TYPED)
def what_is_asked_again_is_another_version(patch: Patch) -> None:
    """A schema that is a version already keeps its number."""
    patch.source(
        "weir.broker.metadata.schemas",
        "            if one[:3] == written:\n",
        "            if one[:3] == written and number == 0:\n",
    )
