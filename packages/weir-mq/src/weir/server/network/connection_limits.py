"""Room for open files: a shard's connections are no more than the system lets it have."""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
from dataclasses import replace

from weir.host.accept_queue import ConnectionLimits

#: Descriptors that are no connections: the log, its segments, the folder, other shards.
_OWN_DESCRIPTORS = 256


def open_doors(limits: ConnectionLimits) -> ConnectionLimits:
    """Raise this process's limit of open files as far as it goes; return what that allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = limits.connections_max + _OWN_DESCRIPTORS
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        _make_room(wanted)
        return limits
    _make_room(soft)
    fewer = max(soft - _OWN_DESCRIPTORS, soft // 2)
    return replace(limits, connections_max=fewer)


def _make_room(descriptors: int) -> None:
    """Let the table of this process's descriptors be as large as it may have to be: 8 bytes each.

    The system doubles a full one, and who opens a file waits 5 to 15 ms for that where a process
    has several threads: all peers of a shard would, in the middle of a burst.
    """
    with contextlib.suppress(OSError):  # it can do without
        some = os.open(os.devnull, os.O_RDONLY)
        try:
            os.close(fcntl.fcntl(some, fcntl.F_DUPFD_CLOEXEC, descriptors - 1))
        finally:
            os.close(some)
