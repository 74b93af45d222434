"""`weir work`: run an application's handlers in as many processes as its cluster needs."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from weir.cli.connection import Timeout, first_timeout

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Callable

    from weir.app.app import App
    from weir.app.supervisor import Event, Plan, Start, Supervisor
    from weir.server.observability.endpoint import Answer


def work(
    name: Annotated[
        str,
        typer.Argument(metavar="MODULE:APP", help="The app, as in `ledger:app` (of ledger.py)."),
    ],
    cluster: Annotated[
        str | None,
        typer.Option(help="The cluster whose handlers to run. [default: the only one there is]"),
    ] = None,
    least: Annotated[int, typer.Option("--min", min=1, help="Processes, at least.")] = 1,
    most: Annotated[
        int | None, typer.Option("--max", min=1, help="And at most. [default: one a core]")
    ] = None,
    cool_down: Annotated[
        str, typer.Option(help="End processes once there were too many for this long.")
    ] = "30s",
    grace: Annotated[str, typer.Option(help="How long handlers may take to finish.")] = "10s",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a line of JSON per event.")
    ] = False,
    metrics: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Serve /metrics and /healthz there; port 0: any."),
    ] = None,
    timeout: Timeout = "5s",
    url: Annotated[
        str | None,
        typer.Option("--url", envvar="WEIR_URL", show_envvar=True, help="[default: the app's own]"),
    ] = None,
) -> None:
    """Run handlers in processes until Ctrl-C or SIGTERM, as many as the backlog needs.

    A process that ends is started again. The command waits for a broker that goes away later.
    With --json, output of handlers goes to stderr.
    """
    import asyncio
    import os

    from weir.app.supervisor import Plan, Supervisor
    from weir.app.worker import NoApp, load
    from weir.client.arguments import parse_url
    from weir.client.connection.credentials import split_user
    from weir.client.core.retries import seconds

    try:
        app = load(name)
    except NoApp as error:
        raise typer.BadParameter(str(error)) from None
    except Exception as error:
        _show(error)
        raise typer.Exit(1) from None
    try:
        plan = Plan(
            cluster or _only(app),
            url or app.url,
            least,
            most or max(os.cpu_count() or 1, least),
            seconds(cool_down),
            seconds(grace),
            first_timeout(timeout),
        )
        parse_url(split_user(plan.url)[0])
        place = _place(metrics) if metrics else None
        stop = asyncio.Event()
        tell = _while_heard(_telling(plan, as_json), stop)
        supervisor = Supervisor(app, plan, _starting(name, plan, as_json), tell)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None

    asyncio.run(_run(supervisor, plan, place, tell, stop))


async def _run(
    supervisor: Supervisor,
    plan: Plan,
    place: tuple[str, int] | None,
    tell: Callable[[Event], None],
    stop: asyncio.Event,
) -> None:
    """Work until `stop`, or a signal; serve figures at `place` meanwhile."""
    from weir.app.app import stopped_by_signals
    from weir.app.supervisor import Figures

    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(stopped_by_signals(stop))
        if place is not None:
            serving = _told_to_collectors(supervisor, plan, *place)
            tell(Figures(await stack.enter_async_context(serving)))
        await supervisor.run(stop)


@contextlib.asynccontextmanager
async def _told_to_collectors(
    supervisor: Supervisor, plan: Plan, host: str, port: int
) -> AsyncIterator[str]:
    """Serve /metrics and /healthz during the block; yields the URL. Raises `BadAddress`."""
    from weir.server.network.addresses import in_words
    from weir.server.observability.endpoint import CONTENT_TYPE, PLAIN, Pages

    async def figures() -> Answer:
        return 200, CONTENT_TYPE, metrics_text(supervisor, plan)

    async def healthy() -> Answer:
        return 200, PLAIN, "alive\n"

    pages = Pages({"/metrics": figures, "/healthz": healthy}, cheap=("/healthz",))
    async with contextlib.AsyncExitStack() as stack:
        with in_words(host, port, "--metrics"):
            bound = await stack.enter_async_context(pages.listening(host, port))
        shown = f"[{host}]" if ":" in host else host
        yield f"http://{shown}:{bound}/metrics"


def metrics_text(supervisor: Supervisor, plan: Plan) -> str:
    """Return the figures as they are now, in Prometheus' text format.

    What waits is left out while it is not known: a 0 would have a collector end processes.
    """
    from weir.server.observability.endpoint import Family

    found: list[tuple[str, str, int]] = [
        ("processes_wanted", "Processes that the cluster's work needs.", supervisor.wanted),
        ("processes", "Processes that run and were not told to end.", supervisor.present),
        ("processes_least", "The fewest that there may be (--min).", plan.least),
        ("processes_most", "The most that there may be (--max).", plan.most),
    ]
    if (seen := supervisor.seen) is not None:
        found += [
            ("waiting_messages", "Messages that nobody has and that are due.", seen.waiting),
            ("left_messages", "Messages that the cluster is not done with.", seen.left),
        ]
    labels = {"cluster": plan.cluster}
    lines = [
        line
        for name, about, value in found
        for line in Family(f"weir_work_{name}", "gauge", about, [(labels, value)]).lines()
    ]
    return "".join(f"{line}\n" for line in lines)


def _starting(name: str, plan: Plan, as_json: bool) -> Start:
    """Return what starts a process with the handlers of MODULE:APP."""
    from weir.app.worker import starting
    from weir.server.interpreter import python

    words = python("weir.app.worker", name, plan.cluster, plan.url, f"{plan.grace:g}")
    return starting(words, sys.stderr.fileno() if as_json else None)


def _place(metrics: str) -> tuple[str, int]:
    """Return the host and port to serve figures at. Raises `ValueError`."""
    from weir.server.config import split_address

    try:
        return split_address(metrics)
    except ValueError as error:
        raise ValueError(f"--metrics {error}") from None


def _show(error: Exception) -> None:
    """Print what a module raised, from its own line on."""
    import traceback

    trace = error.__traceback__
    while trace is not None:
        room = str(trace.tb_frame.f_globals.get("__name__")).partition(".")[0]
        if room not in ("importlib", "weir"):
            break
        trace = trace.tb_next
    traceback.print_exception(type(error), error, trace)


def _only(app: App) -> str:
    """Return the cluster of all handlers."""
    names = sorted({one.cluster for one in app.subscriptions})
    if not names:
        raise ValueError("the app has no handler: decorate one with @app.subscribe")
    if len(names) > 1:
        raise ValueError(f"there are {', '.join(names)}: name one with --cluster")
    return names[0]


def _while_heard(tell: Callable[[Event], None], stop: asyncio.Event) -> Callable[[Event], None]:
    """Return what tells the same, and sets `stop` when nobody reads it any more."""

    def heard(event: Event) -> None:
        try:
            tell(event)
        except OSError:
            stop.set()

    return heard


def _telling(plan: Plan, as_json: bool) -> Callable[[Event], None]:
    """Return what tells a person, or a program, what happens."""
    import time

    import msgspec

    def tell(event: Event) -> None:
        kind = type(event).__name__.lower()
        if as_json:
            head = {"event": kind, "time": round(time.time(), 3), "cluster": plan.cluster}
            print(
                msgspec.json.encode({**head, **msgspec.structs.asdict(event)}).decode(), flush=True
            )
        elif said := _words(event, plan.url):
            print(f"{time.strftime('%H:%M:%S')}  {said}", file=sys.stderr, flush=True)

    return tell


def _words(event: Event, url: str) -> str:
    from weir.app.supervisor import (
        Ended,
        Figures,
        Killed,
        Refused,
        Scaled,
        Seen,
        Started,
    )

    if isinstance(event, Figures):
        return f"figures at {event.url}"
    if isinstance(event, Scaled):
        return f"{event.before} -> {event.wanted} processes: {event.why}"
    if isinstance(event, Ended):
        how = f"signal {-event.code}" if event.code < 0 else f"code {event.code}"
        return f"process {event.process} ended ({how}): another in {event.again:g} s"
    if isinstance(event, Killed):
        return f"process {event.process} did not end within {event.after:g} s, and was killed"
    if isinstance(event, Refused):
        return f"no process can be started ({event.why}): again in {event.again:g} s"
    if isinstance(event, Started):
        return ""
    if isinstance(event, Seen):
        return f"{url} is back"
    if event.away:
        return f"{url} is away: waiting for it (Ctrl-C ends); {event.why}"
    return f"the backlog is not known, so the number of processes stays: {event.why}"
