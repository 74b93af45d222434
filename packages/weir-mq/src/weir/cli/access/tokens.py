"""`weir token`: the keys that verify tokens, and tokens that the set issues."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weir.cli.access.verbs import AsJson, change
from weir.cli.connection import DEFAULT_URL, Url, changed, connected
from weir.errors import WeirError

if TYPE_CHECKING:
    from weir.client.access import AccessChange, Token, TokenKeyState
    from weir.client.client import Client

token_app = typer.Typer(name="token", help="Issue tokens, and say whose tokens are taken.")
key_app = typer.Typer(name="key", help="Add, list and remove the keys that verify tokens.")
token_app.add_typer(key_app)

#: How long a token lives if nobody says otherwise.
_LIFE = "1h"

Issuer = Annotated[str, typer.Option("--issuer", help="Its name, which tokens have as `iss`.")]


class UnknownKey(WeirError):
    """The issuer has no such key."""


@token_app.callback(invoke_without_command=True)
def token(context: typer.Context) -> None:
    """Issue tokens, and say whose tokens are taken."""
    if context.invoked_subcommand is None:
        print(context.get_help())


@key_app.callback(invoke_without_command=True)
def key(context: typer.Context) -> None:
    """Add, list and remove the keys that verify tokens."""
    if context.invoked_subcommand is None:
        print(context.get_help())


@key_app.command()
def add(
    jwks: Annotated[
        Path | None,
        typer.Option("--jwks", help="A file with the public keys of another issuer (RFC 7517)."),
    ] = None,
    issuer: Issuer = "",
    audience: Annotated[
        str, typer.Option("--audience", help="The value of `aud` in its tokens.")
    ] = "",
    namespace: Annotated[
        str, typer.Option("--namespace", help="Of the users that its tokens name by `sub`.")
    ] = "default",
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Give the set a key that signs tokens; or, with --jwks, take tokens of another issuer. A file
    that is given again replaces the keys of that issuer.
    """
    from weir.cli.output import hint, print_json

    if jwks is None:
        if issuer or audience:
            raise typer.BadParameter("name the file with its keys", param_hint="--jwks")

        async def work(client: Client) -> str:
            return await client.access.create_token_key()

        made = changed(url, work)
        if as_json:
            print_json("weir.token-key/1", {"url": url}, {"key": made})
        else:
            print(f"key {made} signs tokens of this set")
            hint("Next: weir token issue")
        return
    if not issuer or not audience:
        raise typer.BadParameter("give --issuer and --audience with it", param_hint="--jwks")
    data = jwks.read_bytes()
    change(
        url, as_json, f"tokens of {issuer} for {audience} are taken", {"issuer": issuer},
        lambda client: client.access.trust_issuer(issuer, audience, namespace, data),
    )  # fmt: skip


@key_app.command("list")
def list_keys(as_json: AsJson = False, url: Url = DEFAULT_URL) -> None:
    """List the keys that verify tokens."""
    from weir.cli.output import hint, print_json, print_table

    async def work(client: Client) -> list[TokenKeyState]:
        return await client.access.token_keys()

    found = connected(url, work)
    if as_json:
        rows = [
            {
                "issuer": one.issuer, "audience": one.audience, "namespace": one.namespace,
                "key": one.key, "algorithm": one.algorithm, "signs": one.signs,
            }
            for one in found
        ]  # fmt: skip
        print_json("weir.token-keys/1", {"url": url}, {"keys": rows})
    elif found:
        print_table(
            ("ISSUER", "AUDIENCE", "NAMESPACE", "KEY", "ALGORITHM", "SIGNS"),
            [
                (one.issuer, one.audience, one.namespace or "(any)", one.key, one.algorithm,
                 "yes" if one.signs else "no")
                for one in found
            ],
        )  # fmt: skip
    else:
        print("no keys: tokens are not taken")
        hint("Next: weir token key add")


@key_app.command()
def remove(
    key: Annotated[
        str, typer.Argument(help="The id of a key; without one, all keys of the issuer.")
    ] = "",
    issuer: Annotated[
        str, typer.Option("--issuer", help="Whose key it is; by default the set's own.")
    ] = "",
    every: Annotated[bool, typer.Option("--all", help="All keys of the issuer.")] = False,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Remove a key. Connections that came by tokens of that key end."""
    if bool(key) == every:
        raise typer.BadParameter("name a key, or give --all", param_hint="KEY")
    what = f"key {key}" if key else "each key"
    whose = f"of {issuer}" if issuer else "of this set"

    async def work(client: Client) -> AccessChange:
        _check_known(await client.access.token_keys(), issuer, key)
        return await client.access.remove_token_key(issuer, key)

    settings: dict[str, object] = {"issuer": issuer, "key": key}
    change(url, as_json, f"{what} {whose} is removed", settings, work)


@token_app.command()
def issue(
    user: Annotated[
        str, typer.Argument(help="Whose it is: `[NAMESPACE/]USER`; by default yours.")
    ] = "",
    life: Annotated[str, typer.Option("--for", help="How long it lives, as in 15m or 7d.")] = _LIFE,
    roles: Annotated[
        list[str] | None, typer.Option("--role", help="Give this role only; again for more.")
    ] = None,
    topics: Annotated[
        list[str] | None, typer.Option("--topic", help="Rights to this topic only; again for more.")
    ] = None,
    id: Annotated[str, typer.Option("--id", help="Tokens with the same id renew each other.")] = "",
    out: Annotated[
        Path | None, typer.Option("--out", help="Write it to this file, of mode 0600, instead.")
    ] = None,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Print a token of a user, or write it to a file that a client reads again and again."""
    from weir.cli.output import print_json
    from weir.cli.retention import duration

    seconds = int(duration("--for", life))
    if not seconds:
        raise typer.BadParameter("give at least 1s, as in 15m", param_hint="--for")

    async def work(client: Client) -> Token:
        return await client.access.issue_token(
            seconds, user=user, token_id=id, roles=roles, topics=topics
        )

    issued = connected(url, work)
    if out is not None:
        _write(out, issued.token)
    if as_json:
        told: dict[str, object] = {"ends": issued.ends}
        told |= {"token": issued.token} if out is None else {"file": str(out)}
        print_json("weir.token/1", {"url": url, "user": user}, told)
    elif out is None:
        print(issued.token)
    else:
        print(f"{out} holds the token")


def _check_known(keys: Sequence[TokenKeyState], issuer: str, key: str) -> None:
    """Raise `UnknownKey` if there is no such key: an administrator who removes a stolen one must
    not believe that it is gone while it still verifies. Without `key`, the issuer must have one.
    """
    for one in keys:
        is_its = one.issuer == issuer if issuer else not one.namespace
        if is_its and key in ("", one.key):
            return
    what = f"no key {key}" if key else "no key"
    raise UnknownKey(
        f"{what} of {issuer or 'this set'} verifies tokens: `weir token key list` names those "
        "that do"
    )


def _write(path: Path, token: str) -> None:
    """Put a token into a file that only its owner may read: whole, or not at all."""
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(token + "\n")
    new.replace(path)
