"""Bugs of access: logins, tokens, rules, devices, quotas and pages, each with one check left out.

Worlds cannot reach them, because the clients that ship check the same things first; so tests of the
rooms must miss them. What worlds can reach is among the mutants (`weir_lab.sim.mutants`).
"""

from __future__ import annotations

from weir_lab.planted.bug import Bug

_UNIT = "packages/weir-mq/tests/unit"
_TICKETS = f"{_UNIT}/access/test_login_tickets.py"
_SLOWED = f"{_UNIT}/host/test_slowed_addresses.py"
_LINKS = f"{_UNIT}/host/test_links_served.py"
_MEMBERSHIP = f"{_UNIT}/broker/metadata/test_set_membership.py"
_NEWS = f"{_UNIT}/broker_replicas/test_news_of_added_nodes.py"
_BROKERSET = f"{_UNIT}/broker/test_brokerset.py"
_SCRAM = f"{_UNIT}/access/test_scram.py"
_TOKENS = f"{_UNIT}/access/test_tokens.py"
_TOKEN_LOGINS = f"{_UNIT}/broker/access/test_token_logins.py"
_LOGINS = f"{_UNIT}/broker/access/test_broker_logins.py"
_TABLE = f"{_UNIT}/broker/access/test_access_table.py"
_REVOCATION = f"{_UNIT}/broker/access/test_revocation.py"
_RULES = f"{_UNIT}/broker/metadata/security/test_broker_rules.py"
_PROOFS = f"{_UNIT}/broker/devices/test_broker_proofs.py"
_CERTIFIED = f"{_UNIT}/broker/devices/test_certified_devices.py"
_OF_SHARDS = f"{_UNIT}/broker_shards/test_proofs_of_shards.py"
_AUDIT = f"{_UNIT}/broker/audit/test_audit_topic.py"
_FRAMES = f"{_UNIT}/protocol/test_protocol_proof.py"
_PAGES = f"{_UNIT}/server/observability/test_guarded_pages.py"
_METERING = f"{_UNIT}/broker/quotas/test_metering.py"
_WAITING = f"{_UNIT}/broker/quotas/test_waiting.py"

OF_LOGINS = (
    Bug(
        "server-proof-unchecked",
        "A client leaves a broker that does not prove that it knows the user's verifier.",
        "weir.access.scram",
        "if not hmac.compare_digest(_bytes(signature), self._signature):",
        "if False:",
        f"{_SCRAM}::test_a_broker_that_does_not_prove_itself_is_left",
    ),
    Bug(
        "server-nonce-not-compared",
        "A proof names the nonce of its own login.",
        "weir.access.scram",
        "if not (same_nonce & same_channel & same_key & whole):",
        "if not (same_channel & same_key & whole):",
        f"{_SCRAM}::test_what_is_proved_must_also_be_said_of_this_login",
    ),
    Bug(
        "client-nonce-not-compared",
        "A client answers no challenge that does not begin with its own nonce.",
        "weir.access.scram",
        '_check_nonce(nonce[len(self._nonce) :] if nonce.startswith(self._nonce) else "")',
        "_check_nonce(nonce)",
        f"{_SCRAM}::test_a_client_does_not_answer_such_a_challenge",
    ),
    Bug(
        "many-guesses-a-challenge",
        "A challenge takes one guess.",
        "weir.access.scram",
        "self._is_over = True  # one guess a challenge",
        "self._is_over = False",
        f"{_SCRAM}::test_a_challenge_takes_one_guess",
    ),
    Bug(
        "password-in-plain-text",
        "Passwords and tokens are used where nobody can read along.",
        "weir.broker.access.logins",
        "check_channel(is_encrypted=session.is_private, is_loopback=False)",
        "check_channel(is_encrypted=True, is_loopback=False)",
        f"{_LOGINS}::test_only_where_nobody_reads_along",
    ),
    Bug(
        "guesses-are-free",
        "Failed logins slow down those of the same user, from wherever they come.",
        "weir.broker.access.logins",
        "self.failures.failed(attempt.user, now)",
        'self.failures.failed("", now)',
        f"{_LOGINS}::test_guessing_in_parallel_from_another_address_is_no_faster_either",
    ),
    Bug(
        "a-guesser-fills-the-line-of-a-user",
        "Attempts for a user wait in one line for each address.",
        "weir.broker.access.logins",
        'line, wait = f"{user}\\0{session.origin}", self.failures.wait(user, now)',
        "line, wait = user, self.failures.wait(user, now)",
        f"{_LOGINS}::test_who_guesses_keeps_nobody_out_but_its_own_address",
    ),
)

