"""`weir user`, `weir role` and `weir acl`: users and their rights.

A new password comes from a question, a file, or the environment; never from the command line, which
others can read.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weir.cli.connection import DEFAULT_URL, Url, changed, connected
from weir.errors import WeirError

if TYPE_CHECKING:
    from weir.client.access import (
        AccessChange,
        AccessReason,
        AccessRule,
        AccessState,
        AccessUser,
    )
    from weir.client.client import Client

user_app = typer.Typer(name="user", help="Create and revoke users, and give them roles.")
role_app = typer.Typer(name="role", help="Show what roles may do, and delete roles.")
acl_app = typer.Typer(name="acl", help="Give rights to roles, and explain decisions about users.")

User = Annotated[str, typer.Argument(help="`user`, or `namespace/user`.")]
Role = Annotated[str, typer.Argument(help="The name of a role; admin may do everything.")]
Roles = Annotated[list[str], typer.Argument(help="Names of roles.")]
Verbs = Annotated[
    str, typer.Argument(help="Verbs, as in publish,read; `weir acl verbs` names all of them.")
]
Kind = Annotated[str, typer.Argument(help="topic, cluster, namespace, set or system.")]
Resource = Annotated[
    str, typer.Argument(help="`[NAMESPACE/]TOPIC`, `[NAMESPACE/]TOPIC:CLUSTER` or `NAMESPACE`.")
]
Prefix = Annotated[bool, typer.Option("--prefix", help="All whose names begin so.")]
Everything = Annotated[bool, typer.Option("--everything", help="All there are of this kind.")]
#: Where a new password is looked for that nobody types.
NEW_PASSWORD = "WEIR_NEW_PASSWORD"

PasswordFile = Annotated[
    Path | None,
    typer.Option(
        "--password-file",
        help=f"A file of mode 0600 with the new password; else {NEW_PASSWORD}, or it is asked for.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


class UnknownRule(WeirError):
    """The role has no such rule."""


def show_help(context: typer.Context) -> None:
    """Print the help of a group that is named without a verb of it."""
    if context.invoked_subcommand is None:
        print(context.get_help())


@user_app.callback(invoke_without_command=True)
def user(context: typer.Context) -> None:
    """Create and revoke users, and give them roles."""
    show_help(context)


@role_app.callback(invoke_without_command=True)
def role(context: typer.Context) -> None:
    """Show what roles may do, and delete roles."""
    show_help(context)


@acl_app.callback(invoke_without_command=True)
def acl(context: typer.Context) -> None:
    """Give rights to roles, and explain decisions about users."""
    show_help(context)


# -- users ---------------------------------------------------------------------------------------


@user_app.command()
def create(
    user: User,
    roles: Annotated[
        list[str] | None, typer.Option("--role", help="A role; again for more.")
    ] = None,
    password_file: PasswordFile = None,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Create a user. The password is asked for, or comes from a file or WEIR_NEW_PASSWORD."""
    password = new_password(user, password_file)
    change(
        url, as_json, f"user {user} is created", {"user": user},
        lambda client: client.access.create_user(user, password, roles or ()),
    )  # fmt: skip


