"""Routes requests of peers to their handlers, and keeps the sessions of these peers.

A request's class declares which peers may send it, and where it is decided
(`weir.protocol.client`). This module finds its handler: a partition, as `partition.topics` says, or
a handler of another package.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from weir.broker.access.authorizer import Authorizer, revocation_of
from weir.broker.access.logins import Logins
from weir.broker.access.session_ends import SessionEnds
from weir.broker.api.effects import Hangup
from weir.broker.api.events import Arrived, Certified, LetGo, Opened
from weir.broker.api.settings import Identity
from weir.broker.audit.backlog import Backlog
from weir.broker.consumers.moves import token_of
from weir.broker.devices.requests import Devices
from weir.broker.forwarding.trunks import ShardTrunks
from weir.broker.metadata.audit import AUDITOR, AuditBacklog
from weir.broker.metadata.registry import Registry
from weir.broker.partition.partition import Partition
from weir.broker.partition.topics import BY_PARTITION, Topics, open_batch, publish
from weir.broker.quotas.meter import Meter
from weir.broker.replica.requests import no_registry
from weir.broker.runtime.budget import Budget
from weir.broker.runtime.outbox import Caller, Outbox
from weir.broker.runtime.session import ANONYMOUS, Asked, NewSessions, Session
from weir.errors import (
    BadRequest,
    NotAuthenticated,
    NotTogether,
    Overloaded,
    ProducerExpired,
    QuotaExceeded,
    Refused,
    UnknownOpcode,
    UnknownProducer,
    UnknownSchema,
    UnknownTopic,
    WrongSystem,
)
from weir.model.batch import Header
from weir.model.ids import REGISTRY_GROUP, node_of, partition_of
from weir.model.limits import (
    ACK_RANGES_MAX,
    BATCH_BYTES_MAX,
    HELLO_WITHIN_MS,
    PIPELINE_WINDOW,
    REQUESTS_PENDING_MAX,
)
from weir.order.clock import Time
from weir.protocol.client import access as w
from weir.protocol.client import admin as a
from weir.protocol.client import messages as m
from weir.protocol.client import schemas as s
from weir.protocol.client.codec import decode_request
from weir.protocol.client.declaration import Asker, Declaration, Scope
from weir.protocol.device import DevicePublishes, DeviceRequest
from weir.protocol.frame import ClientFrame

#: What answers a request that no partition decides.
Handler = Callable[[Session, Caller, Any], None]

#: At hand: they are looked at for each request.
_STRANGER, _SHARD = Asker.STRANGER, Asker.SHARD
_PARTITION, _FIRST, _REPLICA = Scope.PARTITION, Scope.FIRST_PARTITION, Scope.REPLICA


class Requests:
    """Answers a client's frames; a refusal never costs it the connection."""

    def __init__(
        self,
        identity: Identity,
        topics: Topics,
        registry: Registry,
        outbox: Outbox,
        authorizer: Authorizer,
        trunks: ShardTrunks,
        ports: Sequence[int],
        time: Time,
        meter: Meter,
        handlers: Mapping[type[Any], Handler],
    ) -> None:
        """Serve what `topics` and `registry` know, and by `handlers` what other rooms answer; pass
        on to `trunks` what they serve. `ports` is what `Welcome` says; `meter` counts what peers
        use.
        """
        self._meter = meter
        self._trunks = trunks
        self._forwarder = trunks.forwarder
        self._ports = tuple(ports)
        self._time = time
        self._identity = identity
        self._topics = topics
        self._registry = registry
        self._outbox = outbox
        self._authorizer = authorizer
        self._backlog = Backlog(registry.administration.audit, outbox, time)
        # By kind, since only the kind of a request decides its handler.
        self._handlers: dict[type[Any], Handler] = {
            m.Hello: self._hello,
            m.Ping: self._ping,
            m.DescribeTopic: self._describe,
            m.CreateTopic: self._create,
            m.RestoreTopic: self._create,
            m.OpenProducer: self._open_producer,
            m.Follow: self._follow,
            m.ReachRegistry: self._reach_registry,
            a.AlterTopic: self._alter,
            a.DeleteTopic: self._delete,
            a.EndPartition: self._end_partition,
            a.AskLeader: self._tell_leader,
            a.PauseCluster: self._pause_cluster,
            s.AddSchema: self._add_schema,
            s.SetSchemaRule: self._set_schema_rule,
            s.ListSchemas: self._list_schemas,
            w.DescribeAccess: self._describe_access,
            w.ExplainAccess: self._explain_access,
            w.ChangeUser: self._change_user,
            w.ChangeRole: self._change_role,
            w.SetAccessMode: self._set_access_mode,
            w.ListRefusals: self._list_refusals,
            w.RewrapSecrets: self._rewrap_secrets,
            **handlers,
        }

    def handle(self, session: Session, frame: ClientFrame, final: bool = False) -> bool:
        """Serve one frame, pass it on, or refuse it with a number.

        False, and nothing is done, if it asks for what this shard's copy of the registry does not
        hold, or not allow, which may be news: ask again, with `final`, when the copy is up to date.
        Or if the meter parks it: ask again when the session is resumed.
        """
        caller = Caller(session.id, frame.opcode, frame.correlation)
        try:
            request = decode_request(frame)
            declared = request.declaration
            if not session.welcomed and declared.asker is not _STRANGER:
                session.check_welcomed()
            if declared.asker is _SHARD and not session.is_shard:
                raise UnknownOpcode("only a shard may ask that", caller.opcode)
            if self._meter.is_on and not (session.passed or final):
                used = self._charge(session, request, declared, len(frame.body))
                if used is None:
                    return False
            else:
                used = self._authorizer.check_request(session, request, declared)
            if used:
                self._outbox.awaits(caller, used)
            scope = declared.scope
            if scope is _PARTITION or scope is _REPLICA or scope is _FIRST:
                self._to_partition(session, caller, frame, request, declared)
            elif (
                (scope is Scope.COPY or (session.awaits_admission and type(request) is m.Hello))
                and not (session.is_shard or final)
                and self._trunks.may_be_news()
            ):
                return False
            elif (place := self._place(session, request, scope)) != self._forwarder.shard:
                self._forwarder.request(session, caller, frame, place)
            else:
                self._answer(session, caller, frame, request)
        except (UnknownTopic, UnknownProducer, UnknownSchema, NotTogether) as error:
            if self._trunks.may_be_news() and not final:
                return False
            self._outbox.refuse(caller, self._trunks.certain(error))
        except Refused as error:
            self._outbox.refuse(caller, error)
        return True

    def _charge(
        self, session: Session, request: Any, declared: Declaration, size: int
    ) -> tuple[Asked, ...] | None:
        """Charge a request of `size` bytes to its principal, and to the namespaces that it is about
        if it is allowed; return what it uses. None, and nothing is charged, if it has to wait.
        Raises `Overloaded` if too much waits already.
        """
        meter = self._meter
        if not meter.may_ask(session, size):
            return None
        try:
            used = self._authorizer.check_request(session, request, declared)
        except Refused:
            meter.asked(session, size)
            raise
        # What is not allowed costs no namespace, and waits for none.
        if not meter.may_ask_of(session, request, size):
            return None
        meter.asked(session, size)
        meter.asked_of(session, request, size)
        return used

    def _answer(
        self, session: Session, caller: Caller, frame: ClientFrame, request: Any
    ) -> None:  # fmt: skip
        """Let a room answer; what it proposes to the registry is proposed for the session."""
        asker = None if session.is_shard else (session.principal, session.address)
        handler = self._handlers[type(request)]
        try:
            self._registry.administration.audit.answer_for(
                asker, lambda: handler(session, caller, request)
            )
        except AuditBacklog:
            self._backlog.keep(session, caller, frame)

    def check_deadlines(self) -> None:
        """Go on with what waited for the audit topic, or refuse it."""
        for session, frame in self._backlog.take():
            self.handle(session, frame, final=True)

    def _to_partition(
        self, session: Session, caller: Caller, frame: ClientFrame, request: Any,
        declared: Declaration,
    ) -> None:  # fmt: skip
        """Let the partition in `address` answer, or pass on. Raises `NotLeader`, see `Routes`."""
        group = request.address.group
        found = self._topics.find(group)
        if found is None or (
            found.leading is None and not (declared.scope is _REPLICA and request.replica)
        ):
            place = self._forwarder.routes.toward(group, session.foreign)
            if place != self._forwarder.shard:
                self._forwarder.request(session, caller, frame, place)
                return
        kind = type(request)
        serve = BY_PARTITION.get(kind)
        if serve is None and kind is not m.Produce:
            self._answer(session, caller, frame, request)
            return
        if found is None:
            found = self._topics.partition(group)[1]  # raises, and says why
        if isinstance(request, m.Pull | m.MoveGrants) and request.token:
            request = replace(request, token=token_of(session.principal, request.token))
        topic = self._topics.topic_with(group)
        if declared.scope is _FIRST and partition_of(group):
            raise BadRequest("partition 0 of a topic decides that: ask there")
        if serve is None:
            batch = open_batch(found, caller, request)
            self._own(session, found, batch.header)
            if batch.header.schema:
                self._registry.catalog.schemas.check_known(topic, batch.header.schema)
            publish(found, caller, request, batch)
        else:
            serve(found, caller, request)

    def _place(self, session: Session, request: Any, scope: Scope) -> int:
        """Return the place that answers what no partition does. Raises `NotLeader`."""
        routes = self._forwarder.routes
        if scope is Scope.REGISTRY:
            return routes.toward(REGISTRY_GROUP, session.foreign)
        if scope is Scope.HOLDER:
            return routes.holder(request.address.group)
        if scope is Scope.SHARD and request.place and not session.passed:
            return routes.from_here(request.place)
        return self._forwarder.shard

    def _own(self, session: Session, partition: Partition, header: Header) -> None:
        """Raise unless the session's principal holds the producer id, in this very epoch."""
        producer, epoch, principal = header.producer, header.epoch, session.principal
        if producer == self._registry.catalog.audit.producer and session.is_shard:
            principal = AUDITOR
        try:
            self._registry.check_epoch(producer, epoch, principal)
        except ProducerExpired:
            known = partition.state.producers.known(producer)
            if known is None or known.epoch != epoch:
                raise
            # It was checked when it first wrote here, and has gone on since.

    # -- answers -----------------------------------------------------------------------------

    def _hello(self, session: Session, caller: Caller, request: m.Hello) -> None:
        if session.awaits_admission and not self._trunks.in_sync:
            raise no_registry()  # the user may have been revoked
        try:
            if self._authorizer.admit_certified(session):
                self._authorizer.saw_login(session, "certificate", "allowed")
            self._authorizer.check_greeting(session)
        except NotAuthenticated as error:
            self._authorizer.saw_login(session, "none", "refused")
            # After a hello the host no longer counts the peer as a stranger.
            self._outbox.refuse(caller, error)
            self._outbox.put(Hangup(session.id, str(error)))
            return
        stale = self._trunks.cutoff.why_stale()
        if stale is not None and session.principal == ANONYMOUS and not session.greeted:
            # The set watched when its last news came here, and may be closed by now.
            self._outbox.refuse(caller, stale)
            self._outbox.put(Hangup(session.id, str(stale)))
            return
        me = self._identity
        if request.system not in (0, me.system):
            raise WrongSystem(f"this is system {me.system:x}, not {request.system:x}", me.system)
        if not session.greeted:
            try:
                self._meter.check_connection(session, session.principal)
            except QuotaExceeded as error:
                self._outbox.refuse(caller, error)
                self._outbox.put(Hangup(session.id, str(error)))
                return
        session.welcomed, session.takes_notices = True, request.notices
        welcome = m.Welcome(
            me.system,
            me.brokerset,
            me.node,
            me.shard,
            BATCH_BYTES_MAX,
            PIPELINE_WINDOW,
            ports=self._ports,
            nodes=self._trunks.nodes(),
            met=self._trunks.routes.met,
        )
        self._outbox.reply(caller, welcome)

    def _ping(self, session: Session, caller: Caller, request: m.Ping) -> None:
        if sum(len(runs) for _, _, runs in request.begun) > ACK_RANGES_MAX:
            raise BadRequest(f"a ping tells of {ACK_RANGES_MAX:,} runs of messages at most")
        for address, cluster, runs in request.begun:
            with suppress(Refused):  # it is led, or served, elsewhere by now
                _, partition = self._topics.partition(address.group)
                partition.led().consumers.grants.begun.report(cluster, session.id, runs)
        self._outbox.reply(caller, m.Pong(self._time.wall_ms()))

    def _describe(self, session: Session, caller: Caller, request: m.DescribeTopic) -> None:
        topic = self._topics.named(request.name)
        self._outbox.reply(caller, self._registry.describe(topic))

    def _create(self, session: Session, caller: Caller, request: m.CreateTopic) -> None:
        self._registry.create(caller, request)

    def _alter(self, session: Session, caller: Caller, request: a.AlterTopic) -> None:
        self._registry.administration.alter(caller, request)

    def _delete(self, session: Session, caller: Caller, request: a.DeleteTopic) -> None:
        self._registry.administration.delete(caller, request)

    def _end_partition(self, session: Session, caller: Caller, request: a.EndPartition) -> None:
        self._registry.endings.end(caller, request)

    def _tell_leader(self, session: Session, caller: Caller, request: a.AskLeader) -> None:
        group = request.address.group
        self._topics.topic_with(group)  # raises for a partition that is not there
        partition = self._topics.find(group)
        node = term = 0
        if partition is not None:
            node, term = node_of(partition.group.leader), partition.group.node.term
        holders = tuple(sorted(map(node_of, self._registry.catalog.voters(group))))
        self._outbox.reply(caller, a.LeaderInfo(node, term, holders))

    def _pause_cluster(self, session: Session, caller: Caller, request: a.PauseCluster) -> None:
        topic = self._topics.topic_with(request.address.group)
        self._registry.administration.pause(caller, topic, request)

    def _add_schema(self, session: Session, caller: Caller, request: s.AddSchema) -> None:
        topic = self._topics.named(request.name)
        self._registry.administration.schemas.add(caller, topic, request)

    def _set_schema_rule(self, session: Session, caller: Caller, request: s.SetSchemaRule) -> None:
        self._registry.administration.schemas.set_rule(
            caller, self._topics.named(request.name), request
        )

    def _list_schemas(self, session: Session, caller: Caller, request: s.ListSchemas) -> None:
        if not self._trunks.in_sync:  # a version that was confirmed may be missing here
            raise no_registry()
        self._registry.administration.schemas.list(
            caller, self._topics.named(request.name), request
        )

    def _open_producer(self, session: Session, caller: Caller, request: m.OpenProducer) -> None:
        self._registry.open_producer(caller, session.principal, request)

    def _describe_access(self, session: Session, caller: Caller, request: w.DescribeAccess) -> None:
        self._registry.administration.access.describe(caller, request)

    def _explain_access(self, session: Session, caller: Caller, request: w.ExplainAccess) -> None:
        self._registry.administration.access.explain(caller, request)

    def _change_user(self, session: Session, caller: Caller, request: w.ChangeUser) -> None:
        self._registry.administration.access.change_user(caller, request)

    def _change_role(self, session: Session, caller: Caller, request: w.ChangeRole) -> None:
        self._registry.administration.access.change_role(caller, request)

    def _rewrap_secrets(self, session: Session, caller: Caller, request: w.RewrapSecrets) -> None:
        self._registry.administration.rewrapping.rewrap(caller, request)

    def _set_access_mode(self, session: Session, caller: Caller, request: w.SetAccessMode) -> None:
        if request.mode == "closed" and session.principal == ANONYMOUS:
            raise BadRequest(
                "log in as an administrator to close this set, as weir://USER@HOST: so it can be "
                "opened again"
            )
        self._registry.administration.access.set_mode(caller, request)

    def _list_refusals(self, session: Session, caller: Caller, request: w.ListRefusals) -> None:
        refusals, me = self._authorizer.refusals, self._identity
        rows = [
            w.RefusalRow(who, asked.verb, asked.kind, asked.name, count)
            for who, asked, count in refusals.rows()
        ]
        self._outbox.reply(caller, w.RefusalList(me.node, me.shard, rows, refusals.forgotten))

    def _follow(self, session: Session, caller: Caller, request: m.Follow) -> None:
        self._outbox.answered(session.id)  # what comes of it is no reply
        self._trunks.feed.follow(session.id, session.principal, request.index)

    def _reach_registry(self, session: Session, caller: Caller, request: m.ReachRegistry) -> None:
        self._trunks.reach(caller, session.foreign)


