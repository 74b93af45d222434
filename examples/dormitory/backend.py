"""The back end: a desk that opens doors for phones, and a ledger of every unlock.

Each is a cluster of handlers, and has as many processes as there is work for:

    weir work backend:app --cluster desk
    weir work backend:app --cluster ledger

With DORMITORY_VERIFIED=1 the locks are a fleet, and the ledger rejects an unlock that no lock of it
has proved to be its own.
"""

from __future__ import annotations

import os

from building import DOORS, RECORD
from sqlalchemy import create_engine, text

import weir

TABLE = "create table if not exists unlocks (floor int, number int, door int, resident int, at int)"
UNLOCK = "insert into unlocks values (:floor, :number, :door, :resident, :at)"

database = os.environ.get("DORMITORY_LEDGER", "ledger.db")
only_verified = os.environ.get("DORMITORY_VERIFIED") == "1"
engine = create_engine(f"sqlite:///{database}", connect_args={"timeout": 30})
inbox = weir.Inbox("ledger")
app = weir.App("weir://localhost:6800", name="dormitory")


@app.on_start
def begin() -> None:
    inbox.create(engine)
    with engine.begin() as connection:
        connection.execute(text(TABLE))


@app.subscribe("wishes", cluster="desk", dead_letter="wishes.refused")
async def open_door(message: weir.Message) -> None:
    """Tell a lock to open, if it is the resident's own."""
    wish = message.json()
    if wish["door"] != wish["resident"] % DOORS:
        raise weir.Reject("this door is another's")
    # Published again if this process dies before the ack: the lock knows a wish by this name.
    wish["wish"] = f"{message.topic}/{message.partition}/{message.offset}"
    await app.client.publish("commands", wish, partition=wish["floor"])


@app.subscribe("unlocks", cluster="ledger", dead_letter="unlocks.broken", inbox=inbox)
def record(message: weir.Message) -> None:
    """Write an unlock down, once: its row and the inbox's are committed together, or neither."""
    if only_verified and not (message.origin and message.origin.verified):
        raise weir.Reject("no lock has proved that this unlock is its own")
    if len(message.value) != RECORD.size:
        raise weir.Reject(f"{len(message.value)} bytes are no unlock")
    floor, door, resident, number, at = RECORD.unpack(message.value)
    row = {"floor": floor, "door": door, "resident": resident, "number": number, "at": at}
    with engine.begin() as connection, inbox.once(connection, message) as fresh:
        if fresh:
            connection.execute(text(UNLOCK), row)
