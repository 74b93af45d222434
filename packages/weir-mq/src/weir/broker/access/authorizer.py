"""Whether a session may ask what it asks, by what the request declares and what the registry says.

It is looked at twice: where a peer's frame lands, and where what it asks is decided. In an open set
only what waits is looked at, for it may be answered when the set is closed. Else a session keeps
what it was allowed, with the access version at which it was: a batch costs one comparison and one
look-up, and a message nothing.

What a principal may not have described is not there for it: the answer is the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from weir.access.credentials import ScramVerifier
from weir.access.tokens import UNLIMITED, TokenLimits
from weir.broker.audit.buffer import AuditBuffer, Seen
from weir.broker.metadata.security.access import FLEET, RESCUER, Access
from weir.broker.metadata.security.fleets import Fleets
from weir.broker.metadata.security.rules import cluster_name, topic_name
from weir.broker.metadata.topology import AppliedTopology
from weir.broker.records.audit import Outcome
from weir.broker.runtime.session import ANONYMOUS, Asked, Session
from weir.errors import (
    AccessRevoked,
    BadName,
    BadRequest,
    NotAuthenticated,
    Refused,
    Unauthorized,
    UnknownTopic,
)
from weir.model.ids import topic_of
from weir.model.limits import NAME_CHARACTERS_MAX, REFUSALS_KEPT_MAX
from weir.model.topic import AUDIT_TOPIC, RESERVED_NAMESPACE, Topic, split_name
from weir.protocol.client.admin import AlterTopic
from weir.protocol.client.declaration import Declaration, Resource, Right
from weir.protocol.client.relays import AskRelay
from weir.relay.messages import decode_question

#: So much of what requests use in an open set is known at once.
_USES_MAX = 4_096
#: Nothing is used that could be taken away.
_NOTHING: tuple[Asked, ...] = ()


#: Verbs by which something may be written to a topic, or go from it.
_WRITES = frozenset(("alter", "create", "delete", "publish", "restore"))


class TopicNames(Protocol):
    """What is known of topics, of fleets, and of rights."""

    access: Access
    fleets: Fleets
    #: The topic that says who did what, if it is there.
    audit_topic: Topic | None
    topology: AppliedTopology

    def find(self, namespace: str, name: str, /) -> Topic | None:
        """Return a topic by its names."""

    def by_id(self, topic: int, /) -> Topic | None:
        """Return a topic by its id."""


class RefusalCounts:
    """What was refused, or would have been, by principal, verb and resource."""

    __slots__ = ("_rows", "all", "forgotten")

    def __init__(self) -> None:
        """Begin empty."""
        self._rows: Counter[tuple[str, Asked]] = Counter()
        #: How many there were.
        self.all = 0
        #: How many of them are not kept by name, for there were too many names.
        self.forgotten = 0

    def count(self, principal: str, asked: Asked) -> None:
        """Count one."""
        self.all += 1
        key = (principal, asked)
        if key in self._rows or len(self._rows) < REFUSALS_KEPT_MAX:
            self._rows[key] += 1
        else:
            self.forgotten += 1

    def rows(self) -> Iterator[tuple[str, Asked, int]]:
        """Return principal, what it asked, and how often, what came oftenest first."""
        return ((who, asked, count) for (who, asked), count in self._rows.most_common())


class _Need(NamedTuple):
    """One of `asked` must be allowed. It is about the topic of this full name, if of any; the
    request itself named that by `id`, if by any.
    """

    asked: Sequence[Asked]
    topic: str = ""
    id: int = 0


class _OpenUses:
    """What requests that wait use in an open set, at one access version, known for all sessions of
    a principal: thousands of readers that wait again and again ask the same.
    """

    __slots__ = ("_uses", "_version")

    def __init__(self) -> None:
        """Nothing is known yet."""
        self._uses: dict[tuple[int, int, str, str], tuple[Asked, ...]] = {}
        self._version = -1

    def known(self, version: int) -> dict[tuple[int, int, str, str], tuple[Asked, ...]]:
        """Return what is known at this version, with room for more, by opcode, group, cluster and
        principal.
        """
        if self._version != version or len(self._uses) >= _USES_MAX:
            self._uses.clear()
            self._version = version
        return self._uses


class Authorizer:
    """Admits requests that a rule allows."""

    __slots__ = ("_catalog", "_open_uses", "audit", "refusals", "rescue")

    def __init__(self, catalog: TopicNames, audit: AuditBuffer) -> None:
        """Decide by the present `catalog`, and count requests that no rule allows. `audit` gets
        these, and the first use of each resource by a session.
        """
        self._catalog = catalog
        self._open_uses = _OpenUses()
        self.audit = audit
        self.refusals = RefusalCounts()
        #: Checks the password of a rescuer, who may write into the data folder of this node; None
        #: without one.
        self.rescue: ScramVerifier | None = None

    @property
    def access(self) -> Access:
        """Users and rules, as this shard's copy of the registry has them."""
        return self._catalog.access

    @property
    def is_open(self) -> bool:
        """Whether everybody may do everything, and nothing needs to be looked at."""
        return self._catalog.access.mode == "open"

    @property
    def is_closed(self) -> bool:
        """Whether what no rule allows is refused."""
        return self._catalog.access.mode == "closed"

    def admit_certified(self, session: Session) -> bool:
        """Let a session be the user whose certificate it has shown, if there is such a user; else
        it is nobody, as without a certificate. Return whether it became that user now.
        """
        if not session.awaits_admission:
            return False
        access = self._catalog.access
        user = access.user(session.certified)
        if user is not None:
            session.principal, session.admitted_at = user.principal, access.version
        return user is not None

    def check_greeting(self, session: Session) -> None:
        """Raise `NotAuthenticated` if a stranger may not even learn the node's identity."""
        if session.principal == ANONYMOUS and self.is_closed:
            raise NotAuthenticated(
                "this set is closed: log in with a user and a password, as weir://USER@HOST"
            )

    def check_request(
        self, session: Session, request: Any, declared: Declaration
    ) -> tuple[Asked, ...]:
        """Return what a session uses by a request. Raises `Unauthorized` unless it may, or
        `UnknownTopic` for a topic that is not there or that it may not have described; `BadName`.
        """
        if not declared.rights or (session.passed and session.is_shard):
            return _NOTHING
        if declared.rights[0].verb in _WRITES:
            self._check_reserved(request, declared.rights[0].verb)
        if self._catalog.access.mode == "open":  # as `is_open`: each request comes by here
            # What waits may be answered when the set is closed.
            waits = getattr(request, "wait_ms", 0)
            return self._noted(session, request, declared) if waits else _NOTHING
        version, key = self._catalog.access.version, None
        address = getattr(request, "address", None)
        if address is not None:
            is_relay = type(request) is AskRelay
            named = self._set_of(request) if is_relay else getattr(request, "cluster", "")
            key = declared.opcode, address.group, _checked(named)
            if (used := session.decisions.allowed(key, version)) is not None:
                return used
        try:
            used = tuple(self._check(session, need) for need in self._needs(request, declared))
        except Refused:
            if self.is_closed:
                raise
            return _NOTHING  # the handler reports the error
        if key is not None:
            session.decisions.allow(key, version, used)
        return used

    def check_hub(self, session: Session, topic: Topic, hub: int, is_proven: bool) -> None:
        """Raise unless a hub may publish to a topic that it named: one that `is_proven` by what its
        fleet may.
        """
        if topic.namespace == RESERVED_NAMESPACE:
            raise _reserved()
        if not (self.is_open or session.is_shard):
            full = _full(topic)
            principal = self.principal_of_hub(session, hub, is_proven)
            need = _Need([Asked("publish", "topic", full)], full)
            self._check(session, need, principal)

    def principal_of_hub(self, session: Session, hub: int, is_proven: bool) -> str:
        """Return by whose rights a hub comes in: one that `is_proven` by those of its fleet."""
        return self._of_fleet(hub) if is_proven else session.principal

    def check_cluster(self, session: Session, topic: Topic, cluster: str) -> None:
        """Raise unless a session may consume from a topic that it named, by this cluster: once for
        a subscription, so it is noted in an open set, too, and ends where that is closed.
        """
        if session.is_shard:
            return
        full = _full(topic)
        name = cluster_name(full, _checked(cluster))
        asked = [Asked("consume", "topic", full), Asked("consume", "cluster", name)]
        if self.is_open:
            principal = self.principal_of(session)
            may = (one for one in asked if self._may(principal, one, session.limits))
            used = next(may, asked[0])
            session.decisions.use(used)
        else:
            self._check(session, _Need(asked, full))

    def may_publish(self, principal: str, topic: Topic) -> bool:
        """Return whether all sessions of a principal may publish to a topic."""
        return self.is_open or self._may(principal, Asked("publish", "topic", _full(topic)))

    def may_describe(self, session: Session, topic: Topic) -> bool:
        """Return whether a topic is there for a session."""
        if not self.is_closed or session.is_shard:
            return True
        asked = Asked("describe", "topic", _full(topic))
        return self._may(session.principal, asked, session.limits)

    def may(self, session: Session, used: Iterable[Asked]) -> bool:
        """Return whether a session may use all of this."""
        principal, limits = self.principal_of(session), session.limits
        return self.is_open or all(self._may(principal, asked, limits) for asked in used)

    def is_admitted(self, session: Session) -> bool:
        """Return whether a session would be let in now as it was."""
        access, principal = self._catalog.access, session.principal
        if session.is_shard or access.mode == "open" or session.proven is not None:
            return True  # whether a hub may still be there, its proof says
        if principal == ANONYMOUS:
            return access.mode != "closed" or not session.greeted
        if session.passed and (principal == RESCUER or principal.startswith(FLEET)):
            return True  # the shard where it is connected ends it
        if principal == RESCUER:
            return self.rescue is not None
        token = session.token
        if token is not None and not access.issuers.has_key(
            token.issuer, token.key, session.admitted_at
        ):
            return False
        user = access.user_of(principal)
        return user is not None and user.password_set <= session.admitted_at

    def still_allows(self, session: Session) -> bool:
        """Return whether a session that is admitted may use all that it has used."""
        if not self.is_closed or session.is_shard:
            return True
        device, used = session.device, [*session.used]
        if used and session.decisions.is_incomplete:
            return False
        if device is not None:
            topic = self._catalog.by_id(topic_of(device.group))
            if topic is None:
                return False
            used.append(Asked("publish", "topic", _full(topic)))
        return self.may(session, used)

    def principal_of(self, session: Session) -> str:
        """Return by whose rights a session asks: a hub that proved itself has its fleet's."""
        if session.proven is None:
            return session.principal
        return self._of_fleet(session.proven[0])

    # -- steps -------------------------------------------------------------------------------

    def _of_fleet(self, hub: int) -> str:
        fleet = self._catalog.fleets.find(hub)
        return ANONYMOUS if fleet is None else f"{FLEET}{fleet.name}"

    def _noted(self, session: Session, request: Any, declared: Declaration) -> tuple[Asked, ...]:
        """Note what a session uses in an open set: it ends with the set's being open, if no rule
        allows that. Return it.
        """
        address = getattr(request, "address", None)
        known, key = self._open_uses.known(self._catalog.access.version), None
        # A token limits one session, and what a relay asks hangs on more than the partition.
        is_alike = session.token is None and session.proven is None
        if address is not None and is_alike and type(request) is not AskRelay:
            cluster = getattr(request, "cluster", "")
            key = declared.opcode, address.group, cluster, session.principal
        used = None if key is None else known.get(key)
        if used is None:
            try:
                used = tuple(self._used(session, need) for need in self._needs(request, declared))
            except Refused:
                return _NOTHING  # the handler reports the error
            if key is not None:
                known[key] = used
        for one in used:
            session.decisions.use(one)
        return used

    def _used(self, session: Session, need: _Need) -> Asked:
        """Return what of a need a session uses in an open set: what a rule allows, if any does."""
        principal, asked, limits = self.principal_of(session), need.asked, session.limits
        return next((one for one in asked if self._may(principal, one, limits)), asked[0])

    def _check(self, session: Session, need: _Need, principal: str = "") -> Asked:
        """Return what is used of what is needed, or raise. Unless the set is closed, all is."""
        principal, asked = principal or self.principal_of(session), need.asked[0]
        limits = session.limits
        found = next((one for one in need.asked if self._may(principal, one, limits)), None)
        if found is None:
            self.refusals.count(principal, asked)
            if self.is_closed or not session.passed:  # else the shard that passed it on told it
                outcome: Outcome = "refused" if self.is_closed else "would-be-refused"
                self.saw(session, asked, outcome, principal, _missing(asked))
            if self.is_closed:
                described = Asked("describe", "topic", need.topic)
                if need.topic and not self._may(principal, described, limits):
                    raise _absent(need.id)
                raise _unauthorized(principal, asked)
        # Once a set that watches is closed, what was used must be allowed.
        used = found or asked
        if session.decisions.use(used) and found is not None and not session.passed:
            self.saw(session, used, "allowed", principal)
        return used

    def saw(
        self, session: Session, asked: Asked, outcome: Outcome, principal: str, missing: str = ""
    ) -> None:
        """Let the audit topic know what a session was allowed, or not."""
        self.audit.add(
            Seen(
                principal, session.address, asked.verb, asked.kind, asked.name, outcome,
                self._catalog.access.version, "", missing,
            )
        )  # fmt: skip

    def saw_login(self, session: Session, mechanism: str, outcome: Outcome) -> None:
        """Let the audit topic know of a login by a certificate, or of one that was missing."""
        version = self._catalog.access.version
        self.audit.login(session, mechanism, session.certified, outcome, version)

    def _check_reserved(self, request: Any, verb: str) -> None:
        """Raise `Unauthorized` for what only brokers do with topics of the reserved namespace,
        from any peer, and in any mode.
        """
        address, audit = getattr(request, "address", None), self._catalog.audit_topic
        if address is not None:
            is_reserved = audit is not None and topic_of(address.group) == audit.id
        elif (parts := getattr(request, "parts", None)) is not None:
            is_reserved = audit is not None and any(
                part.batch and topic_of(part.address.group) == audit.id for part in parts
            )
        elif (name := getattr(request, "name", None)) is not None:
            named = split_name(name)
            is_reserved = named[0] == RESERVED_NAMESPACE
            if named == (RESERVED_NAMESPACE, AUDIT_TOPIC):
                # To create it is to begin to audit an open set; and it keeps as much as is set.
                is_reserved = not (
                    (verb == "create" and request.partitions == 1)
                    or (isinstance(request, AlterTopic) and not request.partitions)
                )
        else:
            return
        if is_reserved:
            raise _reserved()

    def _may(self, principal: str, asked: Asked, limits: TokenLimits = UNLIMITED) -> bool:
        verb, kind, name, is_any = asked
        access = self._catalog.access
        if is_any:
            return access.authorize_any(principal, verb, kind, name, limits) is not None
        return access.authorize(principal, verb, kind, name, limits) is not None

    def _needs(self, request: Any, declared: Declaration) -> Iterator[_Need]:
        """Yield what a request needs, all of it. Raises `UnknownTopic` or `BadName`."""
        rights = declared.rights
        match rights[0].resource:
            case Resource.LISTED:
                return  # who makes the list leaves out what must not be in it
            case Resource.SYSTEM:
                yield _Need([Asked(right.verb, "system", "") for right in rights])
            case Resource.NAMESPACE:
                named = split_name(request.name)[0]
                yield _Need([Asked(right.verb, "namespace", named) for right in rights])
            case Resource.NAMESPACES:
                for named in dict.fromkeys(
                    split_name(n)[0] for n in (request.name, request.source)
                ):
                    yield _Need([Asked(right.verb, "namespace", named) for right in rights])
            case Resource.ANY_TOPIC:
                yield _Need([Asked(right.verb, "topic", "", True) for right in rights])
            case Resource.PARTS:
                yield from self._of_parts(request)
            case Resource.TOPICS:
                for name in request.topics:
                    yield _with(self._named(name), rights)
            case _ if hasattr(request, "address"):
                yield from self._of_partition(request, rights)
            case _ if hasattr(request, "topic"):
                topic = self._by_id(request.topic)
                yield _with(topic, rights, "", topic.id)
            case _:
                yield _with(self._named(request.name), rights)

    def _of_partition(self, request: Any, rights: tuple[Right, ...]) -> Iterator[_Need]:
        """Yield what a request about a partition needs: a relay of the topology the right to pull
        as its set, and another one that to read the topic. A topic of the brokers needs both.
        """
        topic = self._by_id(topic_of(request.address.group))
        if type(request) is not AskRelay:
            yield _with(topic, rights, getattr(request, "cluster", ""), topic.id)
            return
        named = self._set_of(request)
        if not named or topic.namespace == RESERVED_NAMESPACE:
            yield _with(topic, rights[:1], "", topic.id)
        if named:
            yield _Need([Asked("pull", "set", named)], _full(topic), topic.id)

    def _set_of(self, request: AskRelay) -> str:
        """Return the name of the tandem or access set that a relay says it is of; empty if the
        topology has none such. The handler says what is wrong with a message.
        """
        topology = self._catalog.topology
        if not topology:
            return ""
        try:
            asked = decode_question(request.message, request.address.group)
        except BadRequest:
            return ""
        return topology.relay_set(asked.brokerset)

    def _of_parts(self, request: Any) -> Iterator[_Need]:
        """Yield what a scattering needs: each part is a batch, or acks of clusters."""
        for part in request.parts:
            topic = self._by_id(topic_of(part.address.group))
            full = _full(topic)
            if part.batch:
                yield _Need([Asked("publish", "topic", full)], full, topic.id)
            for cluster, _ in getattr(part, "acks", ()):
                name = cluster_name(full, _checked(cluster))
                both = [Asked("consume", "topic", full), Asked("consume", "cluster", name)]
                yield _Need(both, full, topic.id)

    def _named(self, name: str) -> Topic:
        topic = self._catalog.find(*split_name(name))
        if topic is None:
            raise _absent(0)
        return topic

    def _by_id(self, id: int) -> Topic:
        topic = self._catalog.by_id(id)
        if topic is None:
            raise _absent(id)
        return topic


