"""Bits that flip in the files of a real node, and files that are cut short: `python -m
weir_lab.bench.faults.flips --times 200` prints JSON.

A node takes messages and acks and is stopped. Each time one place is changed in one file of a copy
of its folder, drawn at random: a bit flips, or, one time in five, the file ends there. The node is
started on the copy and everything is read that it serves. Each message must have the bytes that
were published at its offset. What cannot be had any more must be told: the node refuses to start
and says why, or a reader is refused, or the node says that its log is damaged.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec

from weir.client.client import Client, connect
from weir.client.core.retries import Backoff
from weir.errors import WeirError
from weir.model.limits import MIB
from weir.testing.nodes import Node, NodeFailed, Setting, start_node
from weir_lab.bench.harness.loop import run
from weir_lab.bench.harness.machine import Machine, this_machine

#: One log in small segments, and nothing is served from memory.
_NODE: dict[str, Setting] = {
    **{"segment_mib": 32, "spares": 0, "shards": 1, "logs": 1, "cache_mib": 0},
    "level": "warning",
}
_TOPIC = "flips"
_CLUSTER = "crew"
_EACH = 50
_VALUE_BYTES = 1_000
_ACKED = 10
_CUTS = 0.2
_READ_WITHIN_S = 60.0
#: What a node or a refusal says of a place whose bytes are gone.
_TELLS = ("damage", "cannot be read", "unreadable")


class Settings(msgspec.Struct, frozen=True):
    """So many changes of one place each, in a folder of about `mib` MiB of messages."""

    times: int = 200
    mib: int = 40
    seed: int = 1

    @property
    def messages(self) -> int:
        """How many messages are published, in whole batches."""
        return max(1, self.mib * MIB // (_VALUE_BYTES * _EACH)) * _EACH


class Result(msgspec.Struct):
    """How often each came out; `wrong`, `silent` and `stuck` must be 0, the others come to times.

    `whole`: all messages were served. `told`: some were not, and that was said. `refused`: the node
    did not start, and said why. `wrong`: bytes that were never published there. `silent`: some were
    not served, and nobody said so. `stuck`: the node or a reader came to no end.
    """

    settings: Settings
    machine: Machine
    files: int
    flips: int = 0
    cuts: int = 0
    whole: int = 0
    told: int = 0
    refused: int = 0
    wrong: int = 0
    silent: int = 0
    stuck: int = 0
    #: Messages that were served, in all.
    served: int = 0
    #: What was changed where wrong, silent or stuck was the outcome.
    places: list[str] = []


def measure(settings: Settings, folder: str | None = None) -> Result:
    """Fill a node, and change one place after the other. Raises what the sound node raises."""
    dice = random.Random(settings.seed)
    with tempfile.TemporaryDirectory(prefix="weir-bench-", dir=folder) as name:
        scratch = Path(name)
        sound, spoilt = scratch / "sound", scratch / "spoilt"
        with start_node(sound, scratch, **_NODE) as node:
            run(_fill(node, settings.messages))
        files = sorted(path for path in sound.rglob("*") if path.is_file() and path.stat().st_size)
        result = Result(settings, this_machine(), len(files))
        for _ in range(settings.times):
            shutil.copytree(sound, spoilt)
            what = _spoil(spoilt / dice.choice(files).relative_to(sound), dice, result)
            outcome = _outcome(spoilt, scratch, settings.messages, result)
            setattr(result, outcome, getattr(result, outcome) + 1)
            if outcome in ("wrong", "silent", "stuck"):
                result.places.append(f"{outcome}: {what}")
            shutil.rmtree(spoilt)
    return result


def _spoil(path: Path, dice: random.Random, result: Result) -> str:
    """Change one place of a file; return which."""
    size = path.stat().st_size
    at = dice.randrange(size)
    if dice.random() < _CUTS:
        result.cuts += 1
        with path.open("r+b") as file:
            file.truncate(at)
        return f"{path.name} cut at {at:,} of {size:,}"
    result.flips += 1
    with path.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1 << dice.randrange(8)]))
    return f"{path.name} flipped at {at:,} of {size:,}"


def _outcome(data: Path, scratch: Path, messages: int, result: Result) -> str:
    (scratch / "node.log").unlink(missing_ok=True)
    try:
        node = start_node(data, scratch, **_NODE)
    except NodeFailed as error:
        return "refused" if "ended before it was up" in str(error) else "stuck"
    try:
        found, refused = run(_read(node, messages))
        said = node.said().lower()
    except TimeoutError:
        return "stuck"
    except ValueError:
        return "wrong"
    finally:
        node.kill()
    result.served += found
    if found == messages:
        return "whole"
    return "told" if refused or any(word in said for word in _TELLS) else "silent"


def _value(number: int) -> bytes:
    return b"%08d" % number * (_VALUE_BYTES // 8)


async def _fill(node: Node, messages: int) -> None:
    async with connect(node.url, name="weir-bench") as client:
        await client.create_topic(_TOPIC, retention="forever", retention_bytes="forever")
        async with client.producer(_TOPIC, linger=1) as producer:
            for first in range(0, messages, _EACH):
                for number in range(first, first + _EACH):
                    producer.send(_value(number))
                await producer.flush()
        async with client.consumer(_TOPIC, cluster=_CLUSTER) as consumer:
            for _ in range(_ACKED):
                message = await anext(consumer)
                await message.ack(confirmed=True)


async def _read(node: Node, messages: int) -> tuple[int, bool]:
    """Return how many messages are served, and whether any was refused.

    Raises `ValueError` for one whose bytes are not those that were published at its offset.
    """
    found, at, refused = 0, 0, False
    retry = Backoff(first=0.05, most=0.2, attempts=5)
    async with (
        asyncio.timeout(_READ_WITHIN_S),
        connect(node.url, name="weir-bench", retry=retry) as client,
    ):
        while at < messages:
            before = at
            try:
                async for offset, value in _from(client, at):
                    if value != _value(offset):
                        raise ValueError(f"other bytes at offset {offset:,}")
                    found, at = found + 1, offset + 1
            except WeirError:
                refused = True
                at = (max(at, before) // _EACH + 1) * _EACH  # behind the batch that is bad
            else:
                break
    return found, refused


async def _from(client: Client, first: int) -> AsyncIterator[tuple[int, bytes]]:
    async with client.reader(_TOPIC, start={0: first}, follow=False) as reader:
        async for message in reader:
            yield message.offset, message.value


def main(arguments: Sequence[str] | None = None) -> None:
    """Change as many places as the command line says, and print what came of it."""
    parser = argparse.ArgumentParser(
        prog="python -m weir_lab.bench.faults.flips", description=__doc__
    )
    parser.add_argument("--times", type=int, default=Settings().times)
    parser.add_argument("--mib", type=int, default=Settings().mib)
    parser.add_argument("--seed", type=int, default=Settings().seed)
    parser.add_argument("--folder", help="where the node's folder is to lie for the moment")
    wanted = parser.parse_args(arguments)
    result = measure(Settings(wanted.times, wanted.mib, wanted.seed), wanted.folder)
    print(msgspec.json.format(msgspec.json.encode(result)).decode())


if __name__ == "__main__":
    main()
