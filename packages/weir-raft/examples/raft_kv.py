"""A replicated key-value store on weir_raft, in one page: TCP, a file on disk, three processes.

    SET=1=127.0.0.1:7001,2=127.0.0.1:7002,3=127.0.0.1:7003
    python examples/raft_kv.py serve $SET 1 /tmp/kv1     # and 2 and 3, in their terminals
    python examples/raft_kv.py ask $SET set colour green
    python examples/raft_kv.py ask $SET get colour

Kill any one of them: the others go on. It needs weir_raft and the standard library. A frame is a
u32 length, then b"m" and a message of `weir_raft.codec` from a peer, or b"w" and words of a client,
parted by zero bytes. docs/RAFT.md explains every step of the loop in `Store.serve`.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from file_storage import FileStorage

import weir_raft as raft
from weir_raft.codec import decode, encode

FRAME_BYTES_MAX, VALUE_BYTES_MAX, UNSENT_MAX = 8 << 20, 64 << 10, 1_000
MESSAGE, WORDS = b"m", b"w"


class Store:
    """One node: a dict that is changed only by committed entries, all of them, in their order."""

    def __init__(self, id: int, addresses: dict[int, tuple[str, int]], folder: Path) -> None:
        self.storage = FileStorage(folder / f"{id}.raft")
        config = raft.Config(id, tuple(addresses), random=random.random)
        self.node = raft.Node(config, self.storage)
        self.address = addresses[id]
        self.data: dict[str, str] = {}
        self.unsynced: asyncio.Queue[raft.Ready] = asyncio.Queue()
        self.unsent = {p: asyncio.Queue[bytes](UNSENT_MAX) for p in addresses if p != id}
        self.peers = {peer: addresses[peer] for peer in self.unsent}
        self.writes: dict[int, asyncio.Future[str]] = {}  # by the index of their entry
        self.reads: dict[int, asyncio.Future[str]] = {}  # by context
        self.confirmed: deque[tuple[int, asyncio.Future[str]]] = deque()  # reads, by index
        self.contexts = 0

    def serve(self) -> None:
        """Do what the node asks for, until it asks for nothing: a host's whole duty."""
        node = self.node
        while node.has_ready:
            ready = node.ready()
            if ready.lost_leadership:
                for waiting in (*self.writes.values(), *self.reads.values()):
                    settle(waiting, "lost the leadership")
                self.writes.clear()
                self.reads.clear()
            for message in ready.messages:
                queue = self.unsent[message.to]
                if not queue.full():  # Raft asks again for what is lost
                    queue.put_nowait(framed(MESSAGE, encode(message)))
            if ready.must_persist:
                self.unsynced.put_nowait(ready)
            for entry in ready.committed:
                if entry.kind is raft.EntryKind.NORMAL:
                    assert isinstance(entry.data, bytes)
                    key, value = words_of(entry.data)
                    self.data[key] = value
                node.applied(entry.index)
                if written := self.writes.pop(entry.index, None):
                    settle(written, "ok")
            for read in ready.reads:
                self.confirmed.append((read.index, self.reads.pop(read.context)))
            while self.confirmed and self.confirmed[0][0] <= node.log.applied:
                settle(self.confirmed.popleft()[1], "ok")
            # No log is ever compacted and no entry ever read back from a disk, so `snapshot`,
            # `wants_snapshot` and `loads` stay empty here.

    async def run(self) -> None:
        """Serve until cancelled, or until the disk fails: then it must not go on."""
        server = await asyncio.start_server(self._accept, *self.address)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._tick())
            tasks.create_task(self._write())
            for peer in self.peers:
                tasks.create_task(self._send(peer))
            tasks.create_task(server.serve_forever())

    async def _tick(self) -> None:
        clock = asyncio.get_running_loop().time
        last = clock()
        while True:
            await asyncio.sleep(0.05)
            self.node.tick(int(1000 * (clock() - last)))
            last = clock()
            self.serve()

    async def _write(self) -> None:
        while True:
            readies = [await self.unsynced.get()]
            while not self.unsynced.empty():
                readies.append(self.unsynced.get_nowait())
            await asyncio.to_thread(self.storage.write, readies)
            self.storage.keep(readies)
            for ready in readies:
                self.node.persisted(ready.number)
            self.serve()

    async def _send(self, peer: int) -> None:
        while True:
            try:
                _, writer = await asyncio.open_connection(*self.peers[peer])
                while True:
                    writer.write(await self.unsent[peer].get())
                    await writer.drain()
            except OSError:
                await asyncio.sleep(random.uniform(0.05, 0.2))

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                tag, body = await receive(reader)
                if tag == MESSAGE:
                    self.node.step(decode(body))
                    self.serve()
                else:
                    answer = await self._answer(*words_of(body))
                    writer.write(framed(WORDS, joined(answer)))
                    await writer.drain()
        except (OSError, EOFError, ValueError, raft.CodecError) as error:
            print(f"closed a connection: {error!r}", file=sys.stderr)
        finally:
            writer.close()

    async def _answer(self, name: str, *words: str) -> list[str]:
        try:
            if name == "set" and len(words) == 2 and len(data := joined(words)) <= VALUE_BYTES_MAX:
                index = self.node.propose(data, len(data))
                return [await self._wait(self.writes, index)]
            if name == "get" and len(words) == 1:
                self.contexts += 1
                self.node.read_index(self.contexts)
                done = await self._wait(self.reads, self.contexts)
                return ["value", self.data.get(words[0], "")] if done == "ok" else [done]
            return [self.node.role.value] if name == "role" else ["unknown or too large"]
        except raft.NotLeader as error:
            return ["moved", str(error.leader_hint)]
        except (raft.NotReady, raft.Overloaded, TimeoutError) as error:
            return ["retry", str(error)]

    async def _wait(self, place: dict[int, asyncio.Future[str]], key: int) -> str:
        place[key] = asyncio.get_running_loop().create_future()
        future = place[key]
        self.serve()
        async with asyncio.timeout(5):
            return await future


