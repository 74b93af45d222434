"""Requests and replies about who may do what: logins, users, roles, and the mode of a set."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from weir.access.credentials import ScramVerifier
from weir.errors import (
    BadName,
    LevelTooLow,
    NotAuthenticated,
    TooLarge,
    UnknownRole,
    UnknownUser,
    UserExists,
)
from weir.model.ids import Natural
from weir.model.limits import (
    KIB,
    NAME_CHARACTERS_MAX,
    ROLE_RULES_MAX,
    USER_ROLES_MAX,
)
from weir.protocol.client.declaration import (
    Asker,
    Control,
    ControlReply,
    ControlRequest,
    Declaration,
    Request,
    Resource,
    Retry,
    Right,
    Scope,
)

#: Any name of a user, a role or a resource; cut before it is looked at.
Name = Annotated[str, Meta(max_length=4 * NAME_CHARACTERS_MAX)]
Word = Annotated[str, Meta(max_length=32)]
Roles = Annotated[tuple[Name, ...], Meta(max_length=USER_ROLES_MAX)]
#: Of a login: a message of SCRAM, or a token.
LOGIN_BYTES_MAX = 16 * KIB
#: Of a ticket; those of this release have 57 bytes.
TICKET_BYTES_MAX = 256
#: Verbs of one rule.
_VERBS_MAX = 16


class LoginStep(ControlReply, frozen=True, array_like=True):
    """What the broker answers to a step of a login. Once it is `done`, the connection is that of
    the `user`. Show the `ticket`, if there is one, at the next login.
    """

    message: bytes
    done: bool = False
    user: str = ""
    ticket: bytes = b""


class Login(ControlRequest, frozen=True, array_like=True):
    """Say who asks by this connection, before Hello. The mechanism SCRAM-SHA-256 takes two: the
    client's first message, then its proof. Check the broker's own proof in the last answer.

    The first message may bring the `ticket` that the user's last login got: then it does not wait
    for failed logins of others. If a login with a ticket is refused, the broker ends the
    connection: connect again, and log in without that ticket.
    """

    declaration = Declaration(
        70,
        Scope.COPY,
        LoginStep,
        Retry.SAME,
        free="it says who asks",
        asker=Asker.STRANGER,
        refusals=(NotAuthenticated,),
        methods=("connect",),
    )

    mechanism: Word
    message: Annotated[bytes, Meta(max_length=LOGIN_BYTES_MAX)]
    ticket: Annotated[bytes, Meta(max_length=TICKET_BYTES_MAX)] = b""


class RuleRow(Control, frozen=True, array_like=True):
    """A rule of a role: it allows `verbs` with the resources of this `kind` that have exactly this
    name, or with `prefix`, that have a name beginning so.
    """

    verbs: Annotated[tuple[Word, ...], Meta(max_length=_VERBS_MAX)]
    kind: Word
    name: Name
    prefix: bool = False


Rules = Annotated[tuple[RuleRow, ...], Meta(max_length=ROLE_RULES_MAX)]


class UserRow(Control, frozen=True, array_like=True):
    """A user, `NAMESPACE/NAME`, its number, which no other user ever has, and its roles."""

    user: str
    number: Natural
    roles: tuple[str, ...]


class RoleRow(Control, frozen=True, array_like=True):
    """A role and its rules."""

    role: str
    rules: tuple[RuleRow, ...]


class AccessInfo(ControlReply, frozen=True, array_like=True):
    """The mode of the set, its access version, and users and roles in the order of their names; if
    there are `more`, ask again after the last user and role.
    """

    mode: str
    version: Natural
    users: list[UserRow]
    roles: list[RoleRow]
    more: bool = False


class DescribeAccess(ControlRequest, frozen=True, array_like=True):
    """Ask for the mode, and for the users and the roles whose names come after these."""

    declaration = Declaration(
        71,
        Scope.COPY,
        AccessInfo,
        Retry.READ,
        rights=(Right("administer", Resource.SYSTEM),),
        methods=("Access.describe",),
    )

    after_user: Name = ""
    after_role: Name = ""


class AccessChanged(ControlReply, frozen=True, array_like=True):
    """A change is made, and has this access version. All shards keep to it from here on but those
    that were not `reached`, as (node, shard): they do once they hear of it, and without any news
    they have ended all sessions that they let in by `stops_by_ms`, in milliseconds since 1970; 0 if
    all were reached, or if those may take the set for one that is not closed.
    """

    version: Natural
    unreached: list[tuple[Natural, Natural]]
    stops_by_ms: Natural = 0


class ChangeUser(ControlRequest, frozen=True, array_like=True):
    """Create a user, set its `password`, give it roles and take roles from it (`roles`), or
    `revoke` it: then its connections end, and all it had is gone.

    `verifier` is what the client makes of the password, which it never sends. Answered once all
    shards that can be reached keep to it.
    """

    declaration = Declaration(
        72,
        Scope.REGISTRY,
        AccessChanged,
        Retry.SAME,
        rights=(Right("administer", Resource.SYSTEM),),
        refusals=(BadName, UserExists, UnknownUser, UnknownRole, TooLarge, LevelTooLow),
        methods=(
            "Access.create_user",
            "Access.set_password",
            "Access.change_roles",
            "Access.revoke_user",
        ),
    )

    action: Literal["create", "password", "roles", "revoke"]
    user: Name
    verifier: ScramVerifier | None = None
    added: Roles = ()
    removed: Roles = ()


class ChangeRole(ControlRequest, frozen=True, array_like=True):
    """Add rules to a role, and remove rules; it is made if it is not there. Or delete it."""

    declaration = Declaration(
        73,
        Scope.REGISTRY,
        AccessChanged,
        Retry.SAME,
        rights=(Right("administer", Resource.SYSTEM),),
        refusals=(BadName, UnknownRole, TooLarge, LevelTooLow),
        methods=("Access.change_rules", "Access.delete_role"),
    )

    role: Name
    added: Rules = ()
    removed: Rules = ()
    delete: bool = False


class SetAccessMode(ControlRequest, frozen=True, array_like=True):
    """Let the set be open, watch or closed from here on, without a restart."""

    declaration = Declaration(
        74,
        Scope.REGISTRY,
        AccessChanged,
        Retry.SAME,
        rights=(Right("administer", Resource.SYSTEM),),
        refusals=(LevelTooLow,),
        methods=("Access.set_mode",),
    )

    mode: Literal["open", "watch", "closed"]


class AccessExplained(ControlReply, frozen=True, array_like=True):
    """Whether a user may do what was asked, and the role and rule that let it."""

    allowed: bool
    role: str = ""
    rule: RuleRow | None = None


class ExplainAccess(ControlRequest, frozen=True, array_like=True):
    """Ask whether a user may do a verb with a resource, and by which rule."""

    declaration = Declaration(
        75,
        Scope.COPY,
        AccessExplained,
        Retry.READ,
        rights=(Right("administer", Resource.SYSTEM),),
        refusals=(BadName, UnknownUser),
        methods=("Access.explain",),
    )

    user: Name
    verb: Word
    kind: Word
    name: Name = ""


class RefusalRow(Control, frozen=True, array_like=True):
    """What a principal asked for and no rule allows, and how often since the shard started."""

    principal: str
    verb: str
    kind: str
    name: str
    count: Natural


class RefusalList(ControlReply, frozen=True, array_like=True):
    """What a shard refused, or would have refused in the mode `watch`; `forgotten` more were too
    many to keep by name.
    """

    node: Natural
    shard: Natural
    rows: list[RefusalRow]
    forgotten: Natural = 0


class ListRefusals(ControlRequest, frozen=True, array_like=True):
    """Ask one shard for what it refused, or would have: `place` 0 is the one that gets this."""

    declaration = Declaration(
        76,
        Scope.SHARD,
        RefusalList,
        Retry.READ,
        rights=(Right("administer", Resource.SYSTEM),),
        methods=("Access.refusals",),
    )

    place: Natural = 0


class SecretsLeft(ControlReply, frozen=True, array_like=True):
    """How many secrets are stored that the key that wraps now did not wrap."""

    left: Natural


class RewrapSecrets(ControlRequest, frozen=True, array_like=True):
    """Let secrets be wrapped by the first key of the nodes' key file: some at a time, so ask until
    none is `left`. With `count_only` nothing changes.
    """

    declaration = Declaration(
        93,
        Scope.REGISTRY,
        SecretsLeft,
        Retry.SAME,
        rights=(Right("administer", Resource.SYSTEM),),
        methods=("Access.rewrap", "Access.secrets_left"),
    )

    count_only: bool = False


class AccessReached(ControlReply, frozen=True, array_like=True):
    """The access version that a shard keeps to: it serves nothing that this one forbids."""

    version: Natural


class ReachAccess(ControlRequest, frozen=True, array_like=True):
    """Only a shard of the set asks this: answer once this shard keeps to an access version."""

    declaration = Declaration(77, Scope.HERE, AccessReached, Retry.READ, asker=Asker.SHARD)

    version: Natural


#: All requests of this page.
REQUESTS: tuple[type[Request], ...] = (
    Login,
    DescribeAccess,
    ChangeUser,
    ChangeRole,
    SetAccessMode,
    ExplainAccess,
    ListRefusals,
    ReachAccess,
    RewrapSecrets,
)
