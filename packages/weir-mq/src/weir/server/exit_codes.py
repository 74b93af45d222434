"""Exit codes of a shard's process, by which its supervisor knows why it ended."""

from __future__ import annotations

EXIT_FAILED = 1
#: The supervisor is gone, and with it everybody who would start this process again.
EXIT_ORPHANED = 2
#: The disk failed (sysexits.h EX_IOERR).
EXIT_DISK = 74