OF_TICKETS = (
    Bug(
        "ticket-unchecked",
        "Only a shard of the system makes tickets.",
        "weir.access.login_tickets",
        "is_good = genuine & (version == _VERSION) & (now < end) & bool(principal)",
        "is_good = (version == _VERSION) & (now < end) & bool(principal)",
        f"{_TICKETS}::test_each_byte_counts",
    ),
    Bug(
        "ticket-never-ends",
        "A ticket is good for a week.",
        "weir.access.login_tickets",
        "& (now < end) &",
        "&",
        f"{_TICKETS}::test_a_ticket_is_good_until_its_end",
    ),
    Bug(
        "ticket-outlives-a-password",
        "A ticket ends with the password that it came by.",
        "weir.access.login_tickets",
        "bound = _BOUND.pack(self._system, password_set)",
        "bound = _BOUND.pack(self._system, 0)",
        f"{_LOGINS}::test_a_ticket_ends_with_its_user_and_its_password",
    ),
    Bug(
        "ticket-is-anybodys",
        "A ticket is of one user.",
        "weir.access.login_tickets",
        "_LABEL + head + bound + principal.encode()",
        "_LABEL + head + bound",
        f"{_TICKETS}::test_a_ticket_is_of_one_system_user_and_password",
    ),
    Bug(
        "ticket-of-every-system",
        "A ticket is of one system.",
        "weir.access.login_tickets",
        "bound = _BOUND.pack(self._system, password_set)",
        "bound = _BOUND.pack(0, password_set)",
        f"{_TICKETS}::test_a_ticket_is_of_one_system_user_and_password",
    ),
    Bug(
        "ticket-makes-guesses-free",
        "Guesses by a ticket wait in the line of that ticket.",
        "weir.broker.access.logins",
        "self._lines.failed(attempt.line, now)",
        'self._lines.failed(attempt.line.lstrip("\\0"), now)',
        f"{_LOGINS}::test_guesses_by_a_ticket_wait_in_its_line",
    ),
    Bug(
        "no-ticket-needed-at-a-slowed-address",
        "From an address that is slowed down, a login without a ticket waits.",
        "weir.host.strangers",
        "return isinstance(request, Login) and bool(request.ticket)",
        "return isinstance(request, Login)",
        f"{_SLOWED}::test_all_others_wait",
    ),
    Bug(
        "bad-ticket-is-no-failure",
        "A ticket that is not good counts as a wrong password.",
        "weir.broker.access.logins",
        "raise NotAuthenticated(_NO_TICKET)",
        "raise BadRequest(_NO_TICKET)",
        f"{_LOGINS}::test_a_ticket_that_is_not_good_says_nothing",
    ),
    Bug(
        "two-attempts-by-a-ticket",
        "A refused login by a ticket ends its connection, whatever it was refused for.",
        "weir.broker.access.logins",
        "return session.has_shown_ticket and is_stranger",
        "return False",
        f"{_LOGINS}::test_who_shows_a_ticket_has_one_attempt",
    ),
)

OF_TOKENS = (
    Bug(
        "token-signature-unchecked",
        "One of the issuer's keys has signed a token.",
        "weir.access.tokens",
        "if not key.verifies(signature, token[: parts.end(2)]):",
        "if False:",
        f"{_TOKENS}::test_hostile_tokens_are_refused",
    ),
    Bug(
        "token-algorithm-unchecked",
        "The key says by which algorithm a token is signed, and the header agrees.",
        "weir.access.tokens",
        "or found[0].algorithm != header.alg:",
        "or False:",
        f"{_TOKENS}::test_hostile_tokens_are_refused",
    ),
    Bug(
        "token-audience-unchecked",
        "A token is for this set.",
        "weir.access.tokens",
        "or self.audience not in audiences:",
        "or False:",
        f"{_TOKENS}::test_hostile_tokens_are_refused",
    ),
    Bug(
        "token-expiry-unchecked",
        "A token ends.",
        "weir.access.tokens",
        "if now_seconds >= payload.exp + LEEWAY_SECONDS:",
        "if False:",
        f"{_TOKENS}::test_time_is_told_and_nothing_else",
    ),
    Bug(
        "token-of-a-namesake",
        "A token of the set is good for one user, and for nobody who gets its name later.",
        "weir.broker.metadata.security.access",
        "or limits.number not in (0, user.number):",
        "or False:",
        f"{_TOKEN_LOGINS}::test_a_token_is_of_one_user_by_its_number",
    ),
    Bug(
        "token-limits-ignored",
        "A token gives rights to the topics that it names, and to no others.",
        "weir.broker.metadata.security.access",
        'if kind not in ("topic", "cluster") or topic not in limits.topics:',
        "if False:",
        f"{_TOKEN_LOGINS}::test_topics_limit_what_a_token_gives",
    ),
)

