"""Publish ten messages of 1,000 bytes to a topic, and say whether that took over two seconds."""

import sys
import time

from weir import sync

with sync.connect("weir://localhost:6800") as client:
    began = time.monotonic()
    for _ in range(10):
        client.publish(sys.argv[1], bytes(1_000))
    print("slowly" if time.monotonic() - began > 2 else "at once")
