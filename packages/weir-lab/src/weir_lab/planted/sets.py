"""Bugs of BrokerSets and their topology, each with one check left out, that tests must miss.

Drawn worlds have one BrokerSet; those that lose a whole one are `sim.scenarios.lost_sets`.
"""

from __future__ import annotations

from weir_lab.planted.bug import Bug

_UNIT = "packages/weir-mq/tests/unit"
_CHECKS = f"{_UNIT}/topology/test_topology_checks.py"
_METADATA = f"{_UNIT}/broker/metadata/test_topology.py"

_PULLS = f"{_UNIT}/broker/partition/test_relay_pulls.py"
_READS = f"{_UNIT}/relay_node/test_relay_reads.py"
_ACCESS = f"{_UNIT}/relay_node/test_relay_access.py"

OF_TOPOLOGY = (
    Bug(
        "topology-applied-without-compare",
        "A topology replaces the version that it was made of, and no other.",
        "weir.broker.metadata.topology",
        "self.check_version(record.version - 1)",
        "pass",
        f"{_METADATA}::test_of_two_that_are_proposed_together_one_is_refused_where_it_is_applied",
    ),
    Bug(
        "topology-next-upper-unchecked",
        "Every upper of a set holds what the set holds, not the preferred one alone.",
        "weir.topology.checks",
        "for upper in map(sets.__getitem__, one.upper):\n            for lacked",
        "for upper in map(sets.__getitem__, one.upper[:1]):\n            for lacked",
        f"{_CHECKS}::test_each_upper_holds_what_is_pulled_and_not_the_preferred_one_alone",
    ),
    Bug(
        "topology-node-changes-its-set",
        "A node belongs to the set that it was founded in.",
        "weir.broker.metadata.topology",
        "if (was := before.get(number)) is not None and was.id != one.id:",
        "if (was := before.get(number)) is not None and False:",
        f"{_METADATA}::test_what_does_not_fit_the_system_is_refused",
    ),
    Bug(
        "topology-cycle-unchecked",
        "The uppers of sets form no cycle.",
        "weir.topology.checks",
        "if following in path:",
        "if following in path and (is_done.add(following) or False):",
        f"{_UNIT}/topology/test_topology_file.py::test_what_is_wrong_is_said_with_its_line",
    ),
    Bug(
        "topology-loss-below-a-loss",
        "A set is cut off as well where all its uppers are cut off.",
        "weir.topology.checks",
        "cut.append(one.name)\n        else:",
        "cut.append(one.name)\n            reached.add(one.id)\n        else:",
        f"{_CHECKS}::test_what_lies_below_a_loss_is_lost_as_well",
    ),
    Bug(
        "topology-lost-in-snapshots",
        "The topology is in the snapshots of the registry.",
        "weir.broker.metadata.catalog",
        "*((self.topology.encode(),) if self.topology else ()),",
        "",
        f"{_METADATA}::test_a_topology_is_kept",
    ),
)

_SPREAD = f"{_UNIT}/broker/metadata/test_spread.py"
_SETS = f"{_UNIT}/broker/metadata/test_brokersets.py"
_LOST = "packages/weir-lab/tests/unit/sim/test_lost_sets.py"

