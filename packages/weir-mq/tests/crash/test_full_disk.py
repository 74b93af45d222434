"""The real thing: a node on a real file system that is full.

As root it is a small tmpfs of its own; else the disk of the node refuses new files beyond a limit.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from weir import sync
from weir.errors import Disconnected, Overloaded
from weir.model.batch import split
from weir.model.batch_builder import encode
from weir.protocol.client import messages as m
from weir.protocol.client.codec import ClientStream, decode_reply, encode_request
from weir.server.interpreter import environment
from weir.testing.nodes import free_ports

MIB = 1 << 20
#: The first segment, two spares and a fourth; a fifth only when the ballast is gone.
SIZE = 180 * MIB
BALLAST = 40 * MIB
VALUE = bytes(4_000_000)
WITHIN_SECONDS = 40.0

NODE = """
import sys
from pathlib import Path

from weir.server.config import Config, LogConfig, MemoryConfig, MetricsConfig, NodeConfig
from weir.server.disk.file_disk import FileDisk
from weir.server import assembly
from weir.server.processes import node

folder, size = Path(sys.argv[1]), int(sys.argv[2])


class Limited(FileDisk):
    def _check_room(self, wanted):
        super()._check_room(wanted)
        used = sum(file.stat().st_size for file in folder.parent.rglob("*") if file.is_file())
        if used + wanted > size:
            raise OSError(28, "No space left on device")


if size:
    assembly.FileDisk = Limited
config = Config(
    node=NodeConfig(data=str(folder), port=0, logs=1),
    memory=MemoryConfig(budget_mib=66, cache_mib=0),
    log=LogConfig(segment_mib=32, spares=2),
    metrics=MetricsConfig(listen=sys.argv[3]),
)
node.run(config, lambda host, port: print(port, flush=True))
"""


class SmallDisk:
    """A folder that holds `SIZE` bytes, some of which are taken by a file that can be removed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mounted = False
        folder.mkdir()
        mount = shutil.which("mount")
        if mount and os.geteuid() == 0:
            command = [mount, "-t", "tmpfs", "-o", f"size={SIZE}", "weir-test", str(folder)]
            self.mounted = subprocess.run(command, check=False, timeout=10).returncode == 0
        self._ballast = folder / "ballast"
        self._ballast.write_bytes(bytes(BALLAST))

    @property
    def limit(self) -> int:
        """What the node's disk has to limit itself to; 0 where the file system does."""
        return 0 if self.mounted else SIZE

    def free(self) -> None:
        self._ballast.unlink()

    def unmount(self) -> None:
        if self.mounted:
            subprocess.run(["umount", str(self.folder)], check=True, timeout=10)


class Node:
    """A node process over the small disk, and a connection to it."""

    def __init__(self, disk: SmallDisk, errors: Path, figures: str = "") -> None:
        with errors.open("a", encoding="utf-8") as file:
            self.child = subprocess.Popen(
                [sys.executable, "-c", NODE, str(disk.folder / "data"), str(disk.limit), figures],
                env=environment(),
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
            )
        assert self.child.stdout is not None
        watchdog = threading.Timer(WITHIN_SECONDS, self.child.kill)
        watchdog.start()
        line = self.child.stdout.readline()
        watchdog.cancel()
        assert line, f"the node did not come up: {errors.read_text(encoding='utf-8')}"
        self.port = int(line)
        address = ("127.0.0.1", self.port)
        self._socket = socket.create_connection(address, timeout=WITHIN_SECONDS)
        self._stream = ClientStream()
        self._number = 0
        self.ask(m.Hello("test"))

    def ask(self, request: m.Request) -> Any:
        self._number += 1
        self._socket.sendall(b"".join(encode_request(request, self._number)))
        while True:
            data = self._socket.recv(1 << 20)
            assert data, "the node hung up"
            for frame in self._stream.receive(data):
                assert frame.correlation == self._number
                return decode_reply(frame)

    def kill(self) -> None:
        self._socket.close()
        self.child.kill()
        self.end()

    def stop(self) -> int:
        self._socket.close()
        self.child.terminate()
        return self.end()

    def end(self) -> int:
        code = self.child.wait(WITHIN_SECONDS)
        assert self.child.stdout is not None
        self.child.stdout.close()
        return code


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    disk = SmallDisk(tmp_path / "disk")
    yield disk
    disk.unmount()


