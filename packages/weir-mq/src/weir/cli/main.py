"""`weir`: puts the verbs together, and turns errors into one line and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from copy import copy
from functools import cache
from importlib import metadata
from typing import TYPE_CHECKING, Annotated

import typer

from weir.cli import dev, inspect, messages, server, work
from weir.cli.access import audit, context_verbs, tokens
from weir.cli.access import verbs as access
from weir.cli.admin import (
    certificates,
    clusters,
    devices,
    fleets,
    nodes,
    quotas,
    relays,
    schemas,
    sinks,
    topics,
    topology,
)
from weir.cli.backup import verbs as backup
from weir.cli.doctor import doctor
from weir.cli.process import (
    CLOSED,
    EXIT_UNREAD,
    finish,
    in_words,
    needs_stdout,
    not_installed,
    replace_closed,
)
from weir.cli.spark import pipeline
from weir.cli.spark import verbs as spark
from weir.errors import WeirError

if TYPE_CHECKING:
    from typer._click import Command

#: Where other distributions name the verbs that they add: Typer apps, or functions of one command.
VERBS = "weir.verbs"
#: What weir-lab adds; without it these verbs say what to install.
LAB_VERBS = frozenset({"bench", "chaos", "demo", "lab", "sim"})
#: What the program answers without any verb.
_NO_VERB = frozenset({"", "--version"})

#: What somebody may try to say a secret by, and what to do instead.
_SECRETS = frozenset({"--password", "--token", "--secret"})
_NO_SECRETS = (
    "others see the words of a command; set WEIR_PASSWORD (of a new user: WEIR_NEW_PASSWORD), or "
    "name a file of mode 0600 by WEIR_PASSWORD_FILE"
)

FIRST_WORDS = """\
weir, a durable message broker: every message once, in one order in its partition.

  weir dev                         a node to play with; or, to keep: weir serve
  weir topic create flights        then, in a second terminal, make a topic
  weir tail flights                watch it
  weir pub flights hello           and publish

Next: weir dev          All verbs: weir --help        A tour: weir demo
"""

app = typer.Typer(
    name="weir",
    help="A durable message broker: every message once, in one order in its partition.",
    add_completion=False,
    pretty_exceptions_enable=False,
    # Plain help: the rich one would double the time that `weir --help` takes.
    rich_markup_mode=None,
)
app.command()(server.init)
app.command()(server.serve)
app.command()(relays.relay)
app.command()(dev.dev)
app.add_typer(topics.app)
app.add_typer(clusters.app)
app.add_typer(devices.app)
app.add_typer(certificates.app)
app.add_typer(fleets.app)
app.add_typer(quotas.app)
app.add_typer(nodes.app)
app.add_typer(topology.app)
app.add_typer(schemas.app)
app.add_typer(sinks.app)
app.add_typer(access.user_app)
app.add_typer(access.role_app)
app.add_typer(access.acl_app)
app.add_typer(access.access_app)
app.add_typer(context_verbs.context_app)
app.add_typer(tokens.token_app)
app.add_typer(spark.app)
app.add_typer(pipeline.app)
app.command()(messages.pub)
app.command()(messages.tail)
app.command()(messages.sub)
app.command()(work.work)
app.command()(inspect.inspect)
app.add_typer(server.config_app)
app.command()(audit.audit)
app.command()(doctor.doctor)
app.command()(backup.backup)
app.command()(backup.restore)


@app.callback(invoke_without_command=True)
def weir(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """A durable message broker: every message once, in one order in its partition."""
    if version:
        from weir import __version__

        print(__version__)
    elif context.invoked_subcommand is None:
        print(FIRST_WORDS, end="")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0, 1 for an error, 2 for wrong usage, 141 if
    whoever read its output went before it was done.
    """
    words = sys.argv[1:] if arguments is None else arguments
    try:
        command = _command(words[0] if words else "")
        code = command.main(words, prog_name="weir", standalone_mode=False)
    except typer.TyperException as error:
        verb = getattr(getattr(error, "ctx", None), "command_path", "weir")
        what = error.format_message().rstrip(".")
        if getattr(error, "option_name", "") in _SECRETS:
            return _say(f"{what}: {_NO_SECRETS}", error.exit_code)
        return _say(f"{what}. See `{verb} --help`", error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except SystemExit as ended:
        # That is how Typer takes a `BrokenPipeError`.
        if not isinstance(ended.__context__, BrokenPipeError):
            raise
        return EXIT_UNREAD
    except WeirError as error:
        for problem in getattr(error, "problems", (str(error),)):
            _say(problem, 1)
        return 1
    except UnicodeEncodeError as error:
        # Bytes of the command line that are no UTF-8 are surrogates in Python.
        given = error.object.encode(errors="backslashreplace").decode()
        return _say(f"{given} is not UTF-8, as names and tags are", 2)
    except OSError as error:
        return _say(in_words(error), 1)
    except ModuleNotFoundError as error:
        if not (advice := not_installed(error)):
            raise
        return _say(advice, 1)
    return int(code or 0)


@cache
def _command(verb: str) -> Command:
    """Return the command that knows `verb`, or that knows all where there is no such verb.

    All verbs take a tenth of a second to build, and each process uses one. Raises
    `ModuleNotFoundError` for a verb of weir-lab where weir-lab is not installed.
    """
    one = copy(app)
    one.registered_commands = [
        known
        for known in app.registered_commands
        if known.callback is not None and known.callback.__name__ == verb
    ]
    one.registered_groups = [
        known
        for known in app.registered_groups
        if known.typer_instance is not None and known.typer_instance.info.name == verb
    ]
    if one.registered_commands or one.registered_groups or verb in _NO_VERB:
        return _built(one)
    if found := [*_added(verb)]:
        return _built(_with(one, found))
    if verb in LAB_VERBS:
        raise ModuleNotFoundError(f"no verb {verb}", name="weir_lab")
    return whole_command()


def _built(one: typer.Typer) -> Command:
    return context_verbs.add_context_option(typer.main.get_command(one))


def whole_command() -> Command:
    """Return the command that knows all verbs, those of other distributions included."""
    return _built(_with(copy(app), [*_added()]))


def _added(verb: str = "") -> Iterator[object]:
    """Yield verbs of other distributions: all, or one by name. Ours go before those."""
    ours = {known.callback.__name__ for known in app.registered_commands if known.callback}
    groups = [known.typer_instance for known in app.registered_groups]
    ours |= {str(group.info.name) for group in groups if group is not None}
    for point in sorted(metadata.entry_points(group=VERBS)):
        if point.name not in ours and verb in ("", point.name):
            yield point.load()


def _with(one: typer.Typer, verbs: Sequence[object]) -> typer.Typer:
    """Return a copy of an app that knows these verbs as well."""
    more = typer.Typer()
    for verb in verbs:
        if isinstance(verb, typer.Typer):
            more.add_typer(verb)
        elif callable(verb):
            more.command()(verb)
    one.registered_commands = [*one.registered_commands, *more.registered_commands]
    one.registered_groups = [*one.registered_groups, *more.registered_groups]
    return one


def run() -> None:
    """Be the process `weir`."""
    if "stdout" in replace_closed() and needs_stdout(sys.argv[1:]):
        sys.exit(_say(CLOSED, 1))
    sys.exit(finish(main()))


def _say(what: str, code: int) -> int:
    with suppress(BrokenPipeError):
        print(" ".join(what.split()), file=sys.stderr)
    return code