OF_PLACEMENT = (
    Bug(
        "spread-with-a-majority-in-one-set",
        "Of three sets none holds so many voters that the others are no majority.",
        "weir.broker.metadata.spread",
        "return max((replicas - 1) // 2, 1)",
        "return replicas // 2 + 1",
        f"{_LOST}::test_a_set_with_most_of_the_first_nodes_may_be_lost",
    ),
    Bug(
        "spread-evens-loads-across-sets",
        "Loads are evened only as far as the sets allow.",
        "weir.broker.metadata.placement",
        "if spread.excess([least if node == most else node for node in holders]) <= excess:",
        "if excess >= 0:",
        f"{_SPREAD}::test_loads_are_evened_only_as_far_as_sets_allow",
    ),
    Bug(
        "spread-fills-by-load-alone",
        "A new replica goes to the set that has the fewest of the group.",
        "weir.broker.metadata.placement",
        "key=lambda node: (spread.rank(node, holders), load.held.get(node, 0))",
        "key=lambda node: load.held.get(node, 0)",
        f"{_SPREAD}::test_new_groups_keep_to_the_rule_and_stay",
    ),
    Bug(
        "spread-leads-away-from-home",
        "Of two sets, the home set leads.",
        "weir.broker.metadata.spread",
        "return [node for node in nodes if self._of(node) == self._home] or nodes",
        "return nodes",
        f"{_SPREAD}::test_the_home_set_leads_though_others_vote",
    ),
    Bug(
        "spread-before-all-have-said",
        "Nothing moves by sets until all nodes are known to be of one.",
        "weir.broker.metadata.placement",
        "if SET_UNKNOWN in sets.values():",
        "if not sets:",
        f"{_SETS}::test_groups_lie_where_they_did_until_all_nodes_have_said_their_set",
    ),
    Bug(
        "spread-without-the-registry",
        "The registry's own group is spread as all others are.",
        "weir.broker.metadata.membership",
        "take(respread(placements, wanted, active, load, nodes.voter, spread))",
        "take(respread({g: p for g, p in placements.items() if g}, wanted, active, load,"
        " nodes.voter, spread))",
        f"{_SETS}::test_the_registry_is_spread_as_well",
    ),
    Bug(
        "spread-forgets-another-home",
        "Groups move when another topology names another home.",
        "weir.broker.metadata.topology",
        "self.declared = Declared(topology.core_nodes(), topology.home, version)",
        "self.declared = Declared(topology.core_nodes(), None, version)",
        f"{_SETS}::test_of_two_sets_the_home_set_has_all_voters",
    ),
    Bug(
        "sets-lost-in-snapshots",
        "The set of each node is in the snapshots of the registry.",
        "weir.broker.metadata.placement",
        "*_trimmed(sets, keys, followers, self.promotions.encode()),",
        "*_trimmed({}, keys, followers, self.promotions.encode()),",
        f"{_SETS}::test_sets_are_kept_and_leave_snapshots_without_them_as_they_were",
    ),
    Bug(
        "learners-lost-in-snapshots",
        "Who learns away from home is in the snapshots of the registry.",
        "weir.broker.metadata.placement",
        "*_trimmed(sets, keys, followers, self.promotions.encode()),",
        "*_trimmed(sets, keys, (), self.promotions.encode()),",
        f"{_SETS}::test_learners_are_kept",
    ),
    Bug(
        "learner-comes-back-as-itself",
        "A learner that was let go comes back as another: it has forgotten what it had.",
        "weir.broker.metadata.placement",
        "if voter not in needed:  # it comes back as another",
        "if False:",
        f"{_SETS}::test_a_drained_learner_makes_way_and_comes_back_as_another",
    ),
    Bug(
        "topology-of-another-set",
        "A topology has each node in the set that it was founded in.",
        "weir.broker.metadata.topology",
        "if said != declared:",
        "if said != declared and node.id < 0:",
        f"{_SETS}::test_a_topology_fits_what_nodes_have_said",
    ),
    Bug(
        "link-of-another-set",
        "A node is let in as one of the set that the system knows it to be of.",
        "weir.host.links",
        "if self.brokerset not in (SET_UNKNOWN, hello.brokerset):",
        "if self.brokerset < SET_UNKNOWN:",
        f"{_UNIT}/host/test_known_nodes.py::test_a_node_is_of_the_set_that_it_is_known_to_be_of",
    ),
    Bug(
        "leader-guessed-among-the-dead",
        "Who has no replica asks a voter that it reaches.",
        "weir.broker.forwarding.forwarder",
        "return next(reached, nodes[0])",
        "return nodes[0]",
        f"{_UNIT}/broker_shards/test_routes.py::"
        "test_who_has_no_replica_asks_a_voter_that_it_reaches",
    ),
)

