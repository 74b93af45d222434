"""One of two processes of a test: `python marked_senders.py sender|receiver URL COUNT`.

The sender sends COUNT reliable messages to the receiver, and prints what it says of itself as JSON
when all are acknowledged. Each of both ends when standard input does, or has nothing more to do.
"""

from __future__ import annotations

import json
import sys
from itertools import islice

from rigs.programs import PATIENCE_SECONDS
from weir_toc import sync


def main(role: str, url: str, count: int) -> None:
    with sync.join(url, name=role, timeout=PATIENCE_SECONDS) as me:
        other = "sender" if role == "receiver" else "receiver"
        me.wait_for(other)
        if role == "receiver":
            found = len([*islice(me.reliable, count)])
            print(json.dumps(found), flush=True)
        else:
            me.send_reliable_many([[(other, bytes(1_000))]] * count)
            assert me.drain(PATIENCE_SECONDS)
            print(json.dumps(me.describe()), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
