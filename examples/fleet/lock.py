"""A lock that says that it was opened: python lock.py HUB BOOT [SECRET-FILE GENERATION]."""

import sys
from pathlib import Path

from weir.device import Client, DeviceSecret
from weir.errors import NotAuthenticated, ProofNeeded

hub, boot = int(sys.argv[1]), int(sys.argv[2])
secret = None
if len(sys.argv) > 3:
    words = Path(sys.argv[3]).read_text(encoding="utf-8").split()
    secret = DeviceSecret(bytes.fromhex(words[-1]), generation=int(sys.argv[4]))
try:
    with Client("127.0.0.1", 6800, hub, boot, "locks", secret=secret) as lock:
        lock.publish_sequenced(b"opened")
except (NotAuthenticated, ProofNeeded):
    sys.exit("refused")
print(f"hub {hub}: confirmed")