def _with(topic: Topic, rights: tuple[Right, ...], cluster: str = "", id: int = 0) -> _Need:
    """Return what rights are needed of a topic, or of this cluster of it."""
    full = _full(topic)
    found: list[Asked] = []
    for right in rights:
        match right.resource:
            case Resource.CLUSTER:
                found.append(Asked(right.verb, "cluster", cluster_name(full, cluster)))
            case Resource.ANY_CLUSTER:
                found.append(Asked(right.verb, "cluster", full, True))
            case _:
                found.append(Asked(right.verb, "topic", full))
    return _Need(found, full, id)


def revocation_of(session: Session, admitted: bool) -> AccessRevoked:
    """Return why a session ends, which is still `admitted` or not."""
    if session.device is not None and not admitted:
        return AccessRevoked(
            "this hub must prove who it is, or its device was replaced or revoked: say hello again"
        )
    if session.principal == ANONYMOUS:
        return AccessRevoked("this set is closed now: log in with a user and a password")
    if session.token is not None and not admitted:
        return AccessRevoked(
            "the token that this connection came by is not taken any more, or its user was revoked"
        )
    if admitted:
        return AccessRevoked("a right that this connection used was taken away: connect again")
    return AccessRevoked(
        "the user that this connection logged in as was revoked, or has a new password"
    )


