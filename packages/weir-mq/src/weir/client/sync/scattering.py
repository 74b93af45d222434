"""Scatterings without async: see `weir.client.scattering`."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Protocol

from weir.client import scattering
from weir.client.connection.system import Background
from weir.client.consumer import consumer as consumers
from weir.client.producer.receipts import Receipt
from weir.model.message import Message


class Blocking(Protocol):
    """A consumer of `weir.sync`."""

    _of: consumers.Consumer


class Scattering:
    """One scattering, to enter with `with`: leaving it sends it, an error in it does not."""

    def __init__(self, of: scattering.Scattering, background: Background) -> None:
        """Speak for `of`, which lives in the loop of `background`."""
        self._of = of
        self._background = background

    @property
    def receipts(self) -> list[Receipt]:
        """Where its messages are, in the order in which they were published."""
        return self._of.receipts

    def publish(
        self,
        topic: str,
        value: Any,
        *,
        key: bytes | str | None = None,
        tag: str | None = None,
        time: int | None = None,
        headers: Mapping[str, bytes] | None = None,
        partition: int | None = None,
    ) -> None:
        """Add a message; all of them go to partitions of one topic."""
        self._of.publish(
            topic, value, key=key, tag=tag, time=time, headers=headers, partition=partition
        )

    def ack(self, what: Message | consumers.Grant, consumer: Blocking) -> None:
        """Add that a message, or a grant of `batches()`, of a consumer is done."""
        self._of.ack(what, consumer._of)

    def send(self) -> list[Receipt]:
        """Send it; leaving `with` does."""
        return self._background.run(self._of.send())

    def __enter__(self) -> Scattering:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if error is None:
            self.send()
