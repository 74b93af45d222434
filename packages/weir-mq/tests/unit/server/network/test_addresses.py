"""What the system says about an address becomes what a user can change."""

from __future__ import annotations

import errno
import os
import socket

import pytest

from weir.server.network.addresses import BadAddress, in_words


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (socket.gaierror(-2, "Name or service not known"), "the host 'h' is not known here (Name"),
        (OSError(errno.EADDRINUSE, "x"), "h:7 is in use: stop what listens there, or give another "
         "--here; port 0 takes a free one"),
        (OSError(errno.EADDRNOTAVAIL, "x"), "h:7 is no address of this machine: listen on"),
        (PermissionError(errno.EACCES, "x"), "h:7 is not allowed to this user: give a port from"),
    ],
)  # fmt: skip
def test_an_address_that_cannot_be(error: Exception, says: str) -> None:
    with pytest.raises(BadAddress) as refused, in_words("h", 7, "--here"):
        raise error
    assert str(refused.value).startswith(says)


@pytest.mark.parametrize(
    "error",
    [
        PermissionError(errno.EACCES, os.strerror(errno.EACCES), "/a/file"),
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
        RuntimeError("a bug"),
    ],
)
def test_anything_else_passes_as_it_is(error: Exception) -> None:
    with pytest.raises(type(error)) as passed, in_words("h", 7, "--here"):
        raise error
    assert passed.value is error