def _full(topic: Topic) -> str:
    return topic_name(topic.namespace, topic.name)


def _absent(id: int) -> UnknownTopic:
    """Return what is said of a topic that is not there, and of one that is not to be known of."""
    return UnknownTopic(
        "there is no such topic, or nothing of it is allowed to you: `weir topic list` names those "
        "that you may ask for",
        id,
    )


def _unauthorized(principal: str, asked: Asked) -> Unauthorized:
    who = principal.rpartition("#")[0].replace(":", " ") or principal
    verb, kind, name, _ = asked
    about = f"{kind} {name}" if name else ("the system" if kind == "system" else f"any {kind}")
    return Unauthorized(f"{who} may not {verb} {about}: `{_missing(asked)}` allows it to a role")


def _missing(asked: Asked) -> str:
    """Return what gives a role the right that is missing."""
    verb, kind, name, _ = asked
    rule = f"weir acl allow ROLE {verb} {kind} {name or ('' if kind == 'system' else 'NAME')}"
    return rule.rstrip()


def _reserved() -> Unauthorized:
    return Unauthorized(
        f"namespace {RESERVED_NAMESPACE} is the brokers' own: only brokers write to its topics, "
        f"and nobody deletes them. Only {RESERVED_NAMESPACE}/{AUDIT_TOPIC} may be created there, "
        "with one partition, and its retention be altered"
    )


def _checked(cluster: str) -> str:
    """Return a cluster's name, which is kept with a decision. Raises `BadName` for a long one."""
    if len(cluster) > NAME_CHARACTERS_MAX:
        raise BadName(f"a cluster's name has at most {NAME_CHARACTERS_MAX} characters")
    return cluster
