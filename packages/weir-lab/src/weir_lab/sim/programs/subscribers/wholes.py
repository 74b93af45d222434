"""How a simulated client reads values that lie in chunks, and compares them with what was sent."""

from __future__ import annotations

from weir.errors import BadBatch, ValueLost, refusal
from weir.model.batch import Batch, split
from weir.model.columns import References
from weir.protocol.client import messages as m
from weir_lab.sim.programs.program import Client


class Wholes:
    """Reads one value at a time, as a client does that has met its references."""

    def __init__(self, client: Client, may_be_gone: bool) -> None:
        """Ask through `client`; `may_be_gone` says whether retention may overtake it."""
        self._client = client
        self._may_be_gone = may_be_gone
        #: How many values are being read.
        self.under_way = 0

    def closed(self) -> None:
        """Nothing that was asked has an answer any more."""
        self.under_way = 0

    def read(self, partition: int, batch: Batch, max_bytes: int) -> None:
        """Read and compare a batch's value, if it lies in chunks."""
        if batch.references is not None:
            self.under_way += 1
            _Reading(self, self._client, partition, batch, max_bytes).ask()

    def over(self, promise: str = "", text: str = "") -> None:
        """One value was read, or could not be."""
        self.under_way -= 1
        if promise and not (self._may_be_gone and promise == "Durable"):
            self._client.complain(promise, text)


class _Reading:
    """One value, piece by piece."""

    def __init__(
        self, wholes: Wholes, client: Client, partition: int, batch: Batch, max_bytes: int
    ) -> None:
        references = batch.references
        assert references is not None
        self._wholes = wholes
        self._client = client
        self._link = client.link
        self._partition = partition
        self._offset = batch.header.first_offset
        self._packed = references.pack()
        self._indices = _indices(references)
        self._max_bytes = max_bytes
        self._found = bytearray()

    def ask(self) -> None:
        """Ask for the next chunks, as many as lie in a row."""
        if self._client.link is not self._link:
            return
        first, count = self._indices[0], 1
        while self._indices[count : count + 1] == [first + count]:
            count += 1
        address = self._client.addresses[self._partition]
        request = m.FetchChunks(address, first, count, self._max_bytes)
        self._client.ask(request, self._took)

    def _took(self, reply: m.Reply) -> None:
        if isinstance(reply, m.FetchedChunks):
            self._add(reply)
            return
        assert isinstance(reply, m.Refusal)
        error = refusal(reply.code, reply.message, reply.detail)
        if error.retryable:
            self._client.soon(self.ask)
        else:
            promise = "Durable" if isinstance(error, ValueLost) else "Honest"
            self._wholes.over(promise, f"{self._offset} is there, and its chunks: {error!r}")

    def _add(self, reply: m.FetchedChunks) -> None:
        group = self._client.addresses[self._partition].group
        try:
            batches = [batch for payload in reply.batches for batch in split(payload, group)]
        except BadBatch as error:
            self._wholes.over("Honest", f"chunks that were never sent: {error}")
            return
        for batch in batches:
            if batch.piece is None or batch.piece.position != len(self._found):
                self._wholes.over("Honest", f"{self._offset}: a chunk is another's: {batch.piece}")
                return
            self._found += batch.values()[0]
        del self._indices[: len(batches)]
        if self._indices:
            self.ask()
            return
        whole = self._client.history.wholes.get((self._partition, self._packed))
        same = whole == bytes(self._found)
        self._wholes.over("" if same else "Honest", f"{self._offset} is not the value it was")


def _indices(references: References) -> list[int]:
    return [index for first, count in references.runs for index in range(first, first + count)]
