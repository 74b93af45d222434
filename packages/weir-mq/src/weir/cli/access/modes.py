"""`weir access`: the mode of a set, its first administrator, key files, and the way back in.

`weir access rescue` makes an administrator for a user who may write into a node's data folder.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weir.cli.access.verbs import (
    AsJson,
    PasswordFile,
    change,
    new_password,
    show_help,
    state_of,
)
from weir.cli.connection import DEFAULT_URL, Url, connected

if TYPE_CHECKING:
    from weir.client.access import AccessChange
    from weir.client.client import Client

access_app = typer.Typer(name="access", help="Let a set be open, watch or closed.")


@access_app.callback(invoke_without_command=True)
def access(context: typer.Context) -> None:
    """Let a set be open, watch or closed."""
    show_help(context)


@access_app.command()
def init(
    user: Annotated[str, typer.Option("--user", help="The first administrator.")] = "admin",
    password_file: PasswordFile = None,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Create the first administrator. The set stays as open as it is until you close it. Its CA is
    made by `weir cert init`, and the nodes' key file by `weir access key`, where they are kept.
    """
    from weir.cli.output import hint

    password = new_password(user, password_file)
    change(
        url, as_json, f"user {user} is created, with the role admin", {"user": user},
        lambda client: client.access.create_user(user, password, ["admin"]),
    )  # fmt: skip
    if not as_json:
        hint("Next: weir access mode watch, weir acl suggest, and then weir access mode closed")


@access_app.command()
def mode(
    mode: Annotated[str, typer.Argument(help="open, watch or closed.")],
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Let the set be open, watch or closed, without a restart."""
    from typing import cast

    from weir.client.access import AccessMode

    if mode not in ("open", "watch", "closed"):
        raise typer.BadParameter(f"{mode!r}: give open, watch or closed", param_hint="MODE")
    change(
        url, as_json, f"the mode is {mode}", {"mode": mode},
        lambda client: client.access.set_mode(cast(AccessMode, mode)),
    )  # fmt: skip


@access_app.command("key")
def make_key(
    file: Annotated[Path, typer.Argument(help="The file to make, outside the data folder.")],
    as_json: AsJson = False,
) -> None:
    """Make a key file, by which nodes wrap secrets at rest. Copy it to all nodes of the set."""
    from weir.cli.output import hint, print_json
    from weir.server.key_files import create_key_file

    create_key_file(file)
    if as_json:
        print_json("weir.access-key/1", {}, {"file": str(file)})
        return
    print(f"{file} holds a new key; its user alone may read it")
    hint(f"Next: copy it to all nodes, and start each with WEIR__ACCESS__KEY_FILE={file}")


@access_app.command()
def rescue(
    data: Annotated[Path, typer.Option(help="The data folder of a node that runs here.")],
    user: Annotated[str, typer.Option("--user", help="The user to make admin.")] = "admin",
    password_file: PasswordFile = None,
    as_json: AsJson = False,
    url: Annotated[
        str, typer.Option(help="Where the node is reached, if not by loopback; without a user.")
    ] = "",
) -> None:
    """Make a user an administrator with a new password, on the machine of a node.

    It needs write access to the node's data folder. The user is created if it does not exist.
    """
    from weir.cli.output import print_json

    made = _rescued(data, user, new_password(user, password_file), url)
    if as_json:
        told = {"user": user, "version": made.version}
        print_json("weir.access-rescue/1", {"data": str(data)}, told)
    else:
        print(f"user {user} has the role admin, and the new password")


@access_app.command()
def rewrap(as_json: AsJson = False, url: Url = DEFAULT_URL) -> None:
    """Wrap all secrets at rest by the first key of the nodes' key file. All nodes must have that
    key by now, and the one before: drop that from the files behind this.
    """
    from weir.cli.output import counted, hint, print_json, progress

    async def work(client: Client) -> int:
        total = await client.access.secrets_left()
        with progress("secrets", total) as show:
            await client.access.rewrap(lambda left: show(total - left))
        return total

    done = connected(url, work)
    if as_json:
        print_json("weir.access-rewrap/1", {"url": url}, {"rewrapped": done, "left": 0})
        return
    print(f"{counted(done, 'secret')} rewrapped: all are wrapped by the first key now")
    hint("Next: remove the other keys from the key file of each node, and restart them in turn")


@access_app.command()
def status(as_json: AsJson = False, url: Url = DEFAULT_URL) -> None:
    """Show the mode, how many users and roles there are, and the administrators."""
    from weir.cli.output import counted, print_json

    found = state_of(url)
    admins = [one.name for one in found.users if "admin" in one.roles]
    told = {
        "mode": found.mode,
        "version": found.version,
        "users": len(found.users),
        "roles": len(found.roles),
        "admins": admins,
    }
    if as_json:
        print_json("weir.access/1", {"url": url}, told)
        return
    print(
        f"mode {found.mode}, version {found.version}; {counted(len(found.users), 'user')} and "
        f"{counted(len(found.roles), 'role')}; role admin: {', '.join(admins) or 'nobody'}"
    )


def _rescued(folder: Path, user: str, password: str, url: str = "") -> AccessChange:
    """Make a user an administrator with this password, by the node that runs on a folder. Raises
    `NotRescued`, `BadRequest`, and what a client raises.
    """
    from weir.cli.access.rescue import rescued

    return rescued(folder, lambda client: _restore(client, user, password), url)


async def _restore(client: Client, user: str, password: str) -> AccessChange:
    from weir.model.topic import split_name

    name = "/".join(split_name(user))
    users = {one.name for one in (await client.access.describe()).users}
    if name not in users:
        return await client.access.create_user(user, password, ["admin"])
    # In this order: the old password must not be an administrator's for a moment.
    await client.access.set_password(user, password)
    return await client.access.change_roles(user, add=["admin"])
