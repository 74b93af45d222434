"""Bugs of readers and relays in a partition of which a later lineage has begun, that tests must
miss: each takes away one rule of ADR 0210 or 0211, or of what the doctor says.
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

_CUTS = f"{_UNIT}/broker/barriers/test_broker_cuts.py"
_SET = f"{_UNIT}/broker_replicas/test_cuts_of_a_set.py"
_PLANNING = f"{_UNIT}/spark/test_spark_planning.py"
_TASKS = f"{_UNIT}/spark/test_spark_fetcher.py"
_QUERIES = "packages/weir-lab/tests/unit/sim/test_query_lineages.py"
_TOLD = f"{_QUERIES}::test_a_query_is_told_of_what_it_has_read_in_vain"

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
    Bug(
        "lineage-untold-by-cuts",
        "A cut tells the lineages of the partitions that it goes through.",
        "weir.broker.barriers.cuts",
        "ResolvedCut(one.stamp, cuts, lineages)",
        "ResolvedCut(one.stamp, cuts)",
        f"{_CUTS}::test_a_cut_tells_the_lineages_of_all_partitions_that_are_asked_for[False]",
    ),
    Bug(
        "lineage-untold-between-shards",
        "A shard tells another one the lineages of what it leads.",
        "weir.broker.barriers.offsets",
        "lineages = lineages_of(found.values())",
        "lineages = []",
        f"{_SET}::test_any_node_tells_the_lineages_that_others_lead[1]",
    ),
    Bug(
        "lineage-left-out-of-checkpoints",
        "The end of a micro-batch has the lineages of its partitions.",
        "weir.spark.stream",
        "return self._stored(self._topics.in_lineages(cut))",
        "return self._stored(cut)",
        f"{_TOLD}[16-read-partition]",
    ),
    Bug(
        "lineage-looked-for-with-news-alone",
        "A query that waits for news looks now and then at what is there.",
        "weir.spark.stream",
        "self._looks_at = now + LOOK_EVERY",
        "self._looks_at = inf",
        f"{_TOLD}[5-never-partition]",
    ),
    Bug(
        "lineage-unchecked-by-tasks",
        "A task reads of the lineage alone in which its range was planned.",
        "weir.spark.fetcher",
        "if 0 <= lineage < fetched.lineage:",
        "if False:",
        f"{_QUERIES}::test_what_was_planned_at_home_is_not_read_elsewhere[16-partition]",
    ),
    Bug(
        "lineage-of-a-gap-mistaken",
        "What retention deleted is not taken for what another lineage has.",
        "weir.spark.fetcher",
        "if fork < behind:",
        "if True:",
        f"{_TASKS}::test_what_retention_deleted_is_told_as_such",
    ),
    Bug(
        "lineage-fork-itself-refused-to-queries",
        "A query that has read up to the fork goes on.",
        "weir.spark.planning",
        "fork < cut.positions.get(partition, 0)",
        "fork <= cut.positions.get(partition, 0)",
        f"{_PLANNING}::test_the_lowest_fork_counts_that_a_cut_does_not_know[20-0-None]",
    ),
    Bug(
        "lineage-that-ended-is-planned-in",
        "A query that knows of a lineage plans by no broker that does not.",
        "weir.spark.planning",
        "if newest < least:",
        "if False:",
        f"{_PLANNING}::test_a_broker_that_was_left_behind_is_not_listened_to[by the checkpoint]",
    ),
    Bug(
        "lineage-of-a-start-dropped",
        "A reader begins in the lineage of the position that it is given.",
        "weir.client.reader.positions",
        "dict(begin.lineages)",
        "{}",
        f"{_READERS}::test_a_kept_position_has_its_lineage[partition]",
    ),
)