OF_RULES = (
    Bug(
        "prefix-matched-anywhere",
        "A rule for names that begin in a way is for no others.",
        "weir.broker.metadata.security.rules",
        "yield from self._beginnings.get((kind, name[:length]), ())",
        "yield from (one for at in range(len(name)) for one in "
        "self._beginnings.get((kind, name[at : at + length]), ()))",
        f"{_RULES}::test_a_beginning_is_one_of_its_namespace",
    ),
    Bug(
        "decision-of-another-version",
        "What a session was allowed counts at that access version alone.",
        "weir.broker.runtime.session",
        "return self._allowed.get(key) if self._version == version else None",
        "return self._allowed.get(key)",
        f"{_REVOCATION}::test_a_decision_is_kept_for_one_version_alone",
    ),
    Bug(
        "a-role-that-is-taken-ends-nothing",
        "A user that loses a role loses the sessions that used it.",
        "weir.broker.metadata.security.access",
        "return any(role not in roles for role in user.roles)",
        "return False",
        f"{_REVOCATION}::test_what_is_lost_with_one_role_is_refused_and_the_rest_is_only_cut",
    ),
    Bug(
        "an-old-password-goes-on",
        "Another password ends the sessions that came by the one before.",
        "weir.broker.access.authorizer",
        "return user is not None and user.password_set <= session.admitted_at",
        "return user is not None",
        f"{_REVOCATION}::test_another_password_ends_what_came_by_the_one_before",
    ),
    Bug(
        "the-owner-trusts-where-it-landed",
        "The shard that decides a request authorizes it, though the one where it landed has.",
        "weir.broker.access.authorizer",
        "if not declared.rights or (session.passed and session.is_shard):",
        "if not declared.rights or session.passed:",
        f"{_TABLE}::test_a_request_is_answered_to_whom_a_rule_allows_it",
    ),
    Bug(
        "a-part-of-a-scattering-unchecked",
        "A scattering needs the right to publish to each topic of its batches.",
        "weir.broker.access.authorizer",
        "if part.batch:",
        "if False:",
        f"{_TABLE}::test_a_scattering_needs_a_right_for_each_of_its_parts",
    ),
    Bug(
        "what-is-hidden-reads-otherwise",
        "A topic that one may not have described reads like one that is not there.",
        "weir.broker.access.authorizer",
        "if need.topic and not self._may(principal, described, limits):",
        "if False:",
        f"{_TABLE}::test_what_one_may_not_describe_is_not_there",
    ),
    Bug(
        "pages-for-everybody",
        "In a closed set pages of figures are for users who may list the system.",
        "weir.server.observability.guard",
        "if self._is_allowed(visitor):",
        "if self._is_allowed(visitor) or True:",
        f"{_PAGES}::test_a_closed_set_shows_figures_by_tokens",
    ),
)