def settle(waiting: asyncio.Future[str], how: str) -> None:
    """Answer whoever still waits."""
    if not waiting.done():
        waiting.set_result(how)


def framed(tag: bytes, body: bytes) -> bytes:
    """A frame as it goes over the wire."""
    return (1 + len(body)).to_bytes(4, "little") + tag + body


def joined(words: Sequence[str]) -> bytes:
    """Words as an entry or a frame holds them: none of them has a zero byte."""
    return "\0".join(words).encode()


def words_of(data: bytes) -> list[str]:
    """The words that `joined` put together; ValueError if they are no text."""
    return data.decode().split("\0")


async def receive(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Tag and body of the next frame; EOFError at the end, ValueError for what is none."""
    size = int.from_bytes(await reader.readexactly(4), "little")
    if not 0 < size <= FRAME_BYTES_MAX:
        raise ValueError(f"a frame of {size} bytes: {FRAME_BYTES_MAX} are allowed")
    frame = await reader.readexactly(size)
    return frame[:1], frame[1:]


async def ask(address: tuple[str, int], *words: str) -> list[str]:
    """One request to one node, and its answer."""
    async with asyncio.timeout(6):
        reader, writer = await asyncio.open_connection(*address)
        try:
            writer.write(framed(WORDS, joined(words)))
            _, body = await receive(reader)
            return words_of(body)
        finally:
            writer.close()


async def ask_leader(addresses: dict[int, tuple[str, int]], *words: str) -> list[str]:
    """Ask one node after the other until the leader answers; TimeoutError after 20 s.

    A `set` whose first answer was lost may be done twice.
    """
    async with asyncio.timeout(20):
        while True:
            for address in addresses.values():
                try:
                    answer = await ask(address, *words)
                except (OSError, EOFError, TimeoutError):
                    continue
                if answer[0] not in ("moved", "retry", "lost the leadership"):
                    return answer
            await asyncio.sleep(0.05)


def main(action: str, nodes: str, *words: str) -> None:
    """Serve a node, or ask the nodes."""
    pairs = (item.split("=") for item in nodes.split(","))
    addresses = {int(id): (at.split(":")[0], int(at.split(":")[1])) for id, at in pairs}
    if action == "serve":
        folder = Path(words[1])
        folder.mkdir(parents=True, exist_ok=True)
        asyncio.run(Store(int(words[0]), addresses, folder).run())
    else:
        print(*asyncio.run(ask_leader(addresses, *words)))


if __name__ == "__main__":
    main(*sys.argv[1:])
