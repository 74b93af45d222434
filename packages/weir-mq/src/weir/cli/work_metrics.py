"""The figures of `weir work`, for a collector: how many processes are wanted, and why."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from weir.app.supervision.supervisor import Plan, Supervisor
from weir.server.network.addresses import in_words
from weir.server.observability.exposition import CONTENT_TYPE, Family
from weir.server.observability.http_pages import PLAIN, Answer, Pages


@contextlib.asynccontextmanager
async def told_to_collectors(
    supervisor: Supervisor, plan: Plan, host: str, port: int
) -> AsyncIterator[str]:
    """Serve /metrics and /healthz during the block; yields the URL. Raises `BadAddress`."""

    async def figures() -> Answer:
        return 200, CONTENT_TYPE, text_of(supervisor, plan)

    async def healthy() -> Answer:
        return 200, PLAIN, "alive\n"

    pages = Pages({"/metrics": figures, "/healthz": healthy}, cheap=("/healthz",))
    async with contextlib.AsyncExitStack() as stack:
        with in_words(host, port, "--metrics"):
            bound = await stack.enter_async_context(pages.listening(host, port))
        shown = f"[{host}]" if ":" in host else host
        yield f"http://{shown}:{bound}/metrics"


def text_of(supervisor: Supervisor, plan: Plan) -> str:
    """Return the figures as they are now, in Prometheus' text format.

    What waits is left out while it is not known: a 0 would have a collector end processes.
    """
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
