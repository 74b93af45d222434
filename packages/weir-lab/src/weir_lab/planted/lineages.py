"""Bugs of readers and relays in a partition of which a later lineage has begun, that tests must
miss: each takes away one rule of ADR 0210, or of what the doctor says.
"""

from __future__ import annotations

from weir_lab.planted.bug import Bug

_UNIT = "packages/weir-mq/tests/unit"
_FETCHES = f"{_UNIT}/broker/partition/test_fetch_lineages.py"
_RELAY = f"{_UNIT}/relay_node/test_relay_reads.py"
_READERS = f"{_UNIT}/client/reader/test_reader_lineages.py"
_CODEC = "packages/weir-mq/tests/golden/test_golden_client_frames.py"
_CUT = f"{_UNIT}/relay_node/test_relay_lineages.py"
_DOCTOR = f"{_UNIT}/cli/doctor/test_promotions.py"

OF_LINEAGES = (
    Bug(
        "lineage-forgotten-by-readers",
        "A running reader says in which lineage it has read.",
        "weir.client.reader.fetcher",
        "lineage = self._span.lineages.get(partition, -1)",
        "lineage = -1",
        f"{_READERS}::test_a_running_reader_is_told_of_what_it_has_read_in_vain[partition-leader-16]",
    ),
    Bug(
        "lineage-checked-at-the-last-fork-alone",
        "The lowest fork counts that the reader's lineage does not have.",
        "weir.protocol.client.messages",
        "later = [fork for fork in forks if fork[0] > self.lineage]",
        "later = forks[-1:]",
        f"{_FETCHES}::test_of_several_forks_the_lowest_counts_that_the_reader_does_not_know",
    ),
    Bug(
        "lineage-unknown-is-read",
        "A node that has not heard of the reader's lineage is not read.",
        "weir.broker.partition.fetches",
        "if request.lineage > known.lineage:",
        "if False:",
        f"{_FETCHES}::test_a_node_that_lacks_the_readers_lineage_is_not_read",
    ),
    Bug(
        "lineage-unchecked-for-who-waits",
        "Whoever waits at a copy while a lineage begins is told of its fork.",
        "weir.broker.partition.fetches",
        "self._check_lineage(request)  # another one may have begun meanwhile",
        "pass",
        f"{_FETCHES}::test_who_waits_is_told_as_well",
    ),
    Bug(
        "lineage-fork-itself-refused",
        "Up to the fork all lineages are the same.",
        "weir.broker.partition.fetches",
        "if 0 <= known.fork_of(request.lineage) < request.offset:",
        "if 0 <= known.fork_of(request.lineage) <= request.offset:",
        f"{_FETCHES}::test_who_has_read_past_the_fork_is_told_though_the_partition_has_grown_since",
    ),
    Bug(
        "lineage-unchecked-by-relays",
        "A relay tells a reader of the fork before its position.",
        "weir.relay_node.reads",
        "if fetch.lineage >= 0 and 0 <= state.fork_of(fetch.lineage) < offset:",
        "if False:",
        f"{_RELAY}::test_a_relay_tells_who_has_read_in_a_lineage_that_ended",
    ),
    Bug(
        "lineage-unknown-is-read-of-relays",
        "A relay that has not heard of the reader's lineage is not read.",
        "weir.relay_node.reads",
        "if fetch.lineage > state.lineage:",
        "if False:",
        f"{_RELAY}::test_a_relay_is_not_read_by_who_knows_a_later_lineage",
    ),
    Bug(
        "lineage-zero-as-nothing-told",
        "Lineage 0 is told as such.",
        "weir.protocol.client.codec",
        "reply.is_cut, reply.is_filtered, reply.lineage + 1,",
        "reply.is_cut, reply.is_filtered, max(reply.lineage, 0),",
        f"{_CODEC}::test_client_frames_are_encoded_to_the_golden_bytes",
    ),
    Bug(
        "lineage-cut-counted-from-the-entry",
        "What is pulled again is not said to be lost.",
        "weir.relay_node.partitions",
        "held.cut += max(end - held.state.fork_of(lineage), 0)",
        "held.cut += max(end - moved.cut_at, 0)",
        f"{_CUT}::test_what_a_later_lineage_does_not_have_is_counted",
    ),
    Bug(
        "lineage-left-behind-untold",
        "The doctor says of a node that a promotion has left it behind.",
        "weir.cli.doctor.promotions",
        "if LEFT_BEHIND not in str(error):",
        "if True:",
        f"{_DOCTOR}::test_a_node_that_a_promotion_left_behind_is_told",
    ),
    Bug(
        "lineage-unfinished-promotion-untold",
        "The doctor says of a promotion that it is not finished.",
        "weir.cli.doctor.promotions",
        "max(registry.lineage, registry.begun) > copies.promoted",
        "registry.begun > copies.promoted",
        f"{_DOCTOR}::test_a_promotion_that_stopped_in_the_middle_is_told",
    ),
)