OF_DEVICES = (
    Bug(
        "mac-without-a-counter",
        "The MAC of a frame is for its place on the connection.",
        "weir.access.devices",
        "inner.update(_COUNTER.pack(counter) + content)",
        "inner.update(content)",
        f"{_FRAMES}::test_a_signed_frame_is_neither_repeated_nor_left_out_nor_moved",
    ),
    Bug(
        "generation-ignored",
        "A device comes by the secret of its generation, and by no other generation.",
        "weir.broker.metadata.security.fleets",
        "return not self.is_revoked and generation in (self.generation, self.before)",
        "return not self.is_revoked",
        f"{_PROOFS}::test_a_replaced_device_comes_with_its_new_secret_alone",
    ),
    Bug(
        "level-not-demanded",
        "A fleet that signs takes no device that only proves itself.",
        "weir.broker.devices.proofs",
        "and claim.level >= fleet.level",
        "and claim.level >= 0",
        f"{_PROOFS}::test_a_fleet_of_signed_frames_takes_no_less",
    ),
    Bug(
        "nonce-sent-back",
        "A device's nonce is its own, and not the broker's sent back.",
        "weir.access.devices",
        "return any(self.device_nonce) and self.device_nonce != self.broker_nonce",
        "return True",
        f"{_PROOFS}::test_another_proof_is_refused_and_leaves_nothing",
    ),
    Bug(
        "proof-unchecked",
        "A device proves that it has its secret.",
        "weir.broker.devices.proofs",
        "is_right = check_proof(prove_device(secret, claim), proof.proof)",
        "is_right = True",
        f"{_PROOFS}::test_another_proof_is_refused_and_leaves_nothing",
    ),
    Bug(
        "a-revoked-device-comes",
        "A device that was revoked hears what a stranger does.",
        "weir.broker.metadata.security.fleets",
        "return not self.is_revoked and generation in (self.generation, self.before)",
        "return generation in (self.generation, self.before)",
        f"{_PROOFS}::test_a_revoked_device_hears_what_a_stranger_does",
    ),
)

OF_CERTIFICATES = (
    Bug(
        "a-certificate-of-another-hub",
        "A device's certificate speaks for its own hub.",
        "weir.broker.devices.proofs",
        "if certified[0] != hub:",
        "if False:",
        f"{_CERTIFIED}::test_an_impostor_hears_one_code_and_leaves_nothing",
    ),
    Bug(
        "a-certificate-of-any-generation",
        "A device's certificate is of a generation that may come.",
        "weir.broker.devices.requests",
        "proven = DeviceProven(hello.sn, hello, generation, None)",
        "proven = DeviceProven(hello.sn, hello, "
        "self._proofs._catalog.fleets.device(hub).generation, None)",
        f"{_CERTIFIED}::test_an_impostor_hears_one_code_and_leaves_nothing",
    ),
    Bug(
        "an-old-certificate-goes-on",
        "A new device's certificate ends the device before.",
        "weir.broker.devices.requests",
        "if self.replacements.is_first(hub, generation):\n            if session.has_waited:\n"
        "                session.has_waited = False\n                self._refuse_proven",
        "if False:\n            if session.has_waited:\n"
        "                session.has_waited = False\n                self._refuse_proven",
        f"{_CERTIFIED}::test_the_next_generation_ends_the_one_before",
    ),
    Bug(
        "a-certificate-passed-on",
        "Only the shard where a device is connected knows what certificate it has shown.",
        "weir.broker.devices.proofs",
        "if certified is None or session.passed:",
        "if certified is None:",
        f"{_CERTIFIED}::test_what_another_shard_passes_on_has_no_certificate_here",
    ),
    Bug(
        "an-impostor-stays",
        "The connection of an impostor ends, and its address is slowed down.",
        "weir.broker.devices.requests",
        "self._outbox.send(session.id, encode_welcome(sn, error.code, 0))\n"
        "        self._outbox.put(Hangup(session.id, str(error), failed=True))",
        "self._outbox.send(session.id, encode_welcome(sn, error.code, 0))\n        pass",
        f"{_CERTIFIED}::test_an_impostor_hears_one_code_and_leaves_nothing",
    ),
    Bug(
        "a-device-that-waited-for-news-is-sent-away",
        "A new device that was ahead of a shard is served once the news has come.",
        "weir.broker.devices.requests",
        "if session.has_waited:\n                session.has_waited = False\n"
        "                self._refuse_proof",
        "if final:\n                session.has_waited = False\n                self._refuse_proof",
        f"{_OF_SHARDS}::test_a_new_device_that_is_ahead_of_a_shard_is_served_once_the_news_has_come",
    ),
)

OF_REVOCATIONS = (
    Bug(
        "a-revoked-device-is-confirmed-at-once",
        "A device is revoked once all shards that are reached keep to it.",
        "weir.broker.metadata.security.enrolment",
        "self._catalog.access.device_ended()",
        "pass",
        f"{_OF_SHARDS}::test_a_device_is_out_of_each_shard_by_the_answer",
    ),
    Bug(
        "what-was-seen-last-is-not-audited",
        "A shard that stops publishes what it has seen since it did so last.",
        "weir.broker.shard",
        "self._services.auditor.stop()",
        "pass",
        f"{_AUDIT}::test_a_shard_that_stops_publishes_what_it_has_seen_last",
    ),
)

