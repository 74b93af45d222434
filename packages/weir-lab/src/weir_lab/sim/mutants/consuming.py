"""Rules of the client that reads and consumes that can be taken away.

Not planted is what no world can show: that what nobody tried is counted as an attempt, for grants
that nobody was handed count too; and rules of pauses, for no simulated consumer has any. Rules of
messages that are settled one by one stand with the parcels.
"""

from __future__ import annotations

from dataclasses import replace

from weir_lab.sim.mutants.planting import Patch, bug, mutant
from weir_lab.sim.shape import NODE_SHIPPED

#: One node on which clients consume in turns, read in total order, and scatter.
ONE = replace(NODE_SHIPPED, takers=(3,), scatterers=(3,), rots=(0,), retentions=(0,))

_ACKING = "weir.client.consumer.acknowledgements"
_BARRIERS = "weir.client.reader.positions"
_MERGING = "weir.client.reader.reader"
_PORTIONS = "weir.client.reader.fetcher"
_PULLING = "weir.client.consumer.pulls"
_READER = "weir.client.reader.reader"
_RETURNING = "weir.client.consumer.acknowledgements"
_SETTLEMENT = "weir.client.consumer.settlement"
_TURNS = "weir.client.consumer.cursor_lease"

_ORDER = {"OneOrder", "ReadWhole", "Durable", "Honest"}


@mutant(seed=3, breaks={"OneOrder", "ReadWhole"}, shape=ONE)
def barriers_are_asked_for_once(patch: Patch) -> None:
    """A cut through the one order lies at one stamp, which every partition has passed."""
    patch.source(
        _BARRIERS,
        "        behind = await self.reached(stamp)\n        begins = {",
        "        behind = before\n        begins = {",
    )


@bug(breaks=_ORDER)
def a_reader_skips_after_an_error(patch: Patch) -> None:
    """The positions of a reader are behind what it has handed out, not behind what it fetched."""
    patch.source(
        _READER,
        "            if self._ready is None:\n                return None\n",
        "            if self._ready is None:\n                return None\n"
        "            self.positions.update(self._ready.positions)\n",
    )


@bug(breaks=_ORDER)
def a_reader_repeats_after_an_error(patch: Patch) -> None:
    """The positions of a reader are behind each message that it has handed out."""
    patch.source(
        _READER,
        "            self.positions[message.partition] = message.offset + 1\n",
        "            pass\n",
    )


@bug(breaks=_ORDER)
def a_reader_passes_over_what_waits_for_the_barrier(patch: Patch) -> None:
    """A reader in total order is not behind what it holds back."""
    patch.source(
        _MERGING,
        "[one for one in self._passed if not self._merge.holds(one)]",
        "[*self._passed]",
    )


@bug(breaks=_ORDER)
def what_a_replica_lacks_is_skipped(patch: Patch) -> None:
    """Where a replica lacks something, the leader is asked."""
    patch.source(
        _PORTIONS,
        "if fetched is not None and _missing(delivered, fetched, position, end):",
        "if fetched is not None and position < 0:",
    )


@bug(breaks=_ORDER)
def a_barrier_counts_before_its_messages_are_here(patch: Patch) -> None:
    """The barrier of an answer holds once all below its offset was received."""
    patch.source(
        _MERGING,
        "Barrier(portion.barrier, portion.committed)",
        "Barrier(portion.barrier, 0)",
    )


@bug(breaks=_ORDER)
def a_barrier_that_was_asked_for_counts_at_once(patch: Patch) -> None:
    """A barrier that was asked for holds once all below its offset was received."""
    patch.source(
        _MERGING,
        "                self._merge.barrier(partition, Barrier(stamp, through))",
        "                self._merge.barrier(partition, Barrier(stamp, 0))",
    )


@bug(breaks={*_ORDER, "Live"})
def who_joins_the_order_is_not_read(patch: Patch) -> None:
    """Partitions that join the order are read from their beginning."""
    patch.source(
        _MERGING,
        "                self._begin(partial(self._pull, partition))",
        "                pass",
    )


@bug(breaks=_ORDER)
def who_joins_the_order_is_read_from_there_on(patch: Patch) -> None:
    """All that lies in a partition which joins the order is new."""
    patch.source(
        _MERGING,
        "self._merge.add(partition, 0)",
        "self._merge.add(partition, 1)",
    )