OF_RELAYS = (
    Bug(
        "relay-pulls-what-is-undecided",
        "Only what is committed and decided is told to relays.",
        "weir.broker.partition.relay_pulls",
        "return self._state.decided_offset",
        "return self._state.next_offset",
        f"{_PULLS}::test_what_is_undecided_is_not_told",
    ),
    Bug(
        "relay-hole-told-as-an-answer",
        "An answer to a relay ends before what is missing in the log.",
        "weir.broker.partition.relay_pulls",
        "if piece.first != built.next:\n            break",
        "if False:\n            break",
        f"{_PULLS}::test_what_is_not_there_is_never_told_as_skipped",
    ),
    Bug(
        "relay-gap-wider-than-the-damage",
        "A relay is told the damaged entries of the core alone as lost.",
        "weir.broker.partition.relay_pulls",
        "every = plan._replace(tags=None, credit=1)",
        "every = plan._replace(tags=None)",
        f"{_PULLS}::test_what_is_damaged_in_the_core_is_a_gap_and_all_else_comes",
    ),
    Bug(
        "relay-skipped-told-as-lost",
        "What the tags of a relay exclude before the damage in the core is not lost.",
        "weir.broker.partition.relay_pulls",
        "if sound > plan.first:",
        "if False:",
        f"{_PULLS}::test_what_tags_exclude_before_the_damage_is_told_first",
    ),
    Bug(
        "relay-lag-told-to-any-user",
        "A relay of a closed system says how far it is to those who may list the system.",
        "weir.relay_node.gate",
        "await session.check_operator()",
        "session.check_greeted()",
        f"{_ACCESS}::test_users_log_in_through_a_relay_and_read_what_they_may",
    ),
    Bug(
        "relay-serves-whom-the-core-was-not-asked-about",
        "A private relay answers what the core lets this user read.",
        "weir.relay_node.gate",
        "            await self._check(request, session)\n",
        "            pass\n",
        f"{_ACCESS}::test_users_log_in_through_a_relay_and_read_what_they_may",
    ),
    Bug(
        "relay-gives-a-users-folder-to-everybody",
        "What was pulled as a user is served by no relay without one.",
        "weir.relay_node.host",
        "if founded.private and not config.is_private:",
        "if False:",
        f"{_ACCESS}::test_what_a_user_may_read_is_served_to_nobody_without_a_login",
    ),
    Bug(
        "relay-refusal-taken-for-absence",
        "What the core refuses counts at once, whatever it allowed before.",
        "weir.relay_node.sessions",
        "except (NotLeader, Overloaded, Unavailable):",
        "except WeirError:",
        f"{_ACCESS}::test_what_the_core_refuses_counts_at_once_and_its_absence_later",
    ),
    Bug(
        "relay-batch-told-twice",
        "A batch of a relay that begins before what it covers is the first of an answer.",
        "weir.relay_node.reads",
        "if at > portion.first and header.first_offset < at:",
        "if False:",
        f"{_READS}::test_a_batch_that_begins_in_what_was_skipped_before_it_is_the_first_of_an_answer",
    ),
    Bug(
        "relay-checkpoint-ahead-of-its-log",
        "A checkpoint of a relay holds what is durable alone.",
        "weir.relay_node.store",
        "if self.log.staged is not None or self.log.reader.durable < self.log.tail:",
        "if False:",
        f"{_UNIT}/relay_node/test_relay_store.py::test_what_was_synced_is_there_again",
    ),
    Bug(
        "relay-tags-beyond-the-topology",
        "A relay pulls no tags that the topology does not give to its set.",
        "weir.broker.metadata.topology",
        "if more := held.lacks(TopicTags(topic, tags)):",
        "if (more := held.lacks(TopicTags(topic, tags))) and False:",
        f"{_PULLS}::test_the_topology_bounds_what_a_set_may_pull",
    ),
)

_HOLDS = f"{_UNIT}/broker/partition/test_relay_holds.py"
_CHILDREN = f"{_UNIT}/relay_node/test_relay_children.py"

