"""The relays above this one: connections to them, and what becomes of what is asked there.

Each is one process at one address, which serves all that it has by one connection. What fails is
told to the partition's machine as `Overloaded`: it asks the next upper node then, at last the core.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from random import Random

from weir.client.connection.credentials import AnyCredentials
from weir.client.connection.network_client import NetworkClient
from weir.client.core.retries import Backoff
from weir.errors import RemoteProtocolError, WeirError
from weir.model.ids import Address
from weir.protocol.client import messages as m
from weir.relay import messages as r
from weir.relay.ports import AnswerCame, Event, FilterToldFrom, RefusalCame, UpperNode

log = logging.getLogger(__name__)

#: What a relay asks.
Asked = r.Pull | r.AskFilter | r.SayHold
Hosts = tuple[tuple[str, int], ...]
#: A pull that is not answered fails before the machine gives it up (5 s), and so soon that readers
#: wait for less than 4 s when an upper relay stands still.
PULL_WAIT = 1.0
REQUEST_TIMEOUT = 2.5
RETRY = Backoff(first=0.05, most=2.0)
RETRY_MS, REFUSED_MS = 300, 2_000
_AGAIN = 2.0


class UpperRelay:
    """A relay that this one pulls from."""

    def __init__(
        self, hosts: Hosts, number: int, system: int, credentials: AnyCredentials | None
    ) -> None:
        """Pull from a relay of a system, as who the `credentials` are of; `number` tells it from
        others to the machines here.
        """
        self._credentials = credentials
        self.hosts = hosts
        self.upper = UpperNode(0, number, False)
        self._system = system
        self._network: NetworkClient | None = None

    def __str__(self) -> str:
        return ",".join(f"{host}:{port}" for host, port in self.hosts)

    async def keep(self) -> None:
        """Keep a connection to it, until this is cancelled."""
        tries = 0
        try:
            while True:
                if self._network is None:
                    tries += 1
                    await self._reach(tries)
                elif self._network.error is not None:  # it will never answer by these again
                    await self._leave()
                await asyncio.sleep(_AGAIN)
        finally:
            await self._leave()

    async def _reach(self, tries: int) -> None:
        network = NetworkClient(
            list(self.hosts), name="weir-relay", retry=RETRY, request_timeout=REQUEST_TIMEOUT,
            random=Random(), credentials=self._credentials,
        )  # fmt: skip
        level = logging.WARNING if tries == 1 else logging.DEBUG
        try:
            await network.start()
        except WeirError as error:
            log.log(level, "the upper relay at %s is not reached: %s", self, error)
            return
        self._network = network
        welcome = network.welcome
        if welcome is None or welcome.system != self._system:
            log.log(level, "the upper relay at %s is of another system: nothing is asked", self)
            await self._leave()

    async def _leave(self) -> None:
        network, self._network = self._network, None
        if network is not None:
            await network.close()

    async def answer_to(self, message: Asked) -> Event | None:
        """Return what came of a message; None if that is nothing."""
        group = message.group
        network = self._network
        if network is None or not network.is_up or network.welcome is None:
            await asyncio.sleep(0)  # whoever asks goes on first
            return self._refused(message, RETRY_MS)
        address = Address(0, 0, group, network.welcome.node)
        request = m.AskRelay(address, b"".join(r.encode_message(message)))
        try:
            told = await network.request(request, m.RelayTold, wait=PULL_WAIT, again=False)
            return event_of(b"".join(told.message), self.upper)
        except (RemoteProtocolError, TypeError) as error:
            log.warning("the upper relay at %s sent what makes no sense: %s", self, error)
        except WeirError as error:
            log.debug("group %d: the upper relay at %s: %s", group, self, error)
            if getattr(error, "retryable", True):
                return self._refused(message, RETRY_MS)
        return self._refused(message, REFUSED_MS)

    def _refused(self, message: Asked, pause_ms: int) -> Event | None:
        if not isinstance(message, r.Pull):
            return None
        return RefusalCame(self.upper, r.Overloaded(message.group, message.number, pause_ms))


class UpperRelays:
    """The relays that this one pulls from, by what its machines call them."""

    def __init__(self, system: int, first: int, credentials: AnyCredentials | None = None) -> None:
        """Pull from none yet; they are numbered from `first` on. Log in there by `credentials`."""
        self._credentials = credentials
        self._system = system
        self._number = first
        self._relays: dict[Hosts, UpperRelay] = {}
        self._keeping: dict[Hosts, asyncio.Task[None]] = {}

    @property
    def nodes(self) -> tuple[UpperNode, ...]:
        """Their names, the preferred one first."""
        return tuple(one.upper for one in self._relays.values())

    def find(self, upper: UpperNode) -> UpperRelay | None:
        """Return the relay of a name."""
        return next((one for one in self._relays.values() if one.upper == upper), None)

    def use(self, hosts: Sequence[Hosts]) -> bool:
        """Pull from the relays at these addresses from now on, the preferred one first; return
        whether that is anything new.
        """
        if [*hosts] == [*self._relays]:
            return False
        former = self._relays
        self._relays = {}
        for one in hosts:
            self._relays[one] = former.get(one) or self._begin(one)
        for gone in former.keys() - self._relays.keys():
            self._keeping.pop(gone).cancel()
        return True

    def _begin(self, hosts: Hosts) -> UpperRelay:
        relay = UpperRelay(hosts, self._number, self._system, self._credentials)
        self._number += 1
        task = asyncio.get_running_loop().create_task(relay.keep())
        task.add_done_callback(_ended)
        self._keeping[hosts] = task
        return relay

    async def close(self) -> None:
        """End all connections."""
        self._relays = {}
        for task in self._keeping.values():
            task.cancel()
        await asyncio.gather(*self._keeping.values(), return_exceptions=True)


def _ended(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("an upper relay is asked no more", exc_info=error)


def event_of(payload: bytes, upper: UpperNode) -> Event | None:
    """Return what an upper node says; None if it says nothing. Raises `RemoteProtocolError`."""
    if not payload:
        return None
    message, data = r.decode_message(payload)
    match message:
        case r.Answer():
            return AnswerCame(upper, message, data)
        case r.FilterFrom():
            return FilterToldFrom(upper, message)
        case r.Pull() | r.AskFilter() | r.SayHold():
            raise RemoteProtocolError(f"an upper node asks a {type(message).__name__} of a relay")
        case _:
            return RefusalCame(upper, message)
