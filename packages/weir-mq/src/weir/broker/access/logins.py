"""The identity of peers: logins by SCRAM-SHA-256 or by a token, before hello.

The client chooses the mechanism, by what it has: no broker offers a list that somebody on the way
could shorten, and no refusal lets a client try another one.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from typing import Any, NamedTuple, Protocol

import msgspec

from weir.access.credentials import ScramVerifier, choose_verifier, false_verifier
from weir.access.failures import Failures
from weir.access.login_tickets import TICKET_ID_BYTES, TicketIssuer
from weir.access.scram import (
    MECHANISM,
    NONCE_BYTES,
    ClientFirst,
    ScramServer,
    check_channel,
    encode_nonce,
    parse_first,
)
from weir.access.tokens import BEARER, SessionToken
from weir.broker.access.session_ends import SessionEnds
from weir.broker.api.effects import Hangup
from weir.broker.audit.buffer import AuditBuffer
from weir.broker.metadata.security.access import RESCUER, Access, User, bearer_of
from weir.broker.metadata.security.issuers import NOBODY
from weir.broker.metadata.security.users import user_name
from weir.broker.metadata.security.vault import NO_VAULT, Vault, purpose_of_verifier
from weir.broker.records.audit import Outcome
from weir.broker.replica.requests import no_registry
from weir.broker.runtime.outbox import Caller, Outbox
from weir.broker.runtime.session import ANONYMOUS, Attempt, Session
from weir.errors import (
    BadName,
    BadRequest,
    NotAuthenticated,
    Overloaded,
    Refused,
    RemoteProtocolError,
    Unavailable,
)
from weir.model.limits import RETRY_AFTER_MS
from weir.order.clock import Time
from weir.protocol.client.access import Login, LoginStep

_NO_TICKET = "the ticket of an earlier login is not good any more: log in without it"
#: Whose verifier is opened for users that there are not; no user is named so.
_NOBODY = ":nobody"
#: So many waits of logins that are gone may be kept beyond the others.
_SLACK = 64


class CurrentAccess(Protocol):
    """Where what is known of access lies: a snapshot puts another one there."""

    access: Access


class RescueOffer(Protocol):
    """What knows whether a file of the data folder lets somebody in."""

    rescue: ScramVerifier | None


class News(Protocol):
    """How this shard keeps up with the registry."""

    @property
    def in_sync(self) -> bool:
        """Whether what is known here was all there was, a moment ago."""


class _Slowed(NamedTuple):
    """A login that waits in a line."""

    session: Session
    caller: Caller
    first: ClientFirst
    line: str


class _SlowedLogins:
    """Logins that wait, each until its own time.

    There may be as many as there are connections. If there were places for so many only, a guesser
    with that many addresses would keep out the user that it guesses at.
    """

    __slots__ = ("_by_session", "_due", "_numbers")

    def __init__(self) -> None:
        #: By session.
        self._by_session: dict[int, _Slowed] = {}
        #: By when each may go on, in seconds; those of one time in the order in which they came.
        #: The last is the session: what has ended is here until half of all have.
        self._due: list[tuple[float, int, int]] = []
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._by_session)

    def __contains__(self, session: Session) -> bool:
        return session.id in self._by_session

    def add(self, due: float, one: _Slowed) -> None:
        """Let a login wait until `due`, in seconds."""
        self._by_session[one.session.id] = one
        heapq.heappush(self._due, (due, next(self._numbers), one.session.id))

    def closed(self, session: int) -> None:
        """A connection is gone: forget its login."""
        if self._by_session.pop(session, None) is None:
            return
        if len(self._due) > 2 * len(self._by_session) + _SLACK:
            self._due = [one for one in self._due if one[2] in self._by_session]
            heapq.heapify(self._due)

    def take(self, now: float) -> Iterator[_Slowed]:
        """Take those that have waited for long enough, the one that was due first comes first."""
        while self._due and self._due[0][0] <= now:
            one = self._by_session.pop(heapq.heappop(self._due)[2], None)
            if one is not None:
                yield one


class Logins:
    """Lets users in by passwords or tokens. A peer has one attempt; then it connects again."""

    __slots__ = ("_audit", "_catalog", "_ends", "_lines", "_news", "_nobody", "_outbox", "_random",
                 "_rescue", "_slowed", "_system", "_time", "_vault", "failures")  # fmt: skip

    def __init__(
        self, catalog: CurrentAccess, news: News, outbox: Outbox, time: Time,
        ends: SessionEnds, random: Callable[[int], bytes] | None, rescue: RescueOffer,
        audit: AuditBuffer, system: int, vault: Vault = NO_VAULT,
    ) -> None:  # fmt: skip
        """Know the users of `catalog`, while `news` of it come. `ends` learns when tokens end, and
        `audit` which logins succeeded or failed. `random` gives so many unpredictable bytes;
        without it no user can log in by a password. Tickets are of this `system`. `vault` opens
        verifiers.
        """
        self._system = system
        self._time = time
        self._audit = audit
        self._ends = ends
        self._vault = vault
        #: Has a wrapped verifier that fits no password, once one was needed.
        self._nobody: User | None = None
        self._rescue = rescue
        #: Logins that failed, by user, whether there is one or not.
        self.failures = Failures()
        #: The same by line: attempts from one address for one user wait in one, and those by one
        #: ticket in another.
        self._lines = Failures()
        self._slowed = _SlowedLogins()
        self._catalog = catalog
        self._news = news
        self._outbox = outbox
        self._random = random

    @property
    def slowed(self) -> int:
        """How many logins wait because others of their user failed."""
        return len(self._slowed)

    def handlers(self) -> Mapping[type[Any], Callable[..., None]]:
        """Return what answers each request."""
        return {Login: self._login}

    def _login(self, session: Session, caller: Caller, request: Login) -> None:
        """Take a step of a login. Raises `NotAuthenticated`, `BadRequest` or `Unavailable`."""
        if session.token is not None and request.mechanism == BEARER:
            self._renew(session, caller, request.message)
            return
        has_shown = session.has_shown_ticket
        session.has_shown_ticket = has_shown or bool(request.ticket)
        try:
            self._take_step(session, caller, request, has_shown)
        except Refused as error:
            if not _is_over(session):
                raise
            self._end(session, caller, error)

    def _take_step(
        self, session: Session, caller: Caller, request: Login, has_shown: bool
    ) -> None:  # fmt: skip
        """Take a step of a peer that `has_shown` a ticket before. Raises as `_login` does."""
        if session.greeted or session.passed or session.principal != ANONYMOUS:
            raise BadRequest("log in once, before hello: connect again to log in as another user")
        check_channel(is_encrypted=session.is_private, is_loopback=False)
        if request.mechanism not in (MECHANISM, BEARER):
            raise BadRequest(
                f"mechanism {request.mechanism!r}: this set takes {MECHANISM} and {BEARER}"
            )
        if not (self._news.in_sync or self._rescues(session.attempt, request)):
            raise no_registry()  # a user may have been revoked meanwhile
        if session in self._slowed:
            raise BadRequest("one message of a login at a time: wait for the answer")
        attempt, session.attempt = session.attempt, None
        if attempt is None and has_shown:  # the next frame may be here before the connection ends
            raise BadRequest("a login by a ticket has one attempt: connect again")
        try:
            if request.mechanism == BEARER:
                if attempt is not None:
                    raise BadRequest("a login continues with the mechanism that it began with")
                self._take_token(session, caller, request.message, request.ticket)
            elif attempt is None:
                self._challenge(session, caller, request.message, request.ticket)
            elif request.ticket:
                raise BadRequest("a login shows its ticket with its first message")
            else:
                self._finish(session, caller, attempt, request.message)
        except RemoteProtocolError as error:
            raise BadRequest(str(error)) from None
        except NotAuthenticated as error:
            claimed = attempt.user if attempt is not None else ""
            self._saw(session, request.mechanism, claimed, "refused")
            self._end(session, caller, error)

    def _rescues(self, attempt: Attempt | None, request: Login) -> bool:
        """Return whether a step of a login is for the name `:rescue`, which a file in this node's
        folder lets in. The registry knows nothing of it, and without a file no password fits. A
        node that knows of no user yet cannot tell either whether it has the key file of the set.
        """
        if not self._catalog.access.secret:
            return False
        if attempt is not None:
            return attempt.user == RESCUER
        if request.mechanism != MECHANISM:
            return False
        try:
            return parse_first(request.message).user == RESCUER
        except RemoteProtocolError:
            return False  # as all that is no message

    def _end(self, session: Session, caller: Caller, error: Refused) -> None:
        """Refuse a login, and end its connection: there is no other attempt by it."""
        self._outbox.refuse(caller, error)
        failed = isinstance(error, NotAuthenticated)
        self._outbox.put(Hangup(session.id, str(error), failed))

    def _renew(self, session: Session, caller: Caller, token: bytes) -> None:
        """Let a session that came by a token go on by another one of the same user, that gives the
        same. One that does not fit changes nothing. Raises as `_login` does.
        """
        if not self._news.in_sync:
            raise no_registry()
        try:
            self._take_token(session, caller, token)
        except NotAuthenticated:
            self._saw(session, BEARER, session.principal, "refused")
            raise

    def check_deadlines(self) -> None:
        """Go on with logins that have waited for long enough."""
        if not self._slowed:
            return
        for one in self._slowed.take(self._seconds()):
            try:
                self._answer(one.session, one.caller, one.first, one.line)
            except Refused as error:
                if _is_over(one.session):
                    self._end(one.session, one.caller, error)
                else:
                    self._outbox.refuse(one.caller, error)

    def closed(self, session: int) -> None:
        """A connection is gone: its login does not wait any more."""
        self._slowed.closed(session)

    def _challenge(self, session: Session, caller: Caller, message: bytes, ticket: bytes) -> None:
        first = parse_first(message)
        user, now = _full(first.user), self._seconds()
        if ticket:
            line, wait = self._own_line(self._catalog.access.user(user), ticket), 0.0
        else:
            line, wait = f"{user}\0{session.origin}", self.failures.wait(user, now)
        seconds = self._lines.seconds(line, now, wait)
        if seconds is None:
            raise Overloaded(
                "too many logins of this user from this address failed: try again later",
                RETRY_AFTER_MS,
            )
        if seconds:
            self._slowed.add(now + seconds, _Slowed(session, caller, first, line))
        else:
            self._answer(session, caller, first, line)

    def _own_line(self, user: User | None, ticket: bytes) -> str:
        """Return the line of who shows a ticket of a user. Raises `NotAuthenticated` if it is none,
        or if there is no such user: nobody learns which.
        """
        principal, password_set = ("", 0) if user is None else (user.principal, user.password_set)
        now = self._time.wall_ms() / 1_000
        issuer = self._issuer()
        found = issuer and issuer.id_of(ticket, principal, password_set, now)
        if not found:
            raise NotAuthenticated(_NO_TICKET)
        return f"\0{found.hex()}"  # no user's name begins so

    def _ticket(self, user: User) -> bytes:
        """Return a ticket for the next login of a user; empty where none can be made."""
        try:
            issuer = self._issuer()
        except Unavailable:  # a login by token needs no secret of this node
            return b""
        if self._random is None or issuer is None:
            return b""
        id, now = self._random(TICKET_ID_BYTES), self._time.wall_ms() / 1_000
        return issuer.issue(user.principal, user.password_set, now, id)

    def _issuer(self) -> TicketIssuer | None:
        """Return what makes tickets; None in a set that never had a user. Raises `Unavailable`."""
        secret = self._catalog.access.open_secret(self._vault)
        return TicketIssuer(secret, self._system) if secret else None

    def _answer(self, session: Session, caller: Caller, first: ClientFirst, line: str) -> None:
        if self._random is None:
            raise Unavailable("this node draws no random bytes: it accepts no logins")
        access = self._catalog.access
        name = _full(first.user)  # else two names of nobody would have two false salts
        user = access.user(name)
        # Opened for all alike, so that a node that cannot tells nobody which users there are.
        secret = access.open_secret(self._vault)
        found = self._open(access, user, secret)
        principal = "" if user is None else user.principal
        if name == RESCUER and self._rescue.rescue is not None:
            found, principal = self._rescue.rescue, RESCUER
        verifier = choose_verifier(found, secret, name)
        server = ScramServer(first, verifier, encode_nonce(self._random(NONCE_BYTES)))
        session.attempt = Attempt(server, principal, access.version, name, line)
        self._outbox.reply(caller, LoginStep(server.challenge))

    def _open(self, access: Access, user: User | None, secret: bytes) -> ScramVerifier | None:
        """Return the verifier of a user; None if there is no such user. `secret` is what false
        salts are made of, opened.

        Where verifiers are wrapped one is opened either way: to open none takes a tenth less time,
        and who measures often would learn which users there are.
        """
        if secret != access.secret and (user is None or not isinstance(user.verifier, bytes)):
            if self._nobody is None:
                false = msgspec.msgpack.encode(false_verifier(secret, _NOBODY))
                wrapped = self._vault.seal(false, purpose_of_verifier(_NOBODY))
                self._nobody = User(_NOBODY, 0, wrapped, 0)
            access.open_verifier(self._nobody, self._vault)
        return None if user is None else access.open_verifier(user, self._vault)

    def _take_token(
        self, session: Session, caller: Caller, token: bytes, ticket: bytes = b""
    ) -> None:
        access, now = self._catalog.access, self._time.wall_ms() / 1_000
        user, claims = bearer_of(access, bytes(token), now)
        if ticket:
            self._own_line(user, ticket)
        limits = claims.limits
        if session.token is not None:
            known = session.token.limits
            if user.principal != session.principal or (known.roles, known.topics) != (
                limits.roles, limits.topics
            ):  # fmt: skip
                raise NotAuthenticated(NOBODY)
        session.principal, session.admitted_at = user.principal, access.version
        session.token = SessionToken(claims.issuer, claims.key_id, claims.token_id, limits)
        self._ends.set(session, claims.expires)
        self._saw(session, BEARER, user.name, "allowed")
        left = max(int(claims.expires - now), 0)
        self._outbox.reply(caller, LoginStep(b"%d" % left, True, user.name, self._ticket(user)))

    def _finish(self, session: Session, caller: Caller, attempt: Attempt, message: bytes) -> None:
        try:
            proof = attempt.server.finish(message)
        except NotAuthenticated:
            now = self._seconds()
            self.failures.failed(attempt.user, now)
            self._lines.failed(attempt.line, now)
            raise
        if attempt.principal == RESCUER and self._rescue.rescue is not None:
            # It is no user: another shard need not have the same news to know of it.
            session.principal, session.admitted_at = RESCUER, 0
            self._saw(session, MECHANISM, RESCUER, "allowed")
            self._outbox.reply(caller, LoginStep(proof, True, RESCUER))
            return
        user = self._catalog.access.user_of(attempt.principal)
        if user is None or user.password_set > attempt.version:
            # Revoked between the two steps, or given another password.
            raise NotAuthenticated("the login failed: check the user and the password")
        session.principal, session.admitted_at = user.principal, attempt.version
        self._saw(session, MECHANISM, user.name, "allowed")
        self._outbox.reply(caller, LoginStep(proof, True, user.name, self._ticket(user)))

    def _saw(self, session: Session, mechanism: str, user: str, outcome: Outcome) -> None:
        self._audit.login(session, mechanism, user, outcome, self._catalog.access.version)

    def _seconds(self) -> float:
        return self._time.monotonic_ms() / 1_000


def _is_over(session: Session) -> bool:
    """Return whether a refusal of a login ends its connection: if it has shown a ticket, and is not
    let in. The host lets such a connection pass the line of its address, so that a second attempt
    by it would have waited in no line.
    """
    is_stranger = not (session.greeted or session.passed) and session.principal == ANONYMOUS
    return session.has_shown_ticket and is_stranger


def _full(name: str) -> str:
    try:
        return user_name(name)
    except BadName:  # nobody has it, which is all that the other side may learn
        return name