class Sessions:
    """Accepts peers, keeps requests that wait for news, and forgets peers that are gone."""

    __slots__ = ("_arrivals", "_authorizer", "_budget", "_by_number", "_devices", "_ends",
                 "_logins", "_meter", "_new_sessions", "_outbox", "_requests", "_time", "_topics",
                 "_trunks")  # fmt: skip

    def __init__(
        self, by_number: dict[int, Session], outbox: Outbox, budget: Budget, time: Time,
        topics: Topics, trunks: ShardTrunks, requests: Requests, devices: Devices,
        authorizer: Authorizer, meter: Meter, ends: SessionEnds, logins: Logins,
    ) -> None:  # fmt: skip
        """Keep sessions in `by_number`, none at first. `authorizer` decides which may stay, `ends`
        until when, `logins` logs them in, and `meter` counts their usage.
        """
        self._logins = logins
        self._ends = ends
        self._meter = meter
        self._authorizer = authorizer
        self._by_number = by_number
        self._new_sessions = NewSessions(HELLO_WITHIN_MS)
        self._outbox = outbox
        self._budget = budget
        self._time = time
        self._topics = topics
        self._trunks = trunks
        self._requests = requests
        self._devices = devices
        self._arrivals = devices.arrivals(by_number)

    def opened(self, event: Opened) -> None:
        """A peer connected, here or to another shard."""
        number, version = event.session, self._authorizer.access.version
        session = Session.opened(
            number, self._time.monotonic_ms(), event.principal, event.place, event.address
        )
        session.admitted_at, session.token = event.admitted_at or version, event.token
        self._by_number[number] = session
        self._new_sessions.add(session)
        self._outbox.opened(number)
        if event.admitted_at and not self._is_ahead(session):
            self._end_unless_admitted(session)

    def secured(self, number: int, origin: str) -> None:
        """The connection to a peer, which comes from `origin`, cannot be read by others."""
        session = self._by_number.get(number)
        if session is not None:
            session.is_private, session.origin = True, origin

    def certified(self, event: Certified) -> None:
        """A peer has the certificate of a user or a device."""
        if (session := self._by_number.get(event.session)) is not None:
            session.certified, session.certified_device = event.user, event.device

    def handle(self, event: Arrived | LetGo) -> None:
        """Devices came at once; or the host is done with a peer."""
        if isinstance(event, LetGo):
            self._outbox.put(Hangup(event.session, event.reason))
            return
        principal, place = event.principal, event.place
        # Hubs that come at once are counted one by one, where anybody counts.
        together = principal or not self._meter.is_on
        arrivals = event.arrivals
        for one in self._arrivals.take(arrivals, principal, place) if together else arrivals:
            self.opened(Opened(one.session, principal, place))
            self.received(one.session, (one.hello, one.publishes))

    def received(
        self, number: int, frames: Sequence[ClientFrame | DeviceRequest], final: bool = False
    ) -> None:
        """A peer asks. With `final`, what is not known here now is not there."""
        session = self._by_number.get(number)
        if session is None:
            return
        if session.parked is not None:
            self._keep(session, frames)
            return
        if session.passed and not final and self._is_ahead(session):
            self._await_news(session, frames)
            return
        for at, frame in enumerate(frames):
            if isinstance(frame, ClientFrame):
                if self._outbox.asked(number) > REQUESTS_PENDING_MAX:
                    reason = f"{REQUESTS_PENDING_MAX} requests wait for their answers"
                    self._outbox.put(Hangup(number, reason))
                    return
                served = self._requests.handle(session, frame, final)
                if not served:
                    self._outbox.answered(number)  # it is counted when it is served again
            else:
                behind = frames[at + 1] if at + 1 < len(frames) else None
                followed = isinstance(behind, DevicePublishes)
                metered = self._meter.is_on and not session.passed
                try:
                    if metered and not self._may_use(session, frame):
                        self._park(session, frames[at:])
                        return
                except Overloaded as error:
                    assert isinstance(frame, DevicePublishes), "nothing else of a hub waits"
                    self._devices.refuse(session, frame, error)
                    continue
                served = self._devices.handle(session, frame, final, followed)
                if metered:
                    self._count_device(session, frame)
            if not served:
                self._park(session, frames[at:])
                return
            final = False

    def _may_use(self, session: Session, frame: DeviceRequest) -> bool:
        """Return whether a hub may publish now; if not, it waits. Raises `Overloaded`."""
        if session.device is None or not isinstance(frame, DevicePublishes):
            return True
        size = sum(map(len, frame.values))
        return self._meter.may_use(session, session.device.group, size)

    def _count_device(self, session: Session, frame: DeviceRequest) -> None:
        device, size, requests = session.device, 0, 1
        if isinstance(frame, DevicePublishes):
            size, requests = sum(map(len, frame.values)), len(frame.sns)
        self._meter.asked(session, size, requests)
        if device is not None:
            self._meter.used(session, device.group, size, requests)

    def _is_ahead(self, session: Session) -> bool:
        """Whether another shard let a user in by news of the registry that have not come here."""
        version = self._authorizer.access.version
        return session.principal != ANONYMOUS and session.admitted_at > version

    def _await_news(self, session: Session, frames: Sequence[ClientFrame | DeviceRequest]) -> None:
        """Keep requests of a user that this shard may not know yet; end the session if no news
        come.
        """
        if self._trunks.may_be_news():
            self._park(session, frames)
        else:
            self._end_passed(session, no_registry())

    def _end_passed(self, session: Session, why: Refused) -> None:
        self._outbox.put(Hangup(session.id, str(why)))
        self.closed(session.id)

    def _end_unless_admitted(self, session: Session) -> bool:
        """End a session that another shard has let in, for it had not heard yet what is known here:
        that a user was revoked, has another password, or a key of tokens was removed.
        """
        if session.principal == ANONYMOUS or self._authorizer.is_admitted(session):
            return False
        self._end_passed(session, revocation_of(session, False))
        return True

    def _park(self, session: Session, frames: Sequence[ClientFrame | DeviceRequest]) -> None:
        """Keep what asks for what is not known here until that is sure; and what comes behind."""
        self._keep(session, frames)
        session.awaits_quota = self._meter.has_parked(session.id)
        if not (session.awaits_quota or self._devices.replacements.holds(session.id)):
            self._trunks.view.park(session.id)

    def _keep(self, session: Session, frames: Sequence[ClientFrame | DeviceRequest]) -> None:
        before = session.parked_bytes
        if not session.keep(frames, self._budget):
            self._outbox.put(Hangup(session.id, "too much was sent while a request has to wait"))
        self._meter.keep(session.id, session.parked_bytes - before)

    def go_on(self, number: int) -> None:
        """Serve what was parked: what is not known now is not there."""
        self._serve_parked(number)
        self._meter.end_turn(number)

    def _serve_parked(self, number: int) -> None:
        session = self._by_number.get(number)
        if session is not None and session.parked is not None:
            if session.passed and self._is_ahead(session):
                self._end_passed(session, no_registry())
                return
            if session.passed and self._end_unless_admitted(session):
                return
            final, session.awaits_quota = not session.awaits_quota, False
            self.received(number, session.take_kept(self._budget), final)

    def closed(self, number: int) -> None:
        """A peer is gone."""
        session = self._by_number.pop(number, None)
        if session is None:
            return
        session.take_kept(self._budget)
        self._logins.closed(number)
        self._meter.closed(number)
        self._trunks.closed(session)
        touched = self._outbox.closed(number)
        self._devices.receivers.closed(number)
        for group in touched:
            if group in self._topics:
                self._topics.partition(group)[1].closed(number)

    @property
    def unallowed(self) -> int:
        """How much was asked that no rule allows: it was refused, or the set only watches."""
        return self._authorizer.refusals.all

    def end_revoked(self) -> list[int]:
        """End the sessions that were let in for what is not allowed to them any more, or that used
        it; return their numbers. What they wait for and lost is refused by `AccessRevoked`.

        Nothing of them is served from here on, whatever is on its way.
        """
        ended = []
        for session in list(self._by_number.values()):
            admitted = self._authorizer.is_admitted(session) and self._devices.may_stay(session)
            if admitted and self._authorizer.still_allows(session):
                continue
            error = revocation_of(session, admitted)
            for caller, used in self._outbox.awaited(session.id):
                if not (admitted and self._authorizer.may(session, used)):
                    self._outbox.refuse(caller, error)
            self._outbox.put(Hangup(session.id, str(error)))
            self.closed(session.id)
            ended.append(session.id)
        return ended

    def end_expired(self) -> list[int]:
        """End the sessions whose time is over, as `SessionEnds` says; return their numbers."""
        ended = []
        for session, error in self._ends.due():
            for caller, _ in self._outbox.awaited(session.id):
                self._outbox.refuse(caller, error)
            self._outbox.put(Hangup(session.id, str(error)))
            self.closed(session.id)
            ended.append(session.id)
        return ended

    def check_deadlines(self) -> None:
        """Close sessions that sent no hello in time, and end waits of welcomes that are overdue."""
        self._requests.check_deadlines()
        now_ms = self._time.monotonic_ms()
        self._outbox.let_out(now_ms)
        for session in self._new_sessions.overdue(now_ms):
            self._outbox.put(Hangup(session.id, f"no hello within {HELLO_WITHIN_MS // 1000} s"))
