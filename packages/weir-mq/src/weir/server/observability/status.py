"""What a node tells about itself while it runs: lines for people, or JSON objects for programs.

Never a message's content or a credential: only what a call names is written, under these fields:
`ts` (UTC), `level`, `event` (the sentence), `from` (who says it), and the fields of the event.
An event gives fields as `extra={"fields": {...}}`.
"""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from typing import TextIO

import msgspec

from weir.server.config.sections import StatusConfig


class JsonLines(logging.Formatter):
    """One JSON object a line."""

    def __init__(self, shard: int | None = None) -> None:
        """Name the shard in each object, if the node has several."""
        super().__init__()
        self._more = {} if shard is None else {"shard": shard}

    def format(self, record: logging.LogRecord) -> str:
        """Return the object."""
        fields: dict[str, object] = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            "from": record.name,
        }
        more = {**self._more, **_fields(record)}
        fields |= {k: v for k, v in more.items() if k not in fields}
        if record.exc_info:
            fields["trace"] = self.formatException(record.exc_info)
        return msgspec.json.encode(fields, enc_hook=str).decode()


class TextLines(logging.Formatter):
    """One line a person reads: time, level, sentence, and those fields that it does not say."""

    def __init__(self, shard: int | None = None) -> None:
        """Write the local time, and the shard, if the node has several."""
        who = "" if shard is None else f"shard {shard}: "
        super().__init__(f"%(asctime)s %(levelname)s {who}%(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the line, fields behind."""
        line = super().formatMessage(record)
        words = record.message.replace(":", " ").split()
        fields = [
            f"{name}={value}"
            for name, value in _fields(record).items()
            if str(value) not in (*words, *record.message.split())
        ]
        return " ".join([line, *fields])


def configure(config: StatusConfig, stream: TextIO | None = None, shard: int | None = None) -> None:
    """Send all that is told to `stream`, stderr by default, in the form that is asked for.

    `shard` is the one that this process is, where a node has several.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines(shard) if config.format == "json" else TextLines(shard))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(config.level.upper())


def _fields(record: logging.LogRecord) -> dict[str, object]:
    fields: dict[str, object] = getattr(record, "fields", {})
    return fields
