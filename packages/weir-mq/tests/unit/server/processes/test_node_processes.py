"""The supervisor, over processes that only play a shard."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from weir.errors import WeirError
from weir.host.supervision import DiskGone, NodeFailed
from weir.server.config import Config, NodeConfig, StopConfig
from weir.server.disk.node_folder import NodeFolder
from weir.server.network.addresses import in_words
from weir.server.processes import node
from weir.server.processes.control_channel import Failed
from weir.server.processes.node import supervise
from weir.server.processes.shard_process import _failed

#: A shard that reads its assignment, then does as `{play}` says with its end of the tether.
PLAY = """
import json, os, socket, sys, time
end = socket.socket(fileno=int(sys.argv[1]))
lines = end.makefile("rb")
given = json.loads(lines.readline())
shard = given["shard"]
def tell(**message):
    end.sendall(json.dumps(message).encode() + b"\\n")
def until_stop():
    for line in lines:
        if json.loads(line)["type"] == "stop":
            return True
    os._exit(2)
{play}
"""
SERVE = """
tell(type="ready")
until_stop()
tell(type="drained", everything={drained})
"""

Play = Callable[[str], None]


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Play:
    def play(script: str) -> None:
        code = PLAY.replace("{play}", script)
        monkeypatch.setattr(
            node, "python", lambda _, fd, *_doors: [sys.executable, "-S", "-c", code, fd]
        )
        monkeypatch.setattr(node, "FIRST_PAUSE_SECONDS", 0.001)

    return play


def run(
    folder: Path,
    stop_when_started: bool = True,
    seconds: float = 1.0,
    config: Config | None = None,
    stop: asyncio.Event | None = None,
) -> bool:
    config = config or Config(node=NodeConfig(data=str(folder), port=0), stop=StopConfig(seconds))
    founded = NodeFolder(folder).found(2)

    stop = stop or asyncio.Event()

    async def whole() -> bool:
        def started(host: str, port: int) -> None:
            endpoint = NodeFolder(folder).endpoint()
            assert endpoint is not None
            assert (endpoint.host, endpoint.port) == (host, port)
            if stop_when_started:
                stop.set()

        return await asyncio.wait_for(supervise(config, founded, 2, started, stop), 20)

    return asyncio.run(whole())


@pytest.mark.parametrize(("everything", "drained"), [("True", True), ("shard == 0", False)])
def test_a_node_drains_if_every_shard_does(
    tmp_path: Path, play: Play, everything: str, drained: bool
) -> None:
    play(SERVE.replace("{drained}", everything))
    assert run(tmp_path) is drained
    assert NodeFolder(tmp_path).endpoint() is None


def test_a_shard_that_does_not_stop_is_killed(
    tmp_path: Path, play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node, "_GRACE_SECONDS", 0.1)
    play("tell(type='ready'); time.sleep(60)")
    assert run(tmp_path, seconds=0.1) is False


def test_a_shard_that_ends_is_started_again_and_connected_with_the_others(
    tmp_path: Path, play: Play
) -> None:
    """Shard 1 ends twice; shard 0 serves once it has been given trunks to three of them."""
    counter = tmp_path / "starts"
    play(
        f"""
if shard == 1:
    with open({str(counter)!r}, "a+b") as file:
        file.write(b"1")
        file.flush()
        if file.tell() < 3:
            os._exit(9)
else:
    trunks = []
    while trunks.count(True) < 3 or trunks.count(False) < 3:
        message = json.loads(lines.readline())
        if message["type"] == "away":
            continue
        assert (message["type"], message["shard"]) == ("trunk", 1), message
        trunks.append(message["asks"])
