"""Enough open files for many connections, or a clear word that there are not."""

from __future__ import annotations

import resource

from weir.errors import WeirError

#: What a process has open besides its connections.
_BESIDES = 256


def allow_connections(count: int) -> None:
    """Raise this process's limit, and so that of those it starts, to `count` connections.

    Raises `WeirError` where the system does not let it.
    """
    needed = count + _BESIDES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise WeirError(
            f"{count:,} connections need {needed:,} open files, and the limit is {hard:,}: raise "
            f"it with `ulimit -Hn {needed}` as root, or take fewer"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
