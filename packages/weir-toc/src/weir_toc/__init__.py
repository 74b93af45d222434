"""Total order for packets: datagrams that every process delivers in one order.

Processes send scatterings: one message or several, to other processes, under one stamp. Switches,
or programs beside them, aggregate barriers: lower bounds of the stamps that are still to come. A
process delivers what lies below its barrier, ordered by stamp and sender. So all deliver what they
have in common in one order, and no sequencer takes part. The protocol is that of TOC and 1Pipe.

`packet`, `clock`, `node`, `endpoint`, `controller` and `topology` are pure: they do no I/O and read
no clock. `hosts` carries out what they decide. Programs use `join`, or its twin in `sync`.
docs/PACKETS.md explains what is guaranteed and what is not.
"""

from __future__ import annotations

from weir_toc import sync
from weir_toc.errors import Fenced, InvalidScattering, NotSent, Refused, SendBufferFull, TocError
from weir_toc.member import Event, Member, Message, ProcessFailed, SendFailed, join

__all__ = [
    "Event",
    "Fenced",
    "InvalidScattering",
    "Member",
    "Message",
    "NotSent",
    "ProcessFailed",
    "Refused",
    "SendBufferFull",
    "SendFailed",
    "TocError",
    "__version__",
    "join",
    "sync",
]

__version__ = "0.1.0"
