"""`weir`: puts the verbs together, and turns errors into one line and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from copy import copy
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Annotated

import typer

from weir.cli.access.context_verbs import add_context_option
from weir.cli.process import (
    CLOSED,
    EXIT_UNREAD,
    finish,
    in_words,
    needs_stdout,
    not_installed,
    replace_closed,
)
from weir.errors import WeirError

if TYPE_CHECKING:
    from typer._click import Command

#: Where other distributions name the verbs that they add: Typer apps, or functions of one command.
VERBS = "weir.verbs"
#: Our verbs in the order of the help, which lists those of one command first, and where each is: a
#: function, or a Typer app. A process runs one verb, and loads no module of another.
_OURS = {
    "init": "weir.cli.server:init",
    "serve": "weir.cli.server:serve",
    "relay": "weir.cli.admin.relays:relay",
    "dev": "weir.cli.dev:dev",
    "topic": "weir.cli.admin.topics:app",
    "cluster": "weir.cli.admin.clusters:app",
    "trace": "weir.cli.admin.trace:trace",
    "device": "weir.cli.admin.devices:app",
    "cert": "weir.cli.admin.certificates:app",
    "fleet": "weir.cli.admin.fleets:app",
    "quota": "weir.cli.admin.quotas:app",
    "node": "weir.cli.admin.nodes:app",
    "topology": "weir.cli.admin.topology:app",
    "schema": "weir.cli.admin.schemas:app",
    "sink": "weir.cli.admin.sinks:app",
    "user": "weir.cli.access.verbs:user_app",
    "role": "weir.cli.access.verbs:role_app",
    "acl": "weir.cli.access.verbs:acl_app",
    "access": "weir.cli.access.modes:access_app",
    "context": "weir.cli.access.context_verbs:context_app",
    "token": "weir.cli.access.tokens:token_app",
    "spark": "weir.cli.spark.verbs:app",
    "pipeline": "weir.cli.spark.pipeline:app",
    "pub": "weir.cli.messages:pub",
    "tail": "weir.cli.messages:tail",
    "sub": "weir.cli.messages:sub",
    "work": "weir.cli.work:work",
    "inspect": "weir.cli.inspect:inspect",
    "config": "weir.cli.server:config_app",
    "audit": "weir.cli.access.audit:audit",
    "doctor": "weir.cli.doctor.doctor:doctor",
    "backup": "weir.cli.backup.verbs:backup",
    "restore": "weir.cli.backup.verbs:restore",
}
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
    if verb in _OURS:
        return _built([_loaded(_OURS[verb])])
    if verb in _NO_VERB:
        return _built([])
    if found := [*_added(verb)]:
        return _built(found)
    if verb in LAB_VERBS:
        raise ModuleNotFoundError(f"no verb {verb}", name="weir_lab")
    return whole_command()


def whole_command() -> Command:
    """Return the command that knows all verbs, those of other distributions included."""
    return _built([*map(_loaded, _OURS.values()), *_added()])


def _loaded(place: str) -> object:
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


def _added(verb: str = "") -> Iterator[object]:
    """Yield verbs of other distributions: all, or one by name. Ours go before those."""
    from importlib import metadata  # takes as long as all else that a verb loads

    for point in sorted(metadata.entry_points(group=VERBS)):
        if point.name not in _OURS and verb in ("", point.name):
            yield point.load()


def _built(verbs: Sequence[object]) -> Command:
    """Return a command that knows these verbs: Typer apps, and functions of one command."""
    one = copy(app)
    one.registered_commands, one.registered_groups = [], []
    for verb in verbs:
        if isinstance(verb, typer.Typer):
            one.add_typer(verb)
        elif callable(verb):
            one.command()(verb)
    return add_context_option(typer.main.get_command(one))


def run() -> None:
    """Be the process `weir`."""
    if "stdout" in replace_closed() and needs_stdout(sys.argv[1:]):
        sys.exit(_say(CLOSED, 1))
    sys.exit(finish(main()))


def _say(what: str, code: int) -> int:
    with suppress(BrokenPipeError):
        print(" ".join(what.split()), file=sys.stderr)
    return code
