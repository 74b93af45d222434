"""Counts what the peers of this shard use, and lets those wait that use too much.

Only where a peer is connected it is counted: in an open set without quotas nothing is, and with
them it costs a look-up for each frame, or each batch. What came is charged to the peer's principal,
and to the namespace of the topic that it is about, once that is allowed. Where a rate is overdrawn
the peer is not read from until it is not any more: those who waited longest come first, and only as
many as there is room for what they brought last. A request that would draw on a rate that others
have overdrawn waits, too: so a rate is overdrawn by one request at a time, however many peers there
are. But nobody waits for longer than `HELD_MS_MAX`: then a peer is read from, and what it has asked
is refused. Its place in the line is kept, so that its turn comes. What waits is in memory: of one
entity a share of the byte budget, and beyond that requests are refused. Peers whose requests waited
are served in turns, see `waiting.Turn`.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from weir.broker.api.effects import AssignNamespace, HoldSession
from weir.broker.metadata.quotas import NAMESPACE, Quotas, entity_of, namespace_of, quota_exceeded
from weir.broker.quotas.accounts import BYTES_IN, BYTES_OUT, REQUESTS, Account
from weir.broker.quotas.waiting import Held, ParkedBytes, Turns, has_left, has_room, waited_too_long
from weir.broker.runtime.budget import Budget
from weir.broker.runtime.outbox import Outbox
from weir.broker.runtime.session import Session
from weir.model.ids import topic_of
from weir.model.topic import Topic
from weir.order.clock import Time
from weir.protocol.client.codec import encode_reply
from weir.protocol.client.quotas import Throttled

#: The longest pause in reading from a peer: its pings must be read, and its goodbye, in time.
HELD_MS_MAX = 30_000
#: How often a waiting client is told so again: it takes a broker that is silent for 2 s for dead.
TELL_MS = 1_000


class QuotaFacts(Protocol):
    """What the registry says here."""

    quotas: Quotas

    def by_id(self, topic: int, /) -> Topic | None:
        """Return a topic by its id."""


class ThrottleCounts(msgspec.Struct):
    """How often peers of a namespace or principal had to wait, and for how long, all together."""

    times: int = 0
    waited_ms: int = 0


class _Peer(msgspec.Struct):
    """What is known of a peer: its namespace, and what its last requests brought."""

    namespace: str = ""
    brought: int = 0
    accounts: dict[str, tuple[Account, ...]] = msgspec.field(default_factory=dict)


class Meter:
    """The accounts of this shard."""

    __slots__ = ("_catalog", "_held", "_outbox", "_parked", "_peers", "_places", "_quotas",
                 "_resumed", "_revision", "_sessions", "_time", "_turns",
                 "accounts", "is_on", "throttled")  # fmt: skip

    def __init__(
        self, catalog: QuotaFacts, sessions: Mapping[int, Session], outbox: Outbox, time: Time,
        resumed: deque[int], budget: Budget,
    ) -> None:  # fmt: skip
        """Go by the quotas of `catalog`, and let `sessions` wait by effects in `outbox`. Those
        whose requests need not wait any more go to `resumed`. What waits is charged to `budget`.
        """
        self._resumed = resumed
        self._parked = ParkedBytes(budget)
        #: The places of those that waited for too long: they have them again if they wait anew.
        self._places: dict[int, int] = {}
        self._catalog = catalog
        self._sessions = sessions
        self._outbox = outbox
        self._time = time
        self._quotas = catalog.quotas
        self._revision = 0
        #: Whether there are quotas at all.
        self.is_on = False
        #: By entity, for those that have quotas.
        self.accounts: dict[str, Account] = {}
        #: By session.
        self._peers: dict[int, _Peer] = {}
        self._held: dict[int, Held] = {}
        self._turns = Turns()
        #: By entity, since this shard started.
        self.throttled: dict[str, ThrottleCounts] = {}

    @property
    def is_stale(self) -> bool:
        """Whether the registry has other quotas than those that are kept to here."""
        quotas = self._catalog.quotas
        return quotas is not self._quotas or quotas.revision != self._revision

    def follow(self, shards: int) -> None:
        """Keep to the quotas as the registry has them now, in a set of so many `shards`."""
        quotas = self._catalog.quotas
        self._quotas, self._revision = quotas, quotas.revision
        now_ms, before = self._time.monotonic_ms(), self.accounts
        self.accounts = {}
        for entity, limits in quotas:
            account = before.get(entity) or Account(entity, now_ms)
            account.change(limits, shards, now_ms)
            self.accounts[entity] = account
        self.is_on = self._outbox.counts_given = bool(self.accounts)
        for peer in self._peers.values():
            peer.accounts.clear()
        if not self.is_on:
            self._peers.clear()
        for held in self._held.values():
            held.accounts = tuple(
                one for one in held.accounts if self.accounts.get(one.entity) is one
            )

    # -- what may be used --------------------------------------------------------------------

    def may_ask(self, session: Session, size: int) -> bool:
        """Return whether the principal of a peer has overdrawn nothing. If it has, the peer waits,
        and so do the `size` bytes that it asks by: see `has_parked`. Raises `Overloaded` if too
        much waits already.
        """
        found = self.accounts.get(entity_of(session.principal))
        return found is None or self._may_use(session, [found], size)

    def may_ask_of(self, session: Session, request: Any, size: int) -> bool:
        """Return the same of the namespaces that a request is about, and of the principal."""
        names = [f"{NAMESPACE}{one}" for one, _ in self._charges(session, request, size)]
        return self._may_use_all(session, names, size)

    def may_use(self, session: Session, group: int, size: int) -> bool:
        """Return the same of the namespace of a partition, and of the principal."""
        topic = self._catalog.by_id(topic_of(group))
        names = [] if topic is None else [f"{NAMESPACE}{topic.namespace}"]
        return self._may_use_all(session, names, size)

    def has_parked(self, number: int) -> bool:
        """Return whether a peer has brought what waits until it is among the resumed."""
        held = self._held.get(number)
        return held is not None and held.is_parked

    def keep(self, number: int, size: int) -> None:
        """So many bytes more of a peer wait in memory, be it for a quota or not."""
        held = self._held.get(number)
        if held is not None and held.is_parked:
            self._parked.take(held, size)

    def _may_use_all(self, session: Session, names: list[str], size: int) -> bool:
        names.append(entity_of(session.principal))
        accounts = [self.accounts[name] for name in names if name in self.accounts]
        return self._may_use(session, accounts, size)

    def _may_use(self, session: Session, accounts: Sequence[Account], size: int) -> bool:
        """Return whether none of these is overdrawn; strangers say hello first, which is little."""
        number = session.id
        if not session.greeted:
            return True
        turn, device = self._turns.of(number), session.device
        awaits_replies = device is not None and device.awaits_replies
        refusal = None if turn is None else turn.held.refusal
        short = tuple(one for one in accounts if one.is_short or not has_left(one, turn, size))
        if not short and (refusal is None or awaits_replies):
            return True
        if turn is None:  # what had its turn has been in memory before
            refusal = self._parked.is_full(short)
        if refusal is not None and not awaits_replies:
            # So is all of a turn: nothing of a peer overtakes what it sent before.
            self._hold(number, short, size)
            raise refusal
        held = self._hold(number, short, 0)
        held.is_parked, held.brought, held.parked_for = True, size, short
        held.refusal = refusal
        # All that it is to be charged to: none of them may be short of it then.
        held.accounts = tuple(dict.fromkeys((*held.accounts, *accounts)))
        return False

    # -- what is used ------------------------------------------------------------------------

    def asked(self, session: Session, size: int, requests: int = 1) -> None:
        """A peer asked so much: its principal is charged."""
        if (turn := self._turns.of(session.id)) is not None:
            turn.is_served = True
        account = self.accounts.get(entity_of(session.principal))
        if account is not None:
            self._charge(session.id, (account,), size, requests)

    def asked_of(self, session: Session, request: Any, size: int) -> None:
        """A peer asked what it may ask: the namespaces are charged that it is about."""
        for namespace, bytes_in in self._charges(session, request, size):
            self._charge_namespace(session, namespace, bytes_in, 1)

    def _charges(self, session: Session, request: Any, size: int) -> Iterator[tuple[str, int]]:
        """Yield the namespaces that a request of `size` bytes is about, and the bytes for each."""
        parts = getattr(request, "parts", None)
        if parts is not None and parts and hasattr(parts[0], "address"):
            found = [(part.address.group, len(part.batch)) for part in parts]
        elif (address := getattr(request, "address", None)) is not None:
            found = [(address.group, size)]
        else:
            yield namespace_of(session.principal), size
            return
        for group, bytes_in in found:
            if (topic := self._catalog.by_id(topic_of(group))) is not None:
                yield topic.namespace, bytes_in

    def used(self, session: Session, group: int, size: int, requests: int = 1) -> None:
        """A peer published so much to a partition, or asked about it."""
        topic = self._catalog.by_id(topic_of(group))
        if topic is not None:
            self._charge_namespace(session, topic.namespace, size, requests)

    def given(self) -> None:
        """Charge what peers were sent since the last call."""
        rows, self._outbox.given = self._outbox.given, []
        for number, group, size in rows:
            peer = self._peers.get(number)
            if peer is None:
                continue  # it is connected to another shard, or gone
            topic = self._catalog.by_id(topic_of(group))
            namespace = peer.namespace if topic is None else topic.namespace
            short = tuple(
                one for one in peer.accounts.get(namespace, ()) if one.take(BYTES_OUT, size)
            )
            if short:
                self._hold(number, short, size)

    def _charge_namespace(self, session: Session, namespace: str, size: int, requests: int) -> None:
        peer = self._peers.get(session.id)
        if peer is None:
            peer = self._peers[session.id] = _Peer()
        if namespace != peer.namespace and namespace:
            peer.namespace = namespace
            self._outbox.put(AssignNamespace(session.id, namespace))
        accounts = peer.accounts.get(namespace)
        if accounts is None:
            names = f"{NAMESPACE}{namespace}", entity_of(session.principal)
            accounts = tuple(self.accounts[name] for name in names if name in self.accounts)
            peer.accounts[namespace] = accounts
        peer.brought = size
        if accounts and accounts[0].entity.startswith(NAMESPACE):
            self._charge(session.id, accounts[:1], size, requests)

    def _charge(self, number: int, accounts: Iterable[Account], size: int, requests: int) -> None:
        short: list[Account] = []
        self._places.pop(number, None)
        for account in accounts:
            is_short = account.take(BYTES_IN, size)
            if account.take(REQUESTS, requests) or is_short:
                short.append(account)
        if short:
            self._hold(number, tuple(short), size)

    # -- who waits ---------------------------------------------------------------------------

    def _hold(self, number: int, accounts: tuple[Account, ...], brought: int) -> Held:
        held = self._held.get(number)
        if held is not None:
            held.brought += brought
            for account in accounts:
                if account not in held.accounts:
                    self._count(account)
            held.accounts = tuple(dict.fromkeys((*held.accounts, *accounts)))
            return held
        now_ms, turn = self._time.monotonic_ms(), self._turns.of(number)
        self._outbox.put(HoldSession(number, True))
        if turn is not None and not turn.is_served:
            last = turn.held
            held = Held(accounts, last.place, last.since_ms, brought, last.told_ms, now_ms)
            self._held[number] = held
            return held
        place = self._places.pop(number, None)
        if place is None:
            place = self._turns.next_place()
        held = self._held[number] = Held(
            accounts, place, now_ms, brought, now_ms, now_ms, was_served=turn is not None
        )
        for account in accounts:
            self._count(account)
        self._tell(number, held)
        return held

    def _count(self, account: Account) -> None:
        self.throttled.setdefault(account.entity, ThrottleCounts()).times += 1

    def release(self) -> None:
        """Read from those again whose rates are overdrawn no more, as far as there is room for what
        they brought last; and from all that waited for too long, whose requests are refused.
        """
        now_ms = self._time.monotonic_ms()
        for account in self.accounts.values():
            account.refill(now_ms)
        expected: Counter[str] = Counter()
        requests: Counter[str] = Counter()
        let_go: list[tuple[int, Held]] = []
        for number, held in sorted(self._held.items(), key=lambda row: row[1].place):
            short = [
                one for one in held.accounts
                if not has_room(one, expected[one.entity], requests[one.entity])
            ]  # fmt: skip
            is_late = now_ms - held.since_ms >= HELD_MS_MAX
            if is_late and short and held.is_parked and held.refusal is None:
                held.refusal = waited_too_long(short[0])
            is_to_go = not short or (is_late and not held.is_parked)
            if not (is_to_go or self._may_refuse(number, held)):
                if now_ms - held.told_ms >= TELL_MS:
                    held.told_ms = now_ms
                    self._tell(number, held)
                continue
            for account in held.accounts:
                if held.refusal is None:
                    expected[account.entity] += held.brought
                    requests[account.entity] += 1
                if (throttled := self.throttled.get(account.entity)) is not None:
                    throttled.waited_ms += now_ms - held.uncounted_ms
            self._forget(number)
            if is_late:
                self._places[number] = held.place
            self._outbox.put(HoldSession(number, False))
            if held.is_parked:
                let_go.append((number, held))
        self._resumed.extend(self._turns.begin(let_go))

    def _may_refuse(self, number: int, held: Held) -> bool:
        """Return whether a hub is to be refused, and awaits no replies any more."""
        session = self._sessions.get(number)
        device = None if session is None else session.device
        return held.refusal is not None and not (device is not None and device.awaits_replies)

    def end_turn(self, number: int) -> None:
        """What a peer had parked is served, or waits anew: it is promised nothing any more."""
        self._turns.end(number)

    def _forget(self, number: int) -> None:
        """A peer is not held any more: what it had parked takes no share of memory."""
        held = self._held.pop(number, None)
        if held is not None:
            self._parked.take(held, -held.parked_bytes)

    def _tell(self, number: int, held: Held) -> None:
        """Tell a peer for how long it is not read from, at least until it is told again: else it
        would take this shard for dead, connect anew, and send all that once more.
        """
        session = self._sessions.get(number)
        if session is not None and session.takes_notices:
            wait_ms = max((account.wait_ms for account in held.accounts), default=0)
            notice = Throttled(min(max(wait_ms, 2 * TELL_MS), HELD_MS_MAX))
            self._outbox.send(number, *encode_reply(notice, Throttled.opcode, 0))

    @property
    def held(self) -> int:
        """How many peers are not read from."""
        return len(self._held)

    def closed(self, number: int) -> None:
        """A peer is gone."""
        self._peers.pop(number, None)
        self._forget(number)
        self.end_turn(number)
        self._places.pop(number, None)

    # -- connections -------------------------------------------------------------------------

    def check_connection(self, session: Session, principal: str, namespace: str = "") -> None:
        """Count a peer that comes in. Raises `QuotaExceeded` if it is one too many of its
        principal, or of the namespace, which is by default that of the user.
        """
        if session.passed or not self.is_on:
            return
        namespace = namespace or namespace_of(principal)
        found = [
            self.accounts[name]
            for name in (entity_of(principal), f"{NAMESPACE}{namespace}")
            if name in self.accounts
        ]
        for account in found:
            limit = account.limits.get("connections")
            if limit is None:
                continue
            if account.connections + account.totals.get("connections", 0) >= limit:
                raise quota_exceeded(account.entity, "connections", limit)
        for account in found:
            account.connections += 1

    def count_connections(self, sessions: Iterable[Session]) -> None:
        """Count the peers of this shard anew: some are gone. A hub is of its topic's namespace."""
        if not any("connections" in account.limits for account in self.accounts.values()):
            return
        counted: Counter[str] = Counter()
        for session in sessions:
            if session.passed or not session.greeted:
                continue
            counted[entity_of(session.principal)] += 1
            namespace = namespace_of(session.principal)
            if session.device is not None:
                topic = self._catalog.by_id(topic_of(session.device.group))
                namespace = namespace if topic is None else topic.namespace
            counted[f"{NAMESPACE}{namespace}"] += 1
        for entity, account in self.accounts.items():
            account.connections = counted[entity]
