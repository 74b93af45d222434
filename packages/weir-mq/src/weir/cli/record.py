"""What `--record` writes: a line for each message that was confirmed or received.

`weir spark audit` joins what producers and consumers wrote down; `weir.spark.jobs.audit` says what
the fields mean.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

if TYPE_CHECKING:
    from weir.client.producer.receipts import BatchReceipt, Receipt
    from weir.model.message import Message

RecordFile = Annotated[
    Path | None,
    typer.Option(
        "--record",
        metavar="FILE",
        help="Append a line of JSON for each message to this file, for `weir spark audit`.",
    ),
]


class Record:
    """Appends records to a file. A line is there before the message is acked, or told of."""

    def __init__(self, file: BinaryIO, clock: Callable[[], int] = time.time_ns) -> None:
        """Write to `file`; `clock` gives nanoseconds since 1970. Each record has a reader name."""
        self._file = file
        self._clock = clock
        self._reader = secrets.token_hex(6)
        self._received = 0
        #: Messages that were confirmed, and of which it is not known here where they are.
        self.elsewhere = 0

    def sent(self, topic: str, batch: BatchReceipt | Receipt, key: bytes | None) -> None:
        """Write down that messages with one key were confirmed. Raises `OSError`."""
        count = getattr(batch, "count", 1)
        if batch.offset < 0:
            # Its partition had ended, and the messages went to several others.
            self.elsewhere += count
            return
        at = self._clock() // 1_000
        for offset in range(batch.offset, batch.offset + count):
            self._write(
                {
                    "kind": "sent",
                    "topic": topic,
                    "partition": batch.partition,
                    "offset": offset,
                    "stamp": batch.stamp,
                    **_text(key),
                    "at_us": at,
                }
            )
        self._file.flush()

    def received(self, message: Message, cluster: str | None) -> None:
        """Write down that a message came, to a reader or for a cluster. Raises `OSError`."""
        self._write(
            {
                "kind": "received",
                "topic": message.topic,
                "partition": message.partition,
                "offset": message.offset,
                "stamp": message.stamp,
                **_text(message.key),
                "time_us": message.time,
                "at_us": self._clock() // 1_000,
                "reader": self._reader,
                "cluster": cluster,
                "n": self._received,
            }
        )
        self._received += 1
        self._file.flush()

    def _write(self, record: dict[str, object]) -> None:
        import msgspec

        self._file.write(msgspec.json.encode(record) + b"\n")


@contextlib.contextmanager
def recording(path: Path | None) -> Iterator[Record | None]:
    """Yield what appends to a file, or None without one; tell in the end what is missing there.

    Raises `OSError`.
    """
    if path is None:
        yield None
        return
    with path.open("ab") as file:
        record = Record(file)
        try:
            yield record
        finally:
            if record.elsewhere:
                why = f"{record.elsewhere:,} messages are not in {path}: their partition has ended"
                typer.echo(why, err=True)


def _text(key: bytes | None) -> dict[str, object]:
    if key is None:
        return {"key": None}
    try:
        return {"key": key.decode()}
    except UnicodeDecodeError:
        return {"key_base64": key}
