"""A process of `weir work`: how it is started, and the application that it runs.

It ends when the process that started it does.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable, Sequence
from importlib import import_module

from weir.app.app import App, run_in_new_loop, stopped_by_signals
from weir.errors import WeirError
from weir.server.interpreter import environment


def starting(words: Sequence[str], output: int | None = None) -> Callable[[], Awaitable[Process]]:
    """Return what starts a process of this command, which ends when this one does, if it ends when
    its stdin does. Raises `OSError`.

    `output`: the file descriptor that its stdout goes to, if not to this one's.
    """

    async def start() -> Process:
        return await asyncio.create_subprocess_exec(
            *words,
            # The pipe closes when this process ends, however it does.
            stdin=asyncio.subprocess.PIPE,
            stdout=output,
            env=environment(),
            # Ctrl-C is for this process alone, which then tells the others.
            start_new_session=True,
        )

    return start


class NoApp(ValueError):
    """A name that leads to no application; the message says what would."""


def load(name: str) -> App:
    """Import a module, of this folder too, and return its application.

    Raises `NoApp` for a name that leads to none, and what the module itself raises.
    """
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise NoApp(f"{name!r}: write MODULE:APP, as in ledger:app for the app of ledger.py")
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        found = import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the module is there, and misses another
        raise NoApp(
            f"no module {error.name!r} in {folder}: run this in the folder that holds it"
        ) from None
    app = getattr(found, attribute, None)
    if not isinstance(app, App):
        apps = [key for key, value in vars(found).items() if isinstance(value, App)]
        there = f"there is {', '.join(apps)}" if apps else "make one with weir.App()"
        raise NoApp(f"{attribute!r} of {module} is no weir.App: {there}")
    return app


def main(words: Sequence[str]) -> None:
    """Run MODULE:APP of a cluster, at a URL, with a grace in s, until SIGTERM or stdin ends.

    What ends it says so in a line: it is started again, and would fill the screen otherwise.
    """
    name, cluster, url, grace = words
    app = load(name)
    threading.Thread(target=_end_with_stdin, name="weir-until-eof", daemon=True).start()
    try:
        run_in_new_loop(_run(app, url, cluster, float(grace)))
    except WeirError as error:
        sys.exit(str(error))


async def _run(app: App, url: str, cluster: str, grace: float) -> None:
    """Run until SIGTERM, and leave it to `weir work` to tell of that: it has sent it."""
    stop = asyncio.Event()
    with stopped_by_signals(stop, tells=False):
        await app.run(url, cluster=cluster, stop=stop, grace=grace)


def _end_with_stdin() -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main(sys.argv[1:])