OF_QUOTAS = (
    Bug(
        "a-bucket-for-each-connection",
        "All connections of a principal share what it may use.",
        "weir.broker.quotas.meter",
        "account = self.accounts.get(entity_of(session.principal))",
        "account = self.accounts.get(entity_of(session.principal)); "
        "account = account and self.accounts.setdefault("
        "f'{session.id}', __import__('copy').deepcopy(account))",
        f"{_METERING}::test_a_principal_has_one_account_for_all_its_connections",
    ),
    Bug(
        "overdrawn-namespace-takes-more",
        "A request that would draw on an overdrawn rate waits.",
        "weir.broker.quotas.meter",
        "short = tuple(one for one in accounts if one.is_short or not has_left(one, turn, size))",
        "short: tuple[Account, ...] = ()",
        f"{_METERING}::test_what_would_draw_on_an_overdrawn_rate_waits",
        f"{_METERING}::test_one_read_overdraws_by_one_request_only",
    ),
    Bug(
        "requests-of-many-are-let-go-at-once",
        "As many requests are let go at once as there is room for.",
        "weir.broker.quotas.meter",
        "requests[account.entity] += 1",
        "requests[account.entity] += 0",
        f"{_METERING}::test_requests_are_let_go_one_by_one",
    ),
    Bug(
        "one-namespace-fills-the-memory",
        "What waits for the rates of one entity takes its share of the byte budget.",
        "weir.broker.quotas.waiting",
        "if one.parked_bytes >= limit // SHARE_OF_ENTITY:",
        "if False:",
        f"{_WAITING}::test_what_waits_for_one_namespace_has_a_share_of_the_memory",
    ),
    Bug(
        "two-namespaces-fill-the-memory",
        "An entity that has less than an even part of the memory parked may wait.",
        "weir.broker.quotas.waiting",
        "even = limit // SHARE_OF_ALL // max(entities, 1)",
        "even = 0",
        f"{_WAITING}::test_all_that_waits_has_a_share_of_the_memory",
    ),
    Bug(
        "a-refusal-overtakes-the-confirms-of-a-hub",
        "A hub that awaits confirms is refused behind them.",
        "weir.broker.quotas.meter",
        "if refusal is not None and not awaits_replies:",
        "if refusal is not None:",
        f"{_WAITING}::test_a_hub_is_refused_once_its_publishes_are_confirmed",
    ),
    Bug(
        "who-was-passed-over-begins-anew",
        "Who was let go and got nothing keeps its place and its clock.",
        "weir.broker.quotas.meter",
        "if turn is not None and not turn.is_served:",
        "if False:",
        f"{_WAITING}::test_who_got_nothing_in_its_turn_keeps_its_place",
        f"{_WAITING}::test_who_got_nothing_in_its_turn_keeps_its_clock",
    ),
    Bug(
        "a-turn-takes-what-others-were-promised",
        "Peers that pipeline their requests have even shares.",
        "weir.broker.quotas.waiting",
        "account.promise(held.brought, 1)",
        "pass",
        f"{_WAITING}::test_peers_that_pipeline_have_even_shares",
    ),
    Bug(
        "the-first-in-line-is-always-the-last",
        "Who got nothing in its turn is the first of the next pass.",
        "weir.broker.quotas.waiting",
        "is_last = bool(first) and first[0][1].was_served",
        "is_last = bool(first)",
        f"{_WAITING}::test_the_first_in_line_is_served_before_large_requests",
    ),
    Bug(
        "the-first-in-line-is-always-the-first",
        "Peers that pipeline their requests go round by turns.",
        "weir.broker.quotas.waiting",
        "is_last = bool(first) and first[0][1].was_served",
        "is_last = False",
        f"{_WAITING}::test_peers_that_pipeline_have_even_shares",
    ),
    Bug(
        "each-connection-is-served-after-30-s",
        "What waited for too long is refused while the rate is overdrawn.",
        "weir.broker.quotas.meter",
        "held.refusal = waited_too_long(short[0])",
        "short = []",
        f"{_WAITING}::test_many_connections_get_no_more_than_the_rate",
        f"{_METERING}::test_nobody_is_held_for_longer_than_that",
    ),
    Bug(
        "a-refused-peer-goes-behind-the-others",
        "A peer that was refused since it waited for too long keeps its place.",
        "weir.broker.quotas.meter",
        "self._places[number] = held.place",
        "pass",
        f"{_WAITING}::test_many_connections_get_no_more_than_the_rate",
    ),
    Bug(
        "what-is-pipelined-overtakes-a-refusal",
        "All that a peer pipelined is refused with the first of it.",
        "weir.broker.quotas.meter",
        "if not short and (refusal is None or awaits_replies):",
        "if not short:",
        f"{_WAITING}::test_all_that_a_peer_pipelined_is_refused_together",
    ),
    Bug(
        "what-ends-waits-in-the-accounts",
        "Who goes gives its share of the memory back.",
        "weir.broker.quotas.meter",
        "self._parked.take(held, -held.parked_bytes)",
        "pass",
        f"{_WAITING}::test_who_goes_gives_its_share_of_the_memory_back",
    ),
    Bug(
        "a-stranger-hears-how-busy-a-namespace-is",
        "What is not allowed waits for no namespace.",
        "weir.broker.router",
        "if not meter.may_ask(session, size):",
        "if not meter.may_ask_of(session, request, size):",
        f"{_METERING}::test_who_may_not_publish_there_waits_for_nobody",
    ),
)