OF_HOLDS = (
    Bug(
        "core-reclaims-what-relays-need",
        "The core keeps what a relay of the topology needs.",
        "weir.broker.partition.retention",
        "if offset > held:",
        "if offset > LIMIT_MAX:",
        f"{_HOLDS}::test_nothing_goes_that_a_relay_needs",
    ),
    Bug(
        "holds-lost-with-the-leader",
        "A new leader keeps what relays needed by the last entry that says so.",
        "weir.broker.partition.relay_pulls",
        "self._upper.holds.restore(rows, 0, 0)",
        "self._upper.holds.restore(rows[:0], 0, 0)",
        f"{_HOLDS}::test_holds_are_entries_and_outlive_the_leader",
    ),
    Bug(
        "new-leader-reclaims-at-once",
        "A new leader lets nothing go before it has heard of relays.",
        "weir.broker.partition.relay_pulls",
        "if relays and now - self._since_ms < HEARD_WITHIN_MS else kept",
        "if now < self._since_ms else kept",
        f"{_HOLDS}::test_a_new_leader_lets_nothing_go_before_it_has_heard_of_relays",
    ),
    Bug(
        "silence-begins-with-the-leader",
        "A relay is waited for as long whoever leads.",
        "weir.broker.partition.relay_pulls",
        "HoldRow(one.brokerset, one.node, one.offset, now - one.silent_ms)",
        "HoldRow(one.brokerset, one.node, one.offset, now)",
        f"{_HOLDS}::test_a_relay_is_waited_for_for_a_while_whoever_leads",
    ),
    Bug(
        "holds-beyond-the-cap",
        "No more bytes are kept for a relay than its cap allows.",
        "weir.relay.holds",
        "kept = min(kept, max(hold.offset, least_kept))",
        "kept = min(kept, hold.offset)",
        f"{_HOLDS}::test_more_than_the_cap_is_not_kept_and_that_is_counted",
    ),
    Bug(
        "holds-of-strangers",
        "What the topology has no more keeps nothing.",
        "weir.relay.holds",
        "for child in self._rows.keys() - each.keys():",
        "for child in each.keys() - each.keys():",
        f"{_HOLDS}::test_what_the_topology_has_no_more_keeps_nothing",
    ),
    Bug(
        "relay-value-without-its-chunks",
        "The chunks of a value go to a relay below before the message that closes it.",
        "weir.relay.portion",
        "missing = missing_chunks(batches.chunks(kept), plan.last_chunk)",
        "missing = missing_chunks(batches.chunks(kept), 1 << 62)",
        f"{_CHILDREN}::test_a_large_value_comes_by_the_tandem",
    ),
    Bug(
        "relay-end-of-a-tandem-is-the-core-s",
        "The core alone says where its log ends.",
        "weir.relay_node.partitions",
        "if told.upper.is_core:",
        "if told.upper:",
        f"{_CHILDREN}::test_the_core_alone_says_where_its_log_ends",
    ),
    Bug(
        "relay-pulls-from-itself",
        "A relay refuses the pulls of its own number.",
        "weir.relay_node.requests",
        "if (message.brokerset, message.node) == (founded.brokerset, founded.node):",
        "if (message.brokerset, message.node) == (founded.brokerset, -1):",
        f"{_CHILDREN}::test_questions_that_no_relay_below_may_ask_are_refused",
    ),
    Bug(
        "relay-pulls-fill-a-connection",
        "Pulls that wait take no place among the requests of their connection.",
        "weir.relay_node.requests",
        "self._is_aside = True\n        self._places.release()",
        "self._is_aside = False",
        f"{_CHILDREN}::test_pulls_that_wait_take_no_place_among_the_requests_of_a_connection",
    ),
    Bug(
        "relay-pulls-of-one-node-pile-up",
        "Of the pulls of one node for a partition the last one waits, and the others are refused.",
        "weir.relay_node.children",
        'former.effects.put_nowait(Unavailable("the same node pulls again"))',
        "pass",
        f"{_CHILDREN}::test_of_one_node_one_pull_of_a_partition_waits",
    ),
    Bug(
        "tandem-holds-without-caps",
        "A tandem set keeps data for the relays of the topology alone, within their caps.",
        "weir.relay.partition",
        "if limits is not None:",
        "if limits is not None and not limits:",
        f"{_UNIT}/relay/test_relay_partition.py::"
        "test_a_relay_keeps_data_for_the_children_of_the_topology_within_their_caps",
    ),
    Bug(
        "uppers-in-the-order-of-the-file",
        "Of a set with several nodes, each node below has another one first.",
        "weir.relay_node.tiers",
        "turn = node % len(above.nodes)",
        "turn = 0",
        f"{_UNIT}/relay_node/test_relay_tiers.py::"
        "test_uppers_are_the_nodes_of_sets_above_in_order_of_preference",
    ),
)