@user_app.command("password")
def set_password(
    user: User,
    password_file: PasswordFile = None,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Give a user another password. Connections that came by the one before end."""
    password = new_password(user, password_file)
    change(
        url, as_json, f"user {user} has a new password", {"user": user},
        lambda client: client.access.set_password(user, password),
    )  # fmt: skip


@user_app.command()
def grant(user: User, roles: Roles, as_json: AsJson = False, url: Url = DEFAULT_URL) -> None:
    """Give a user roles."""
    change(
        url, as_json, f"user {user} has {_roles(roles)}", {"user": user, "roles": roles},
        lambda client: client.access.change_roles(user, add=roles),
    )  # fmt: skip


@user_app.command()
def take(user: User, roles: Roles, as_json: AsJson = False, url: Url = DEFAULT_URL) -> None:
    """Take roles from a user. What its connections lose by that ends."""
    settings: dict[str, object] = {"user": user, "roles": roles}

    async def work(client: Client) -> AccessChange:
        from weir.errors import UnknownRole

        known = _find(await client.access.describe(), user)
        if missing := [role for role in roles if role not in known.roles]:
            has = _roles([*known.roles]) if known.roles else "no role"
            raise UnknownRole(f"user {user} does not have {_roles(missing)}: it has {has}")
        return await client.access.change_roles(user, remove=roles)

    change(url, as_json, f"user {user} no longer has {_roles(roles)}", settings, work)


@user_app.command()
def revoke(user: User, as_json: AsJson = False, url: Url = DEFAULT_URL) -> None:
    """Let a user be gone, with all it had. Its connections end on every shard that is reached; the
    others are named.
    """

    async def work(client: Client) -> AccessChange:
        await _known(client, user)
        return await client.access.revoke_user(user)

    change(url, as_json, f"user {user} is revoked", {"user": user}, work)


@user_app.command("list")
def list_users(as_json: AsJson = False, url: Url = DEFAULT_URL) -> None:
    """List users and their roles."""
    from weir.cli.output import hint, print_json, print_table

    found = state_of(url)
    if as_json:
        rows = [{"user": one.name, "roles": [*one.roles]} for one in found.users]
        print_json("weir.user-list/1", {"url": url}, {"users": rows})
    elif found.users:
        rows_ = [(one.name, ", ".join(one.roles) or "(none)") for one in found.users]
        print_table(("USER", "ROLES"), rows_)
    else:
        print("no users")
        hint("Next: weir access init")


@user_app.command()
def show(user: User, as_json: AsJson = False, url: Url = DEFAULT_URL) -> None:
    """Show the roles of a user, and what they let it do."""
    from weir.cli.output import print_json

    async def work(client: Client) -> tuple[AccessUser, AccessState]:
        state = await client.access.describe()
        return _find(state, user), state

    one, state = connected(url, work)
    if as_json:
        roles = {role: [*map(str, state.roles.get(role, ()))] for role in one.roles}
        print_json("weir.user/1", {"url": url}, {"user": one.name, "roles": roles})
        return
    print(f"{one.name}: {_roles([*one.roles]) if one.roles else 'no role'}")
    for role in one.roles:
        for line in _lines(role, state.roles.get(role, ())):
            print(f"  {line}")


# -- roles ---------------------------------------------------------------------------------------


@role_app.command("create")
def create_role(role: Role, as_json: AsJson = False, url: Url = DEFAULT_URL) -> None:
    """Make a role that may do nothing yet. `weir acl allow` makes one as well."""
    change(
        url, as_json, f"role {role} is there", {"role": role},
        lambda client: client.access.change_rules(role),
    )  # fmt: skip


@role_app.command("list")
def list_roles(as_json: AsJson = False, url: Url = DEFAULT_URL) -> None:
    """List roles and what they may do."""
    from weir.cli.output import print_json

    found = state_of(url)
    if as_json:
        roles = {role: [*map(_row, rules)] for role, rules in found.roles.items()}
        print_json("weir.role-list/1", {"url": url}, {"roles": roles})
        return
    print("admin: everything")
    for role, rules in found.roles.items():
        print("\n".join(_lines(role, rules)))


@role_app.command("show")
def show_role(role: Role, as_json: AsJson = False, url: Url = DEFAULT_URL) -> None:
    """Show what a role may do, and which users have it."""
    from weir.cli.output import print_json

    found = state_of(url)
    rules = _role_of(found, role)
    users = [one.name for one in found.users if role in one.roles]
    if as_json:
        told = {"role": role, "rules": [*map(_row, rules)], "users": users}
        print_json("weir.role/1", {"url": url}, told)
        return
    print("\n".join(_lines(role, rules)))
    print(f"users: {', '.join(users) or 'none'}")


@role_app.command("delete")
def delete_role(role: Role, as_json: AsJson = False, url: Url = DEFAULT_URL) -> None:
    """Delete a role: no user has it any more."""

    async def work(client: Client) -> AccessChange:
        _role_of(await client.access.describe(), role)
        return await client.access.delete_role(role)

    change(url, as_json, f"role {role} is deleted", {"role": role}, work)


# -- rules ---------------------------------------------------------------------------------------


@acl_app.command()
def allow(
    role: Role,
    verbs: Verbs,
    kind: Kind,
    name: Resource = "",
    prefix: Prefix = False,
    everything: Everything = False,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Let a role do something: weir acl allow shop publish,read topic orders."""
    rule = _rule(verbs, kind, name, prefix, everything)
    change(
        url, as_json, f"role {role} may {rule}", {"role": role, "rule": str(rule)},
        lambda client: client.access.change_rules(role, add=[rule]),
    )  # fmt: skip


@acl_app.command()
def remove(
    role: Role,
    verbs: Verbs,
    kind: Kind,
    name: Resource = "",
    prefix: Prefix = False,
    everything: Everything = False,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Let a role not do something any more that it was allowed by the same words."""
    rule = _rule(verbs, kind, name, prefix, everything)
    settings: dict[str, object] = {"role": role, "rule": str(rule)}

    async def work(client: Client) -> AccessChange:
        _check_allowed(_role_of(await client.access.describe(), role), role, rule)
        return await client.access.change_rules(role, remove=[rule])

    change(url, as_json, f"role {role} may not {rule} by this rule", settings, work)


@acl_app.command()
def explain(
    user: User,
    verb: Annotated[str, typer.Argument(help="One verb, as in publish.")],
    kind: Kind,
    name: Resource = "",
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Say whether a user may do something, and by which rule, or what is missing. The exit code is
    1 if it may not.
    """
    from weir.cli.output import print_json

    async def work(client: Client) -> tuple[AccessReason, AccessUser]:
        found = await client.access.explain(user, verb, kind, name)
        return found, _find(await client.access.describe(), user)

    found, one = connected(url, work)
    about = f"{verb} {kind} {name}".rstrip()
    missing = [] if found.allowed else _missing(one, about)
    if as_json:
        rule = None if found.rule is None else str(found.rule)
        told = {"allowed": found.allowed, "role": found.role, "rule": rule,
                "roles": [*one.roles], "missing": missing}  # fmt: skip
        print_json("weir.acl-explain/1", {"url": url, "user": user, "asked": about}, told)
    elif found.allowed:
        print(f"yes: user {user} may {about}, because role {found.role} may {found.rule}")
    else:
        print(f"no: none of the roles of user {user} lets it {about}")
        print(f"it has {_roles([*one.roles]) if one.roles else 'no role'}; this would let it:")
        print("\n".join(f"  {line}" for line in missing))
    if not found.allowed:
        raise typer.Exit(1)


def _missing(user: AccessUser, about: str) -> list[str]:
    """Return the commands after which a user may do something that it may not."""
    if user.roles:
        return [f"weir acl allow {user.roles[0]} {about}"]
    return [f"weir acl allow ROLE {about}", f"weir user grant {user.name} ROLE"]


@acl_app.command("list")
def list_rules(
    role: Annotated[str, typer.Option("--role", help="Only the rules of this role.")] = "",
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
) -> None:
    """List all rules, one in a line, as `weir acl allow` and `remove` take them."""
    from weir.cli.output import print_json, print_table

    found = state_of(url)
    if role:
        _role_of(found, role)
    rows = [
        (name, rule) for name, rules in found.roles.items() for rule in rules if role in ("", name)
    ]
    if as_json:
        told = [{"role": name, **_row(rule), "rule": str(rule)} for name, rule in rows]
        print_json("weir.acl-list/1", {"url": url, "role": role}, {"rules": told})
    elif rows:
        print_table(("ROLE", "MAY"), [(name, str(rule)) for name, rule in rows])
    else:
        print("no rules")


@acl_app.command()
def suggest(as_json: AsJson = False, url: Url = DEFAULT_URL) -> None:
    """Print the rules that would allow what was refused, or would have been in the mode watch."""
    from weir.cli.output import print_json

    async def work(client: Client) -> Any:
        return await client.access.refusals()

    found = sorted(connected(url, work), key=lambda one: (-one.count, one.principal))
    if as_json:
        rows = [
            {"principal": one.principal, "rule": str(one.rule), "count": one.count} for one in found
        ]
        print_json("weir.acl-suggest/1", {"url": url}, {"missing": rows})
        return
    for one in found:
        who = one.principal.rpartition("#")[0].removeprefix("user:") or one.principal
        rule = one.rule if one.rule.name or one.rule.kind == "system" else f"{one.rule} NAME"
        print(f"weir acl allow ROLE {rule}    # {who}, {one.count:,} times")
    if not found:
        print("nothing was asked for that no rule allows")


@acl_app.command()
def verbs(as_json: AsJson = False) -> None:
    """Name the verbs that there are for each kind of resource."""
    from weir.cli.output import print_json
    from weir.protocol.client.declaration import rights_there_are
    from weir.protocol.client.messages import REQUESTS

    found = rights_there_are(REQUESTS)
    if as_json:
        print_json("weir.acl-verbs/1", {}, {kind: [*some] for kind, some in found.items()})
    else:
        for kind, some in found.items():
            print(f"{kind}: {', '.join(some)}")


# -- steps ---------------------------------------------------------------------------------------


def change(
    url: str, as_json: bool, what: str, settings: dict[str, object],
    ask: Callable[[Client], Awaitable[AccessChange]],
) -> None:  # fmt: skip
    """Make a change, and say who keeps to it: the exit code is 1 if a shard was not reached."""
    from weir.cli.output import print_json

    made = changed(url, ask)
    if as_json:
        unreached = [{"node": node, "shard": shard} for node, shard in made.unreached]
        stops_by = made.stops_by_ms / 1_000 or None
        told = {"version": made.version, "unreached": unreached, "stops_by": stops_by}
        print_json("weir.access-change/1", {"url": url, **settings}, told)
    else:
        print(what)
        for node, shard in made.unreached:
            print(
                f"not reached: shard {shard} of node {node}; it keeps to it once it hears of it"
                f"{_latest(made.stops_by_ms)}"
            )
    if made.unreached:
        raise typer.Exit(1)


def _latest(stops_by_ms: int) -> str:
    """Return what a shard does by when that hears of nothing; empty if that is not known."""
    if not stops_by_ms:
        return ""
    from datetime import UTC, datetime

    at = datetime.fromtimestamp(stops_by_ms / 1_000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    return f", and without any news has ended all its sessions by {at}"


def state_of(url: str) -> AccessState:
    async def work(client: Client) -> AccessState:
        return await client.access.describe()

    return connected(url, work)


async def _known(client: Client, user: str) -> None:
    """Raise `UnknownUser` for one that is not there: to revoke it would only seem to do much."""
    _find(await client.access.describe(), user)


def _find(state: AccessState, user: str) -> AccessUser:
    from weir.errors import UnknownUser
    from weir.model.topic import split_name

    name = "/".join(split_name(user))
    for one in state.users:
        if one.name == name:
            return one
    raise UnknownUser(f"no user {user}: `weir user list` names those that are there")


def _role_of(state: AccessState, role: str) -> tuple[AccessRule, ...]:
    """Return the rules of a role. Raises `UnknownRole`."""
    from weir.errors import UnknownRole

    if role != "admin" and role not in state.roles:
        raise UnknownRole(f"no role {role}: `weir role list` names those that are there")
    return state.roles.get(role, ())


def _check_allowed(rules: Sequence[AccessRule], role: str, removed: AccessRule) -> None:
    """Raise `UnknownRule` if no rule allows any of what is to be removed. What is removed in other
    words than it was allowed by stays allowed. Raises `BadName` and `BadRequest` as well.
    """
    from weir.broker.metadata.security.rules import make_rule

    asked = make_rule(removed.verbs, removed.kind, removed.name, removed.prefix)
    for one in rules:
        is_of_it = (one.kind, one.name, one.prefix) == (asked.kind, asked.name, asked.is_prefix)
        if is_of_it and {*one.verbs} & {*asked.verbs}:
            return
    if role != "admin":  # of which the broker says why it keeps all
        raise UnknownRule(
            f"no rule lets role {role} {removed}: `weir acl list --role {role}` shows its rules"
        )


def _rule(verbs: str, kind: str, name: str, prefix: bool, everything: bool) -> AccessRule:
    from weir.client.access import AccessRule

    if everything and (name or prefix):
        raise typer.BadParameter("it takes no name", param_hint="--everything")
    if not (name or everything) and kind != "system":
        raise typer.BadParameter(f"name a {kind}, or give --everything", param_hint="NAME")
    return AccessRule(tuple(verbs.split(",")), kind, name, prefix or everything)


def _row(rule: AccessRule) -> dict[str, object]:
    return {"verbs": [*rule.verbs], "kind": rule.kind, "name": rule.name, "prefix": rule.prefix}


def _lines(role: str, rules: Any) -> list[str]:
    if role == "admin":
        return ["admin may do everything"]
    return [f"{role} may {rule}" for rule in rules] or [f"{role} may do nothing yet"]


def _roles(roles: list[str]) -> str:
    return f"{'role' if len(roles) == 1 else 'roles'} {', '.join(roles)}"


def new_password(user: str, file: Path | None) -> str:
    """Return the new password of a user. Raises `typer.BadParameter` if there is none."""
    from weir.client.connection.credentials import read_password_file

    if file is not None:
        try:
            return read_password_file(file)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--password-file") from None
    if (given := os.environ.get(NEW_PASSWORD)) is not None:
        return given
    if not sys.stdin.isatty():
        raise typer.BadParameter(
            f"there is no terminal to type it: name a file of mode 0600, or set {NEW_PASSWORD}",
            param_hint="--password-file",
        )
    return str(
        typer.prompt(f"New password of {user}", hide_input=True, confirmation_prompt=True, err=True)
    )