"""
        + SERVE.replace("{drained}", "True")
    )
    assert run(tmp_path) is True
    assert counter.read_bytes() == b"111"


def test_a_shard_that_stands_still_is_killed_started_again_and_told_of(
    tmp_path: Path, play: Play, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Shard 1 serves and then stands still; shard 0 hears that it is away, and that it is back."""
    caplog.set_level("INFO")
    monkeypatch.setattr(node, "ALIVE_SECONDS", 0.01)
    starts = tmp_path / "starts"
    play(
        f"""
import threading
again = False
if shard == 1:
    with open({str(starts)!r}, "a+b") as file:
        again = file.tell() > 0
        file.write(b"1")
tell(type="ready")
if shard == 1 and not again:
    time.sleep(60)
def live():
    while True:
        tell(type="alive")
        time.sleep(0.01)
threading.Thread(target=live, daemon=True).start()
if shard == 1:
    until_stop()
    os._exit(0)
for line in lines:
    message = json.loads(line)
    if message["type"] == "away" and not message["shards"]:
        with open({str(starts)!r}, "a+b") as file:
            file.seek(0)
            if file.read() == b"11":
                tell(type="failed", reason="all serve again", errno=0)
                os._exit(1)
"""
    )
    config = Config(node=NodeConfig(data=str(tmp_path), port=0, hang_seconds=1.0))
    with pytest.raises(NodeFailed, match="all serve again"):
        run(tmp_path, stop_when_started=False, config=config)
    assert "shard 1 does not answer" in caplog.text
    assert "shard 1 said nothing for 1 s: it is killed" in caplog.text
    assert "shard 1 serves again" in caplog.text
    # That shard 0 misses 30 ms is a busy machine; a second would be a look at the wrong shard.
    assert "shard 0 said nothing" not in caplog.text