@mutant(seed=1, breaks={"OneCursor"}, shape=ONE)
def a_turn_is_kept_after_it_was_lost(patch: Patch) -> None:
    """Who is told that its turn is over hands out nothing more of it, and has not done it."""
    behind = "                return\n            self._turn.kept = offsets  # it was done"
    patch.source(_TURNS, "                self._lost(offsets)\n" + behind, behind)


@bug(breaks={"OneCursor"})
def an_ack_in_a_lost_turn_is_believed(patch: Patch) -> None:
    """What is said to be done in a turn is, if the broker knew before that turn was over."""
    patch.source(
        _TURNS,
        "in_time = fence == self._turn.fence or self._turn.was_kept(partition, fence, runs)",
        "in_time = True",
    )


@bug(breaks={"OneCursor"})
def a_cursor_ahead_of_what_is_done(patch: Patch) -> None:
    """A turn's cursor does not pass what is worked on."""
    patch.source(
        "weir.client.core.grants",
        "min((first for first, _ in runs), default=self._behind[partition])",
        "self._behind[partition]",
    )


@bug(breaks={"OneCursor"})
def the_rest_of_a_batch_is_forgotten_in_a_turn(patch: Patch) -> None:
    """A batch that is handed out by pieces is handed out whole."""
    patch.source(
        "weir.client.consumer.cursor_lease",
        "            self._rest = replace(part, offset=cut)\n",
        "",
    )


@bug(breaks={"OneCursor"})
def a_turn_begins_where_the_topic_does(patch: Patch) -> None:
    """A turn begins at the cluster's cursor."""
    patch.source(
        _TURNS,
        "max(turn.offsets[p] if p < len(turn.offsets) else 0, reply.start)",
        "reply.start",
    )


@bug(breaks={"OneCursor", "OneTurn"})
def a_piece_is_handed_out_behind_its_turn(patch: Patch) -> None:
    """What came when the turn was over is not handed out."""
    patch.source(
        _TURNS,
        "        if part is None or not self._turn.fence:\n",
        "        if part is None:\n",
    )


@bug(breaks={"AckedOnce", "Live"})
def an_ack_goes_ahead_of_the_work(patch: Patch) -> None:
    """A grant is acked when it is done, not when it is handed out."""
    patch.source(
        _SETTLEMENT,
        "            holding.handed = grant.next_offset\n            self._ready = None\n",
        "            holding.handed = grant.next_offset\n            self._ready = None\n"
        "            holding.lessor.outcomes.settle(holding, grant.offset, grant.next_offset)\n"
        "            holding.lessor.outcomes.soon()\n",
    )


@bug(breaks={"AckedOnce"})
def a_nack_is_told_as_an_ack(patch: Patch) -> None:
    """What failed goes back."""
    patch.source(
        _ACKING,
        "return await self._returning.now(partition, fence, failed, delay_ms)",
        "return bool(await self._acking.ack(partition, fence, failed))",
    )


@bug(breaks={"AckedOnce"})
def a_late_ack_counts_as_work_done(patch: Patch) -> None:
    """Who acks what is another's by then is told so."""
    patch.source(
        _ACKING,
        "            self.expired(partition, one, AckOutcome(outcome))",
        "            pass",
    )


@bug(breaks={"AckedOnce", "Leased", "OrderedOnce"})
def a_pull_is_answered_twice(patch: Patch) -> None:
    """Each grant is handed out once."""
    patch.source(
        _PULLING,
        "                    feed.put(came)\n",
        "                    feed.put(came)\n                    feed.put(came)\n",
    )


@bug(breaks={"Live"})
def the_turn_to_pull_is_never_given_back(patch: Patch) -> None:
    """A pull that brought nothing is followed by another."""
    patch.source(
        _PULLING,
        "            if came is None:\n                slot.release()\n",
        "            if came is None:\n",
    )


@bug(breaks={"HeldBack"})
def a_nack_forgets_its_delay(patch: Patch) -> None:
    """What goes back with a delay is held back for so long."""
    patch.source(
        _RETURNING,
        "return m.Nack(address, self._cluster, now, runs, delay_ms, untried)",
        "return m.Nack(address, self._cluster, now, runs, 0, untried)",
    )


@bug(breaks={"EffectOnce"})
def what_a_plain_handler_raises_is_lost(patch: Patch) -> None:
    """A handler that is a plain function fails with what it raises: its message comes again."""
    patch.source(
        "weir.app.handlers",
        "outcome = partial(_settle, future, future.set_exception, error)\n            with",
        "outcome = partial(_settle, future, future.set_result, None)\n            with",
    )