_OF_SET = f"{_ACCESS}::test_a_relay_of_the_topology_has_the_rights_of_its_set_and_no_others"

OF_PRINCIPALS = (
    Bug(
        "relay-of-any-set",
        "A relay of the topology needs the right to pull as its set.",
        "weir.broker.access.authorizer",
        "named = self._set_of(request)\n        if not named or",
        "named = self._set_of(request)[:0]\n        if not named or",
        f"{_PULLS}::test_a_relay_pulls_what_its_set_has_as_who_may_pull_for_it",
    ),
    Bug(
        "audit-log-pulled-by-any-relay",
        "A topic of the brokers needs the right to read it, whoever pulls.",
        "weir.broker.access.authorizer",
        "if not named or topic.namespace == RESERVED_NAMESPACE:",
        "if not named:",
        f"{_PULLS}::test_the_right_to_pull_as_a_set_gives_no_topic_of_the_brokers",
    ),
    Bug(
        "audit-log-among-all-topics",
        "A relay set of all topics holds none of the brokers.",
        "weir.topology.sets",
        "return None if is_left_out else TopicTags(topic)",
        "return TopicTags(topic)",
        f"{_PULLS}::test_the_right_to_pull_as_a_set_gives_no_topic_of_the_brokers",
    ),
    Bug(
        "relay-set-forgotten-in-what-was-allowed",
        "What a session was allowed as one set, it is not allowed as another.",
        "weir.broker.access.authorizer",
        'named = self._set_of(request) if is_relay else getattr(request, "cluster", "")',
        'named = "" if is_relay else getattr(request, "cluster", "")',
        f"{_PULLS}::test_a_relay_pulls_what_its_set_has_as_who_may_pull_for_it",
    ),
    Bug(
        "relay-pulled-from-by-who-may-consume",
        "A relay lets who may pull pull from it, and not who may fetch or consume.",
        "weir.relay_node.gate",
        "await session.check_relay(decode_question(request.message, group))",
        "await session.check(topic)",
        f"{_ACCESS}::test_a_relay_below_pulls_as_who_may_read_and_not_as_who_may_consume",
    ),
    Bug(
        "relay-tags-forgotten-in-what-was-allowed",
        "What a relay below may pull with some tags, it may not with others.",
        "weir.relay_node.sessions",
        "right = *of, sha256(repr(tags).encode()).digest()",
        "right = of",
        _OF_SET,
    ),
    Bug(
        "relay-asks-the-core-as-itself",
        "What the core says to a reader of a private relay is asked by the reader's session.",
        "weir.relay_node.requests",
        "return await of_core(request, room, asker or self._host)",
        "return await of_core(request, room, self._host)",
        _OF_SET,
    ),
    Bug(
        "relay-hold-beyond-the-end",
        "No child of a relay has more than there is.",
        "weir.relay.upper",
        "min(said.durable_through, source.end)",
        "said.durable_through",
        f"{_UNIT}/relay/test_relay_partition.py::test_no_child_says_that_it_has_more_than_there_is",
    ),
    Bug(
        "relay-session-lost-with-a-refused-token",
        "A newer token that is refused ends no session of who has logged in.",
        "weir.relay_node.sessions",
        "if isinstance(request, Login) and not self.user and isinstance(error, NotAuthenticated):",
        "if isinstance(request, Login) and isinstance(error, NotAuthenticated):",
        f"{_ACCESS}::test_a_refused_token_ends_the_session_of_nobody_who_is_logged_in",
    ),
    Bug(
        "relay-serves-its-first-certificate",
        "A relay serves new connections with the newest certificate.",
        "weir.relay_node.listener",
        "one.context = self.serving.context",
        "one.context = listening",
        f"{_ACCESS}::test_a_relay_serves_tls_with_the_newest_certificate",
    ),
)

