"""A topic may get more partitions while somebody reads it: asking for them now and then."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from weir.client.connection.metadata import Places
from weir.errors import Disconnected, Refused

#: Seconds until a partition that was added is noticed, at the latest.
ASK_EVERY = 10.0


async def watch(
    places: Places,
    known: int,
    grown: Callable[[range], None],
    looked: Callable[[], None] | None = None,
) -> None:
    """Tell `grown` of partitions beyond the first `known`, and `looked` each time, until cancelled.

    Whoever else asks where the topic is served may find them first: they are told all the same.
    Raises `UnknownTopic` once the topic is gone, also if another of its name has come.
    """
    while True:
        await asyncio.sleep(ASK_EVERY)
        try:
            await places.find_again()
        except Disconnected:
            continue  # whoever reads notices by himself
        except Refused as error:
            if error.retryable:
                continue
            raise
        if len(places) > known:
            known, before = len(places), known
            grown(range(before, known))
        if looked is not None:
            looked()