OF_LINKS = (
    Bug(
        "somebody-comes-in-place-of-an-added-node",
        "In a closed set an added node without a certificate proves that it is the one.",
        "weir.host.links",
        "if not is_expected(hello, known.join_key):",
        "if False:",
        f"{_LINKS}::test_an_added_node_proves_that_it_is_the_one_that_was_added",
    ),
    Bug(
        "a-founder-is-believed-until-the-registry-is-read",
        "A node of a closed set that starts again knows the births of the others.",
        "weir.host.links",
        "for node, birth in births.items()}",
        "for node, birth in ()}",
        f"{_LINKS}::test_a_founder_proves_its_birth_before_the_registry_is_read",
        f"{_LINKS}::test_a_node_that_joined_links_before_the_registry_is_read_here",
    ),
    Bug(
        "a-join-key-is-not-of-one-hello",
        "What a joining node proves is of the hello that it says, and of its folder.",
        "weir.protocol.link",
        'blake2b(said + birth, digest_size=PROOF_BYTES, key=key, person=b"join")',
        'blake2b(said, digest_size=PROOF_BYTES, key=key, person=b"join")',
        f"{_LINKS}::test_a_key_is_of_one_hello",
    ),
    Bug(
        "a-join-key-is-never-spent",
        "The key of a node that joins is gone once its folder is known.",
        "weir.broker.metadata.placement",
        'join_key=b"" if record.birth else info.join_key,',
        "join_key=info.join_key,",
        f"{_MEMBERSHIP}::test_a_node_that_was_added_is_expected_until_it_has_come",
    ),
    Bug(
        "nobody-tells-of-added-nodes",
        "A node without a link to who leads the registry asks others who there is.",
        "weir.broker.brokerset",
        "if leader == self._identity.node or leader in self._links.nodes:",
        "if True:",
        f"{_NEWS}::test_a_node_that_was_down_hears_from_others_who_was_added",
    ),
    Bug(
        "others-know-nodes-better",
        "What the registry knows of a node counts more than what others tell.",
        "weir.broker.brokerset",
        'return known is None or not (known.birth or known.state == "removed")',
        "return True",
        f"{_BROKERSET}::test_what_others_tell_of_nodes_counts_where_less_is_known",
    ),
    Bug(
        "a-node-removed-while-this-one-was-down-is-served",
        "The host hears of each removed node, of one that it never linked to in this run as well.",
        "weir.broker.brokerset",
        'if node.state == "removed" and node.id not in self._removed:',
        'if node.state == "removed" and node.id in self._connected:',
        f"{_BROKERSET}::test_the_host_is_told_once_of_a_removed_node_that_it_never_linked_to",
        f"{_NEWS}::test_a_node_that_was_down_tells_its_host_who_was_removed",
    ),
)

BUGS: tuple[Bug, ...] = (
    *OF_LINKS,
    *OF_LOGINS,
    *OF_TICKETS,
    *OF_TOKENS,
    *OF_RULES,
    *OF_DEVICES,
    *OF_CERTIFICATES,
    *OF_REVOCATIONS,
    *OF_QUOTAS,
)