_RAFT = "packages/weir-raft/tests"
_WORLDS = "packages/weir-lab/tests/unit/sim/test_promotions.py"
_RESCUED = f"{_UNIT}/broker_replicas/test_rescued_promotions.py"
_LOST_AS_TOLD = f"{_WORLDS}::test_the_other_set_goes_on_and_all_that_is_lost_was_told"

OF_PROMOTION = (
    Bug(
        "promotion-lineage-not-raised",
        "A partition that lost its voters goes on in a lineage of its own.",
        "weir.broker.partition.partition",
        "state.begin_lineage(raft.lineage_of(self.group.node.log.term(index)))",
        "pass",
        f"{_PULLS}::test_a_relay_is_told_where_a_lineage_took_over",
    ),
    Bug(
        "promotion-old-home-not-fenced",
        "Nodes of the old home serve nothing any more once they reach the promoted set.",
        "weir.host.links",
        "self.tell(ev.Outlived(at.node, answer.lineage))",
        "pass",
        _LOST_AS_TOLD,
    ),
    Bug(
        "promotion-told-loss-too-small",
        "All that a promotion loses was told.",
        "weir.client.promotion",
        "            best.offset,\n",
        "            best.offset + 1,\n",
        _LOST_AS_TOLD,
    ),
    Bug(
        "promotion-old-home-lets-clients-in",
        "A node that was left behind lets nobody in.",
        "weir.broker.shard",
        "self._cluster.trunks.cutoff.outlive(lineage)",
        "pass",
        _LOST_AS_TOLD,
    ),
    Bug(
        "promotion-by-a-majority-of-copies",
        "What any copy of a promoted set knows to be committed stays.",
        "weir_raft.node_state",
        "if not self.history.is_forced:\n            return self.configuration",
        "if True:\n            return self.configuration",
        f"{_RAFT}/unit/raft/test_raft_force.py"
        "::test_the_first_election_needs_all_and_later_ones_most",
    ),
    Bug(
        "promotion-hears-the-old-home",
        "What the old home says is not taken in a promoted group.",
        "weir_raft.core",
        "if message.term != term and self.node_state.is_foreign(message.term):\n            return",
        "if False:\n            return",
        f"{_RAFT}/property/test_raft_lineages.py"
        "::test_learners_go_on_with_all_that_any_of_them_knew_while_home_lives",
    ),
    Bug(
        "promotion-forgets-that-it-retired",
        "A node that was left behind leads nobody, after a start neither.",
        "weir_raft.node_state",
        "if self.lineage > history.lineage and not history.is_forced:",
        "if False:",
        f"{_RAFT}/unit/raft/test_raft_force.py"
        "::test_who_retires_leads_no_more_and_keeps_what_it_has",
    ),
    Bug(
        "promotion-told-by-a-stranger",
        "Only a node of the system says that another one was left behind.",
        "weir.host.links",
        "answer.lineage and birth and answer.proof:",
        "answer.lineage:",
        f"{_UNIT}/host/test_outbound_link.py::test_nobody_else_says_that_a_node_was_left_behind",
    ),
    Bug(
        "promotion-lost-in-snapshots",
        "Who was forced to vote is in the snapshots of the registry.",
        "weir.broker.metadata.placement",
        "*_trimmed(sets, keys, followers, self.promotions.encode()),",
        "*_trimmed(sets, keys, followers),",
        f"{_SETS}::test_promotions_are_kept_and_forgotten_with_their_topics",
    ),
    Bug(
        "promotion-begun-twice",
        "A lineage begins once, whoever asks for it again.",
        "weir.broker.metadata.placement",
        "if record.lineage <= self.promotions.lineage:",
        "if False:",
        f"{_SETS}::test_a_lineage_begins_once",
    ),
)

