"""Somebody who clings to one node whatever happens to it, and writes down what that node says.

The client that users have leaves a node which is silent. This one keeps its connection, asks
while the node sleeps or is cut off, and reads the answers when it wakes: they must not be stale.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from functools import partial

from weir.client.connection.connection import Connection, Senders
from weir.errors import Disconnected, WeirError
from weir.model.batch import Batch
from weir.model.batch_builder import encode
from weir.model.ids import Address
from weir.protocol.client import messages as m
from weir_lab.bench.faults.chaos.ledger import Read, Sent
from weir_lab.bench.harness.payload import Block

_ASK_EVERY_S = 0.1
_HELLO_S = 5.0
_FETCH_BYTES = 1 << 20


class Witness:
    """One raw connection to the node at `place`, which leads the partition at `address`.

    It publishes one message, number 0 of producer `number`. `floor` tells the offset behind all
    that its clients know to be confirmed.
    """

    def __init__(
        self,
        place: tuple[str, int],
        address: Address,
        number: int,
        size: int,
        floor: Callable[[], int],
    ) -> None:
        """Dial nothing yet."""
        self.ledger = Sent()
        #: What the node gave to read, from where it was struck on.
        self.read = Read(size)
        self.asked = self.answered = self.refused = 0
        #: Answers by which the partition ended below what was confirmed before they were asked for.
        self.stale = 0
        self._place = place
        self._address = address
        self._number = number
        self._block = Block(size, 1)
        self._floor = floor
        self._connection: Connection | None = None
        self._grant = m.ProducerGrant(0, 0)

    async def begin(self) -> None:
        """Connect and get a producer id, before anything happens. Raises `WeirError`."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_HELLO_S):
                _, self._connection = await loop.create_connection(
                    lambda: Connection(Senders()), *self._place
                )
                await self._connection.request(m.Hello("weir-chaos-witness"), _HELLO_S)
                grant = await self._connection.request(m.OpenProducer(), _HELLO_S)
        except (OSError, TimeoutError) as error:
            raise Disconnected(f"the node to be struck does not answer: {error}") from error
        assert isinstance(grant, m.ProducerGrant)
        self._grant = grant

    async def ask_on(self, seconds: float) -> None:
        """Ask again and again for so many seconds, publish towards the end; wait for no answer."""
        self._ask(
            m.Fetch(self._address, self._floor(), _FETCH_BYTES, equal_stamps=True), self._fetched
        )
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self._ask(m.Positions(self._address), partial(self._end, self._floor()))
            await asyncio.sleep(min(left, _ASK_EVERY_S))
        self._publish()

    async def end(self) -> None:
        """Hang up; what was not answered by now never is."""
        if self._connection is not None:
            await self._connection.close()

    def _publish(self) -> None:
        (value,) = self._block.values_of(self._number, 0, 1)
        batch = encode(
            [value],
            group=self._address.group,
            producer=self._grant.producer,
            epoch=self._grant.epoch,
            base_time=time.time_ns() // 1_000,
        )
        self.ledger.sent = 1
        self._ask(m.Produce(self._address, 0, memoryview(batch)), self._confirmed)

    def _ask(self, request: m.Request, take: Callable[[m.Reply], None]) -> None:
        def answered(_: int, reply: m.Reply | Disconnected) -> None:
            if isinstance(reply, Disconnected):
                return
            if isinstance(reply, m.Refusal):
                self.refused += 1
                return
            self.answered += 1
            take(reply)

        assert self._connection is not None
        with contextlib.suppress(WeirError):  # it has hung up, which is an answer, too
            self._connection.send(request, answered)
            self.asked += 1

    def _end(self, floor: int, reply: m.Reply) -> None:
        if isinstance(reply, m.PositionsReply) and reply.end < floor:
            self.stale += 1

    def _fetched(self, reply: m.Reply) -> None:
        if not isinstance(reply, m.Fetched):
            return
        for payload in reply.batches:
            batch = Batch(payload)
            column = batch.value_column
            self.read.take(batch.header.first_offset, column.offsets, column.data)

    def _confirmed(self, reply: m.Reply) -> None:
        if isinstance(reply, m.Confirm):
            self.ledger.confirm(1, reply.offset, time.monotonic_ns())
