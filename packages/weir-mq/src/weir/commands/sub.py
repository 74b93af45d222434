"""`weir sub`, connected: messages are taken as a consumer of a cluster, and acked."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from weir.client.client import Client
from weir.commands.output import Form, Output, line_of
from weir.model.limits import GRANT_MS_DEFAULT


@dataclass(frozen=True, slots=True)
class Sub:
    """What to take: a share of `topic` for `cluster`, which ends after `count` messages, or never.

    `mode` is "shared", "keyed" or "ordered"; a message is its own for `lease` seconds.
    """

    topic: str
    cluster: str
    mode: str = "shared"
    count: int | None = None
    form: Form = Form.text
    lease: float = GRANT_MS_DEFAULT / 1_000

    async def take(self, client: Client, output: Output) -> None:
        """Write messages until the end; each is acked once it is written. Raises `UnknownTopic`."""
        left = sys.maxsize if self.count is None else self.count
        line = line_of(self.form)
        async with client.consumer(
            self.topic, cluster=self.cluster, mode=self.mode, lease=self.lease
        ) as consumer:
            async for message in consumer:
                output.write(line(message))
                output.flush()  # what is acked was seen
                left -= 1
                if not left:
                    consumer.done()
                    return
