"""`weir context`, and the option `--context` of every verb that has `--url`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from weir.cli.access.verbs import AsJson, show_help

if TYPE_CHECKING:
    from typer._click import Command

    from weir.cli.access.contexts import Context, Contexts

R = TypeVar("R")

context_app = typer.Typer(
    name="context", help="Name sets and users once, for all verbs: never a password."
)

Name = Annotated[str, typer.Argument(help="The name of a context.")]
#: Where a verb finds the name of its context.
_CHOSEN = "context"


@context_app.callback(invoke_without_command=True)
def context(context: typer.Context) -> None:
    """Name sets and users once, for all verbs: never a password."""
    show_help(context)


@context_app.command()
def add(
    name: Name,
    address: Annotated[
        str, typer.Option("--url", help="Where the set is: weir://HOST, or weirs://HOST by TLS.")
    ],
    user: Annotated[str, typer.Option(help="The user: `user`, or `namespace/user`.")] = "",
    ca: Annotated[str, typer.Option(help="A file with the CAs of brokers.")] = "",
    certificate: Annotated[str, typer.Option(help="A file with the user's certificate.")] = "",
    key: Annotated[str, typer.Option(help="A file with the certificate's key.")] = "",
    server_name: Annotated[str, typer.Option(help="The name in brokers' certificates.")] = "",
    password_file: Annotated[
        str, typer.Option(help="A file of mode 0600 with the password, read at each login.")
    ] = "",
    use: Annotated[bool, typer.Option("--use", help="Use it from now on.")] = False,
    as_json: AsJson = False,
) -> None:
    """Add a context, or replace the one of its name. The first one is used from then on."""
    from weir.cli.access.contexts import Context

    made = _checked(
        lambda: Context.of_address(
            address, user=user, ca=ca, certificate=certificate, key=key,
            server_name=server_name, password_file=password_file,
        )
    )  # fmt: skip
    found = _change(lambda contexts: contexts.adding(name, made, use))
    _print(name, found, as_json, f"context {name} is {made.address}")


@context_app.command("use")
def use_context(name: Name, as_json: AsJson = False) -> None:
    """Let verbs go by a context, where neither an option nor the environment says another one."""
    found = _change(lambda contexts: contexts.using(name))
    _print(name, found, as_json, f"context {name} is in use: {found.find(name).address}")


@context_app.command("list")
def list_contexts(as_json: AsJson = False) -> None:
    """List contexts; the one in use has a star."""
    from weir.cli.output import hint, print_json, print_table

    found = _read()
    if as_json:
        rows = {name: one.told() for name, one in found.by_name.items()}
        print_json("weir.context-list/1", {}, {"current": found.current, "contexts": rows})
    elif found.by_name:
        rows_ = [
            ("*" if name == found.current else "", name, one.url, one.user or "(nobody)")
            for name, one in found.by_name.items()
        ]
        print_table(("", "CONTEXT", "URL", "USER"), rows_)
    else:
        print("no contexts")
        hint("Next: weir context add NAME --url weir://HOST --user USER")


@context_app.command()
def show(
    name: Annotated[str, typer.Argument(help="A context. [default: the one in use]")] = "",
    as_json: AsJson = False,
) -> None:
    """Show a context."""
    found = _read()
    if not (name or found.current):
        raise typer.BadParameter("no context is in use: name one", param_hint="NAME")
    one = _checked(lambda: found.find(name or found.current))
    _print(
        name or found.current, found, as_json,
        "\n".join(f"{key}: {value}" for key, value in one.told().items()),
    )  # fmt: skip


@context_app.command()
def remove(name: Name, as_json: AsJson = False) -> None:
    """Remove a context. If it was in use, none is."""
    from weir.cli.output import print_json

    found = _change(lambda contexts: contexts.removing(name))
    if as_json:
        print_json("weir.context-removed/1", {"context": name}, {"current": found.current})
    else:
        print(f"context {name} is removed")


# -- every verb ----------------------------------------------------------------------------------


def add_context_option(command: Command) -> Command:
    """Give a command, and all within it, the option `--context` where they have `--url`; and let
    these go by contexts. Return it.
    """
    for one in getattr(command, "commands", {}).values():
        add_context_option(one)
    url = next((one for one in command.params if one.name == "url"), None)
    if url is not None and "--url" in url.opts:
        url.callback = _address
        command.params.append(_option())
    return command


def _holder(
    context: Annotated[
        str | None,
        typer.Option(
            "--context",
            help="Connect as a context says: `weir context list` names them.",
            envvar=None,
            expose_value=False,
            is_eager=True,  # what it says is there when --url is looked at
        ),
    ] = None,
) -> None:
    """Have the option."""


def _option() -> Any:
    """Return a new option; Typer makes it of a function's parameter."""
    app = typer.Typer(add_completion=False)
    app.command()(_holder)
    made = next(one for one in typer.main.get_command(app).params if "--context" in one.opts)
    made.callback = _note
    return made


def _note(context: Any, _: object, value: str | None) -> str | None:
    context.meta[_CHOSEN] = value
    return value


def _address(context: Any, parameter: Any, value: Any) -> Any:
    """Return where a verb connects to."""
    from weir.cli.access.contexts import BadContext, address_in_use, enter

    if context.resilient_parsing:
        return value
    source = context.get_parameter_source(parameter.name)
    given = source is not None and source.name == "COMMANDLINE"
    name = context.meta.get(_CHOSEN)
    try:
        if name is not None:
            if given:
                raise typer.BadParameter("give either --url or --context, not both")
            return enter(_read().find(name))
        return value if given else address_in_use() or value
    except BadContext as error:
        raise typer.BadParameter(str(error), param_hint="--context") from None


# -- steps ---------------------------------------------------------------------------------------


def _read() -> Contexts:
    from weir.cli.access.contexts import contexts_file, read_contexts

    return _checked(lambda: read_contexts(contexts_file()))


def _change(change: Callable[[Contexts], Contexts]) -> Contexts:
    from weir.cli.access.contexts import contexts_file, write_contexts

    before = _read()
    after = _checked(lambda: change(before))
    write_contexts(contexts_file(), after)
    return after


def _checked(make: Callable[[], R]) -> R:
    """Return what is made. Raises `typer.BadParameter` for what cannot be one."""
    from weir.cli.access.contexts import BadContext

    try:
        return make()
    except BadContext as error:
        raise typer.BadParameter(str(error)) from None


def _print(name: str, contexts: Contexts, as_json: bool, words: str) -> None:
    from weir.cli.output import print_json

    one: Context = contexts.find(name)
    if as_json:
        told = {"current": contexts.current == name, **one.told(), "address": one.address}
        print_json("weir.context/1", {"context": name}, told)
    else:
        print(words)
