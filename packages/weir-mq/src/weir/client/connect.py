"""`connect`: the one door to a broker."""

from __future__ import annotations

from collections.abc import Generator
from types import TracebackType
from typing import NoReturn

from weir.client.client import Client
from weir.client.connection.link import Link
from weir.client.connection.system import SYSTEM
from weir.client.core.durations import Backoff, seconds
from weir.client.core.url import parse_url

__all__ = ["Backoff", "Client", "connect"]


class Connecting:
    """A client on its way: `await` it, or enter it with `async with`, which also closes it."""

    def __init__(
        self, hosts: list[tuple[str, int]], name: str, retry: Backoff, request_timeout: float
    ) -> None:
        """Keep how to connect; nothing is dialled yet."""
        self._hosts = hosts
        self._name = name
        self._retry = retry
        self._request_timeout = request_timeout
        self._client: Client | None = None

    async def _connect(self) -> Client:
        system = SYSTEM.get()
        link = Link(
            self._hosts,
            name=self._name,
            retry=self._retry,
            request_timeout=self._request_timeout,
            random=system.dice(),
            system=system,
        )
        await link.start()
        return Client(link)

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"this is no client yet, so it has no {name!r}: write `async with weir.connect(...) "
            "as w:`, or `w = await weir.connect(...)`"
        )

    def __await__(self) -> Generator[object, None, Client]:
        return self._connect().__await__()

    async def __aenter__(self) -> Client:
        self._client = await self._connect()
        return self._client

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()


_DEFAULT_RETRY = Backoff()


def connect(
    url: str = "weir://localhost:6800",
    *,
    name: str = "python",
    retry: Backoff = _DEFAULT_RETRY,
    request_timeout: str | float = 30.0,
) -> Connecting:
    """Connect to weir://host[:port][,host2[:port2]]: `async with connect() as w`, or await it.

    A lost connection is dialled again with backoff, for ever unless `retry.attempts` is set; a
    request waits for it up to `request_timeout` ("5s", or seconds) and then raises `Disconnected`.
    `name` is what the broker calls this client. Raises `ValueError` for what is no address.
    """
    if not isinstance(retry, Backoff):
        raise TypeError(
            f"retry={retry!r}: give weir.Backoff(attempts={retry if type(retry) is int else 3}), "
            "which says how often and how long to wait"
        )
    timeout = seconds(request_timeout)
    if not timeout:
        raise ValueError("request_timeout=0: nothing is answered at once, give more")
    return Connecting(parse_url(url), name, retry, timeout)