class Publisher:
    """Publishes one value after the other, and knows which were confirmed."""

    def __init__(self, node: Node) -> None:
        topic = node.ask(m.CreateTopic("t"))
        self.address = topic.addresses[0]
        self.grant = node.ask(m.OpenProducer())
        self.confirmed = 0

    def publish(self, node: Node) -> Any:
        batch = encode(
            [b"%06d" % self.confirmed + VALUE],
            group=self.address.group,
            producer=self.grant.producer,
            epoch=self.grant.epoch,
            sequence=self.confirmed,
        )
        reply = node.ask(m.Produce(self.address, 0, memoryview(batch)))
        if isinstance(reply, m.Confirm):
            assert reply.offset == self.confirmed
            self.confirmed += 1
        return reply

    def publish_until_refused(self, node: Node) -> None:
        for _ in range(SIZE // len(VALUE)):
            reply = self.publish(node)
            if isinstance(reply, m.Refusal):
                assert (reply.code, "disk is full" in reply.message) == (Overloaded.code, True)
                return
        pytest.fail("more was confirmed than the disk holds")

    def publish_once_there_is_room(self, node: Node) -> None:
        until = time.monotonic() + WITHIN_SECONDS
        while isinstance(reply := self.publish(node), m.Refusal):
            assert time.monotonic() < until
            threading.Event().wait(reply.detail / 1000)

    def ack(self, node: Node) -> None:
        """Have one more message granted, and done."""
        granted = node.ask(m.Pull(self.address, "c", 1, 1 << 20))
        assert isinstance(granted, m.Granted)
        assert granted.next_offset == granted.offset + 1
        ranges = [(granted.fence, granted.offset, granted.next_offset)]
        acked = node.ask(m.Ack(self.address, "c", ranges))
        assert isinstance(acked, m.Acked)

    def check_all_is_there(self, node: Node) -> None:
        offset = 0
        while offset < self.confirmed:
            fetched = node.ask(m.Fetch(self.address, offset, 8 * MIB))
            assert isinstance(fetched, m.Fetched), fetched
            for data in fetched.batches:
                for batch in split(data, self.address.group):
                    for value in batch.values():
                        assert bytes(value[:6]) == b"%06d" % offset
                        offset += 1
        assert offset == self.confirmed


@pytest.mark.timeout(180)
def test_a_full_disk_refuses_publishes_and_nothing_else(
    disk: SmallDisk, tmp_path: Path, tell: Callable[..., None]
) -> None:
    errors = tmp_path / "errors.txt"
    node = Node(disk, errors)
    try:
        publisher = Publisher(node)
        publisher.publish_until_refused(node)
        assert publisher.confirmed > 2 * 32 * MIB // len(VALUE), "the room was used"
        for _ in range(5):
            publisher.ack(node)
        node.kill()
        node = Node(disk, errors)
        publisher.publish_until_refused(node)
        publisher.ack(node)
        assert isinstance(node.ask(m.OpenProducer()), m.ProducerGrant)
        publisher.check_all_is_there(node)
        disk.free()
        publisher.publish_once_there_is_room(node)
        publisher.check_all_is_there(node)
        assert node.stop() == 0
        node = Node(disk, errors)
        publisher.check_all_is_there(node)
        publisher.ack(node)
        assert node.stop() == 0
        tell(confirmed=publisher.confirmed)
    finally:
        if node.child.poll() is None:
            node.kill()


@pytest.mark.timeout(180)
def test_a_full_disk_is_told_from_a_lost_majority(disk: SmallDisk, tmp_path: Path) -> None:
    errors, figures = tmp_path / "errors.txt", f"127.0.0.1:{free_ports(1)[0]}"

    def readiness() -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://{figures}/readyz", timeout=WITHIN_SECONDS) as page:
                return page.status, page.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def told(words: str) -> int:
        return errors.read_text(encoding="utf-8").count(words)

    node = Node(disk, errors, figures)
    try:
        publisher = Publisher(node)
        assert readiness() == (200, "ready\n")
        publisher.publish_until_refused(node)
        with (
            pytest.raises(Disconnected, match="refused it last with: Overloaded: the disk is full"),
            sync.connect(f"weir://127.0.0.1:{node.port}", request_timeout=5.0) as w,
        ):
            w.publish("t", VALUE)
        full = "not ready for writes: the disk is full, free 32 MiB or more\n"
        assert readiness() == (503, full)
        assert told("no room for a segment in reserve") == 1, "it is tried each second"
        assert told("the disk is full: publishes are refused") == 1
        disk.free()
        publisher.publish_once_there_is_room(node)
        assert readiness() == (200, "ready\n")
        assert node.stop() == 0
    finally:
        if node.child.poll() is None:
            node.kill()
