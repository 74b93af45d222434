"""Rules of Spark's source, of `weir tail`, `sub` and `work`, and of relays, that can be taken away.

What a relay tells the node above of what is durable is planted in `weir_lab.relays`.
"""

from __future__ import annotations

from dataclasses import replace

from weir.testing.simulator.world import MS
from weir_lab.sim.mutants.planting import Patch, bug, mutant
from weir_lab.sim.shape import NODE_READS, NODE_TIERS

_CONSUME = "weir.cli.consume"
_POOL = "weir.app.supervisor"
_CUTS = "weir.spark.cuts"
_FETCHING = "weir.spark.fetcher"
_ROWS = "weir.spark.rows"
_RELAY_CLUSTERS = "weir.relay_node.consumers.clusters"
_RELAY_REQUESTS = "weir.relay_node.requests"
_RELAY_PARTITIONS = "weir.relay_node.partitions"
_REDRIVE = "weir.app.dead_letters"
_STREAM = "weir.spark.stream"
_SUPERVISING = "weir.app.supervisor"


@bug(breaks={"Streamed"})
def a_first_batch_is_replayed_from_elsewhere(patch: Patch) -> None:
    """The first micro-batch of a query is replayed from where it began."""
    patch.source(_STREAM, "behind.since(self._read(start))", "self._read(start)")


@bug(breaks={"Streamed"})
def a_task_reads_past_its_end(patch: Patch) -> None:
    """A task reads its range, and not what else came with it."""
    patch.source(
        _FETCHING,
        "            end = min(fetched.next_offset, behind)\n",
        "            end = fetched.next_offset\n",
    )


@bug(breaks={"Streamed"})
def a_shorter_cut_keeps_the_stamp_of_the_longer(patch: Patch) -> None:
    """A cut at an earlier barrier has the stamp of that one."""
    patch.source(_CUTS, "cut, None), stamp=cut.stamp)", "cut, None), stamp=end.stamp)")


@bug(breaks={"Streamed"})
def a_gap_is_passed_over(patch: Patch) -> None:
    """A query whose messages are gone ends with an error."""
    patch.source(
        _FETCHING,
        "        except OffsetOutOfRange as error:\n            fork =",
        "        except OffsetOutOfRange as error:\n"
        "            if first < error.detail < behind:\n"
        "                return [], error.detail\n"
        "            fork =",
    )


@mutant(seed=7, breaks={"Streamed"}, shape=NODE_READS)
def a_gap_is_not_told(patch: Patch) -> None:
    """A query that goes on over messages that are gone has a row for them."""
    patch.source(
        _ROWS,
        "yield _gap(portion, Range(part.partition, error.first, error.behind), options)",
        "pass",
    )


@mutant(seed=7, breaks={"Streamed"}, shape=NODE_READS)
def a_gap_reaches_too_far(patch: Patch) -> None:
    """What is there behind a gap is read."""
    patch.source(
        _ROWS,
        "part = Range(part.partition, error.behind, part.behind)",
        "part = Range(part.partition, min(error.behind + 1, part.behind), part.behind)",
    )


@bug(breaks={"Streamed"})
def planning_ends_where_retention_is_quicker(patch: Patch) -> None:
    """Retention that goes on while a query looks for its cut ends no query."""
    patch.source(_CUTS, "            if error.detail <= at:\n", "            if error.detail:\n")


@bug(breaks={"ReadWhole", "OneOrder"})
def a_tail_keeps_what_it_has_written(patch: Patch) -> None:
    """What came is shown, and waits for nothing more to come."""
    patch.source(
        _CONSUME,
        "            output.flush()\n            if not left:\n",
        "            if not left:\n",
    )


@bug(breaks={"ReadWhole"})
def a_tail_goes_on_to_the_end_of_a_batch(patch: Patch) -> None:
    """A tail ends after so many messages."""
    patch.source(
        _CONSUME,
        "                if not left:\n                    break\n",
        "",
    )


@bug(breaks={"Live"})
def a_command_waits_no_longer_than_at_first(patch: Patch) -> None:
    """A broker that goes is waited for without end."""
    patch.source(_CONSUME, "    client.wait_without_end()\n", "")


@bug(breaks={"HandedOver"})
def a_sub_acks_what_nobody_has_seen(patch: Patch) -> None:
    """What is acked was written to where it can be read."""
    patch.source(_CONSUME, "                output.flush()  # what is acked was seen\n", "")


@bug(breaks={"HandedOver"})
def the_last_message_of_a_sub_goes_back(patch: Patch) -> None:
    """A sub that ends after so many has acked them all."""
    patch.source(
        _CONSUME,
        "                await message.ack()\n                left -= 1\n",
        "                left -= 1\n"
        "                if left:\n                    await message.ack()\n",
    )


@bug(breaks={"WorkDone", "Live"})
def one_that_ends_has_no_successor(patch: Patch) -> None:
    """A process that ends is followed by another."""
    patch.source(
        _POOL,
        "            self._tell(ended(again))\n",
        "            self._tell(ended(again))\n            return\n",
    )


@bug(breaks={"WorkDone"})
def a_supervisor_leaves_its_processes(patch: Patch) -> None:
    """`weir work` ends once all of its processes have."""
    patch.source(
        _SUPERVISING,
        "            await pool.close()\n",
        "            pool.resize(0)\n",
    )


@bug(breaks={"WorkDone"})
def a_dead_letter_goes_nowhere(patch: Patch) -> None:
    """A dead letter is done once its copy is confirmed."""
    patch.source(_REDRIVE, "        await copy(self._client, to, message, kept)\n", "")


@mutant(seed=1, breaks={"AckedOnce"}, shape=NODE_TIERS)
def a_relay_answers_acks_without_the_core(patch: Patch) -> None:
    """An ack is done once the core has it, whatever a relay knows of the grant."""
    patch.source(
        _RELAY_CLUSTERS,
        "        try:\n            return await _ask(session, asked, 0)\n"
        "        except Unavailable:\n            self.counts.check_room(session)\n",
        "        if isinstance(asked, m.Ack) and not asked.ranges[0][1] % 5:\n"
        "            return m.Acked(0)\n"
        "        try:\n            return await _ask(session, asked, 0)\n"
        "        except Unavailable:\n            self.counts.check_room(session)\n",
    )


@mutant(seed=16, breaks={"ReadWhole", "OneOrder"}, shape=NODE_TIERS)
def a_relay_that_is_cut_off_says_what_is_whole_now(patch: Patch) -> None:
    """Only the core knows what was confirmed until now: a relay has what has come by then."""
    patch.source(
        _RELAY_REQUESTS,
        "        except Unavailable:\n            if request.anew or not request.stamp:\n"
        "                raise\n",
        "        except Unavailable:\n            pass\n",
    )


@mutant(
    seed=37,
    breaks={"OneOrder", "ReadWhole"},
    shape=replace(
        NODE_TIERS, grows=(True,), relays=(3,), ordered=(2,), takers=(3,), scatterers=(0,),
        partitions=1, fault_every=(20 * MS, 120 * MS),
    ),
)  # fmt: skip
def a_relay_counts_partitions_by_its_mark_only(patch: Patch) -> None:
    """A relay that catches up says how many partitions there are, though its mark does not yet."""
    patch.source(
        _RELAY_PARTITIONS,
        "max(self.state.partitions, self.mark.partitions if self.mark is not None else 0)",
        "self.mark.partitions if self.mark is not None else 0",
    )
