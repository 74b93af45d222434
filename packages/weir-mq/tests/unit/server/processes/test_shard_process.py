"""What a shard's process tells its supervisor as it ends."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from weir.errors import RemoteProtocolError
from weir.server.processes import shard_process


@pytest.mark.parametrize("served", [False, True])
@pytest.mark.parametrize("error", [RemoteProtocolError("a bug"), OSError(98, "taken")])
def test_only_what_keeps_a_shard_from_serving_at_all_ends_the_node(
    monkeypatch: pytest.MonkeyPatch, served: bool, error: Exception
) -> None:
    """After that, the supervisor sees it end and starts it again."""

    async def breaks(led: Any, _: object) -> bool:
        led.served = served
        raise error

    monkeypatch.setattr(shard_process, "_be_shard", breaks)
    ours, theirs = socket.socketpair()
    with ours:
        assert asyncio.run(shard_process._main(theirs.detach())) == shard_process.EXIT_FAILED
        ours.setblocking(False)
        if served:
            with pytest.raises(BlockingIOError):
                ours.recv(1_000)
        else:
            assert b'"type":"failed"' in ours.recv(1_000)
