"""Total order for packets: datagrams that every process delivers in one order.

Processes send scatterings: one message or several, to other processes, under one stamp. Switches,
or programs beside them, aggregate barriers: lower bounds of the stamps that are still to come. A
process delivers what lies below its barrier, ordered by stamp and sender. So all deliver what they
have in common in one order, and no sequencer takes part. The protocol is that of TOC and 1Pipe.

`packet`, `clock`, `node`, `endpoint`, `controller` and `topology` are pure: they do no I/O and read
no clock. docs/PACKETS.md explains what is guaranteed and what is not.
"""

from __future__ import annotations

__version__ = "0.1.0"
