"""The back end behind weir: `weir work weir_lab.bench.consumers.dormitory.handlers:app --cluster
ledger`.
"""

from __future__ import annotations

from weir.app.app import App
from weir.model.message import Message
from weir_lab.bench.consumers.dormitory.ledger import AT_ONCE, CLUSTER, TOPIC, Ledger

app = App(name="weir-bench")
_ledgers: list[Ledger] = []


@app.on_start
async def begin() -> None:
    """Connect to the database."""
    ledger = Ledger()
    await ledger.open()
    _ledgers[:] = [ledger]


# Without `inbox=`, which would take rows away that are still to be counted.
@app.subscribe(TOPIC, cluster=CLUSTER, concurrency=AT_ONCE)
async def keep(message: Message) -> None:
    """Keep a record."""
    await _ledgers[0].keep(message)
