"""The application of `weir_lab.bench.consumers.pool`: a handler that takes a while and notes what
it did.
"""

from __future__ import annotations

import os
import time

from weir.app.app import App
from weir.model.message import Message

TOPIC = "unlocks"
CLUSTER = "ledger"
#: Variables of the environment: the file of what was done, and the milliseconds of a message.
NOTES = "WEIR_POOL_NOTES"
WORK_MS = "WEIR_POOL_WORK_MS"

app = App(name="weir-pool")
_seconds = float(os.environ.get(WORK_MS, "2")) / 1_000
_notes = os.open(os.environ.get(NOTES, os.devnull), os.O_WRONLY | os.O_APPEND)


@app.subscribe(TOPIC, cluster=CLUSTER, concurrency=1)
def handle(message: Message) -> None:
    """Work, and note it."""
    time.sleep(_seconds)
    os.write(_notes, message.value + b"\n")
