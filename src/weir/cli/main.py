"""`weir`: puts the verbs together, and turns errors into one line and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from copy import copy
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weir.cli import bench, chaos, sim, work
from weir.cli.admin import clusters, devices, nodes, topics
from weir.cli.backup import verbs as backup
from weir.cli.doctor import doctor
from weir.cli.inspection import inspect
from weir.cli.messages import pub, sub, tail
from weir.cli.reasons import in_words, not_installed
from weir.cli.server import config, dev, init, serve
from weir.cli.streams import CLOSED, EXIT_UNREAD, finish, needs_stdout, replace_closed
from weir.errors import WeirError

if TYPE_CHECKING:
    from typer._click import Command

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
app.command()(init.init)
app.command()(serve.serve)
app.command()(dev.dev)
app.add_typer(topics.app)
app.add_typer(clusters.app)
app.add_typer(devices.app)
app.add_typer(nodes.app)
app.command()(pub.pub)
app.command()(tail.tail)
app.command()(sub.sub)
app.command()(work.work)
app.command()(inspect.inspect)
app.add_typer(config.app)
app.command()(doctor.doctor)
app.command()(backup.backup)
app.command()(backup.restore)
app.add_typer(bench.app)
app.add_typer(chaos.app)
app.add_typer(sim.app)


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


@app.command()
def demo(
    out: Annotated[
        Path | None, typer.Option(help="Keep what the demo makes in this folder.")
    ] = None,
    flights: Annotated[
        int | None, typer.Option(min=1, help="Replay only the first so many flights.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show weir at work: airports, a consumer cluster and a Spark job over real flights."""
    from weir.cli.demo.run import run as run_demo

    raise typer.Exit(run_demo(out, flights, as_json))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0, 1 for an error, 2 for wrong usage, 141 if
    whoever read its output went before it was done.
    """
    words = sys.argv[1:] if arguments is None else arguments
    command = _command(words[0] if words else "")
    try:
        code = command.main(words, prog_name="weir", standalone_mode=False)
    except typer.TyperException as error:
        verb = getattr(getattr(error, "ctx", None), "command_path", "weir")
        what = error.format_message().rstrip(".")
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

    All verbs take a tenth of a second to build, and each process uses one.
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
    found = one.registered_commands or one.registered_groups
    return typer.main.get_command(one if found else app)


def run() -> None:
    """Be the process `weir`."""
    if "stdout" in replace_closed() and needs_stdout(sys.argv[1:]):
        sys.exit(_say(CLOSED, 1))
    sys.exit(finish(main()))


def _say(what: str, code: int) -> int:
    with suppress(BrokenPipeError):
        print(" ".join(what.split()), file=sys.stderr)
    return code