def test_a_shard_that_goes_on_gets_trunks_again(
    tmp_path: Path, play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shard 1 stands still until shard 0 has heard of it, and left it."""
    monkeypatch.setattr(node, "ALIVE_SECONDS", 0.01)
    left = tmp_path / "left"
    play(
        f"""
import threading
tell(type="ready")
if shard == 1:
    while not os.path.exists({str(left)!r}):
        time.sleep(0.01)
def live():
    while True:
        tell(type="alive")
        time.sleep(0.005)
threading.Thread(target=live, daemon=True).start()
if shard == 1:
    until_stop()
    os._exit(0)
trunks = None
for line in lines:
    message = json.loads(line)
    if message["type"] == "away" and message["silent"] == [1]:
        trunks = []
        open({str(left)!r}, "w").close()
    elif message["type"] == "trunk" and trunks is not None:
        assert message["shard"] == 1
        trunks.append(message["asks"])
        if sorted(trunks) == [False, True]:
            tell(type="failed", reason="joined again", errno=0)
            os._exit(1)
"""
    )
    with pytest.raises(NodeFailed, match="joined again"):
        run(tmp_path, stop_when_started=False)


def test_a_trunk_that_broke_is_replaced(tmp_path: Path, play: Play) -> None:
    play(
        """
tell(type="ready")
if shard == 1:
    until_stop()
    os._exit(0)
asks = 0
for line in lines:
    message = json.loads(line)
    if message["type"] == "trunk" and message["asks"]:
        asks += 1
        if asks == 3:
            tell(type="failed", reason="replaced twice", errno=0)
            os._exit(1)
        tell(type="lost", shard=1)
"""
    )
    with pytest.raises(NodeFailed, match="replaced twice"):
        run(tmp_path, stop_when_started=False)


def test_a_shard_that_is_between_two_processes_has_drained(
    tmp_path: Path, play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it had confirmed is in its log, which the next start reads."""
    play("os._exit(9) if shard == 1 else None" + SERVE.replace("{drained}", "True"))
    monkeypatch.setattr(node, "FIRST_PAUSE_SECONDS", 0.5)
    stop = asyncio.Event()

    class Stopping(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "restarted" in record.getMessage():
                stop.set()

    handler = Stopping()
    node.log.addHandler(handler)
    try:
        assert run(tmp_path, stop=stop) is True
    finally:
        node.log.removeHandler(handler)


@pytest.mark.parametrize("ends", [0, 1])
def test_a_shard_that_is_not_up_yet_is_not_waited_for(
    tmp_path: Path, play: Play, ends: int
) -> None:
    """It reads its logs, which may take long: at the node's start, or when it was started again."""
    counter = tmp_path / "starts"
    play(
        f"""
if shard == 1:
    with open({str(counter)!r}, "a+b") as file:
        file.write(b"1")
        file.flush()
        starts = file.tell()
    if starts > {ends}:
        open({str(tmp_path / "reads")!r}, "wb").close()
        time.sleep(60)
    tell(type="ready")
    os._exit(9)
"""
        + SERVE.replace("{drained}", "True")
    )
    stop = asyncio.Event()

    async def stop_when_it_reads() -> None:
        while not (tmp_path / "reads").exists():
            await asyncio.sleep(0.01)
        stop.set()

    async def whole() -> bool:
        founded = NodeFolder(tmp_path).found(2)
        config = Config(node=NodeConfig(data=str(tmp_path), port=0), stop=StopConfig(60.0))
        watching = asyncio.create_task(stop_when_it_reads())
        async with asyncio.timeout(30):
            drained = await supervise(config, founded, 2, None, stop)
        await watching
        return drained

    assert asyncio.run(whole()) is True


def test_a_shard_that_ends_again_and_again_ends_the_node(tmp_path: Path, play: Play) -> None:
    play("os._exit(9) if shard == 1 else until_stop()")
    with pytest.raises(NodeFailed, match=r"shard 1 ended 5 times within 60 s, .* exit code 9"):
        run(tmp_path)


def test_what_a_shard_says_it_failed_of_ends_the_node(tmp_path: Path, play: Play) -> None:
    play("tell(type='failed', reason='log 1 is bad', errno=0) if shard else until_stop()")
    with pytest.raises(NodeFailed, match="log 1 is bad"):
        run(tmp_path)


def test_a_port_that_is_taken_ends_the_node(tmp_path: Path, play: Play) -> None:
    play("tell(type='failed', reason='taken', errno=98) if shard else until_stop()")
    with pytest.raises(OSError, match="taken") as failed:
        run(tmp_path)
    assert failed.value.errno == 98


def test_a_file_that_a_shard_may_not_open_is_named_and_no_port(tmp_path: Path, play: Play) -> None:
    said = "type='failed', reason='Permission denied', errno=13, file='n/log-1'"
    play(f"tell({said}) if shard else until_stop()")
    with pytest.raises(PermissionError) as failed, in_words("127.0.0.1", 6800, "--port"):
        run(tmp_path)
    assert (failed.value.strerror, failed.value.filename) == ("Permission denied", "n/log-1")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (PermissionError(13, "Permission denied", "n/log-1"), ("Permission denied", 13, "n/log-1")),
        (OSError(98, "cannot listen"), ("cannot listen", 98, None)),
        (TimeoutError("too late"), ("too late", 0, None)),
        (NodeFailed("log 1 is bad"), ("log 1 is bad", 0, None)),
    ],
)
def test_what_ends_a_shard_is_told_whole(
    error: WeirError | OSError, told: tuple[str, int, str | None]
) -> None:
    assert _failed(error) == Failed(*told)


def test_a_failed_disk_ends_the_node_with_its_exit_code(tmp_path: Path, play: Play) -> None:
    play("os._exit(74) if shard else until_stop()")
    with pytest.raises(DiskGone, match="shard 1"):
        run(tmp_path)
    config = Config(node=NodeConfig(data=str(tmp_path), port=0, shards=2))
    with pytest.raises(SystemExit) as ended:
        node.run(config)
    assert ended.value.code == 74
    with NodeFolder(tmp_path).held():  # and nothing is left that holds the folder
        pass


def test_a_supervisor_loads_nothing_of_what_a_shard_is_made_of() -> None:
    """It would start later, and its shards wait for it."""
    told = "import sys, weir.server.processes.node; print(*sys.modules)"
    ended = subprocess.run([sys.executable, "-c", told], check=True, capture_output=True, text=True)
    loaded = ended.stdout.split()
    assert "weir.host.supervision" in loaded
    broker = [name for name in loaded if name.startswith(("weir.broker.", "weir_raft."))]
    assert sorted(broker) == ["weir.broker.api", "weir.broker.api.settings"]
