"""Why a host could not be reached, and what to look at."""

from __future__ import annotations

import socket


def why_unreachable(host: str, port: int, error: Exception) -> str:
    """Return a sentence about a failed dial that names the host."""
    if isinstance(error, socket.gaierror):
        return (
            f"{host} has no address: check how the name is spelt, and that this machine can "
            f"resolve it ({error.strerror})"
        )
    if isinstance(error, ConnectionRefusedError):
        return f"nobody listens at {host}:{port}"
    return f"{host}:{port}: {str(error) or 'no answer in time'}"