#: Of a closed set, in which nobody can log in.
OF_RESCUE = (
    Bug(
        "rescue-waits-for-the-registry",
        "A file in the folder of a node lets a session in without a leader of the registry.",
        "weir.broker.access.logins",
        "if not (self._news.in_sync or self._rescues(session.attempt, request)):",
        "if not self._news.in_sync:",
        f"{_RESCUED}::test_without_a_leader_only_who_writes_into_the_folder_is_let_in",
    ),
    Bug(
        "rescue-lets-users-in",
        "No user is let in while nobody knows who was revoked.",
        "weir.broker.access.logins",
        "return attempt.user == RESCUER",
        "return True",
        f"{_RESCUED}::test_a_login_does_not_go_on_as_another_user",
    ),
    Bug(
        "rescue-lets-any-name-begin",
        "Only the name that no user has is looked at without a leader of the registry.",
        "weir.broker.access.logins",
        "return parse_first(request.message).user == RESCUER",
        "return bool(parse_first(request.message).user)",
        f"{_RESCUED}::test_without_a_leader_only_who_writes_into_the_folder_is_let_in",
    ),
    Bug(
        "rescue-without-the-key-file",
        "A node that does not know yet by which key secrets are wrapped lets in nobody.",
        "weir.broker.access.logins",
        "if not self._catalog.access.secret:",
        "if False:",
        f"{_RESCUED}::test_a_node_without_news_goes_by_what_its_folder_says",
    ),
    Bug(
        "rescue-by-news-of-the-node",
        "A node that knows less of the users takes what is passed on of a rescuer.",
        "weir.broker.access.logins",
        "session.principal, session.admitted_at = RESCUER, 0",
        "session.principal, session.admitted_at = RESCUER, attempt.version",
        f"{_RESCUED}::test_a_node_that_knows_less_of_the_users_takes_what_is_passed_on",
    ),
    Bug(
        "rescue-ends-at-the-cut-off",
        "A rescuer stays though there is no news of the metadata.",
        "weir.broker.access.session_ends",
        "and session.principal != RESCUER",
        "and True",
        f"{_RESCUED}::test_it_goes_on_behind_the_cut_off_and_ends_with_the_file",
    ),
    Bug(
        "rescue-where-a-node-was-left-behind",
        "A node that was left behind lets nobody in, by no file either.",
        "weir.broker.shard",
        "if self._cluster.trunks.cutoff.has_ended:",
        "if False:",
        f"{_RESCUED}::test_a_node_that_was_left_behind_lets_nobody_in",
    ),
    Bug(
        "rescue-goes-on-where-a-node-was-left-behind",
        "A rescuer's session ends when its node hears that it was left behind.",
        "weir.broker.shard",
        "outlive(lineage)\n                self.offer_rescue(None)",
        "outlive(lineage)",
        f"{_RESCUED}::test_a_node_that_was_left_behind_lets_nobody_in",
    ),
    Bug(
        "rescuer-changes-all-of-the-system",
        "A rescuer may make an administrator and promote, and nothing else.",
        "weir.broker.metadata.security.access",
        "return [(RESCUER, _OF_RESCUER)]",
        'return [(RESCUER, RoleRules([Rule(("promote", "list"), "system", "")]))]',
        f"{_RESCUED}::test_without_a_leader_only_who_writes_into_the_folder_is_let_in",
    ),
    Bug(
        "closed-set-is-open-before-its-news",
        "Before its first news a node goes by the mode that its folder says.",
        "weir.broker.metadata.security.cutoff",
        "return not self._was_closed or self._news.heard_ms >= 0",
        "return True",
        f"{_RESCUED}::test_a_node_without_news_goes_by_what_its_folder_says",
    ),
    Bug(
        "registry-forced-by-nobody",
        "Nobody without a login forces a registry that may be of a closed set.",
        "weir.broker.promotion",
        "if session.principal == ANONYMOUS:",
        "if False:",
        f"{_RESCUED}::test_a_node_without_news_goes_by_what_its_folder_says",
    ),
)

BUGS: tuple[Bug, ...] = (
    *OF_TOPOLOGY,
    *OF_PLACEMENT,
    *OF_RELAYS,
    *OF_HOLDS,
    *OF_PRINCIPALS,
    *OF_PROMOTION,
    *OF_RESCUE,
)
