"""Addresses that nobody can listen on, in words that say what to change."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from weir.errors import WeirError

_ADVICE = {
    errno.EADDRINUSE: "is in use: stop what listens there, or give another {option}; port 0 takes "
    "a free one",
    errno.EADDRNOTAVAIL: "is no address of this machine: listen on 127.0.0.1, or on 0.0.0.0 for "
    "all its addresses",
    errno.EACCES: "is not allowed to this user: give a port from 1024 on",
}


class BadAddress(WeirError):
    """The address cannot be listened on."""


@contextmanager
def in_words(host: str, port: int, option: str) -> Iterator[None]:
    """Turn what the system says about an address into `BadAddress`, which names `option`.

    Any other `OSError` passes, as one about a file does.
    """
    try:
        yield
    except socket.gaierror as error:
        raise BadAddress(
            f"the host {host!r} is not known here ({error.strerror}): give an address of this "
            "machine, 127.0.0.1 for itself alone, or 0.0.0.0 for all of them"
        ) from None
    except OSError as error:
        # What a folder that may not be written to raises has a file name.
        if error.errno not in _ADVICE or error.filename is not None:
            raise
        advice = _ADVICE[error.errno].format(option=option)
        raise BadAddress(f"{host}:{port} {advice}") from None
