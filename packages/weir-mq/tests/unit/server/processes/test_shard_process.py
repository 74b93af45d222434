"""What a shard's process tells its supervisor as it ends."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
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


def test_a_shard_loads_no_room_that_it_does_not_need() -> None:
    """A node is up once all its shards have loaded what they are made of."""
    told = "import sys, weir.server.processes.shard_process; print(*sys.modules)"
    ended = subprocess.run([sys.executable, "-c", told], check=True, capture_output=True, text=True)
    loaded = set(ended.stdout.split())
    assert {name.split(".")[1] for name in loaded if name.startswith("weir.")} == {
        "access", "broker", "codec", "errors", "host", "model", "order", "protocol", "relay",
        "schema", "server", "storage", "tls", "topology", "version",
    }  # fmt: skip
    assert not loaded & {
        "cryptography", "email", "http", "importlib.metadata", "json", "numpy", "pyarrow",
        "tomllib", "typer", "weir.server.processes.node",
    }  # fmt: skip
