"""What type checkers say of the public API: right calls pass, wrong choices are refused.

mypy alone: pyright downloads a program when it first runs, so that it cannot run offline.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]

RIGHT = """
import weir

async def work(w: weir.Client) -> None:
    await w.create_topic("t", order="total")
    producer: weir.Producer = w.producer("t", compression="zstd", ack="visible")
    receipt: weir.Receipt = await producer.send({"any": "value"}, key="k")
    reader: weir.Reader = w.reader("t", order="partition", read_from="any")
    consumer: weir.Consumer = w.consumer("t", cluster="c", mode="keyed", max_work=None)
    async for message in consumer:
        leased: weir.LeasedMessage = message
        origin: weir.Origin | None = message.origin
        async with message:
            print(message.value, message.attempts, origin, receipt, reader, leased)
        await message.ack()
        if await message.ack(confirmed=True):
            await message.nack("10s")
    async for batch in consumer.batches():
        grant: weir.LeasedBatch = batch
        await grant.ack()

def blocking(w: weir.sync.Client) -> None:
    with w.consumer("t", cluster="c", mode="ordered") as consumer:
        for message in consumer:
            with message:
                print(message.attempts)
"""

WRONG = """
import weir

async def work(w: weir.Client) -> None:
    await w.create_topic("t", order="global")
    w.producer("t", compression="gzip")
    w.producer("t", ack="all")
    w.reader("t", order="global")
    w.reader("t", read_from="nearest")
    w.consumer("t", cluster="c", mode="fifo")
    weir.ConsumerOptions(cluster="c", mode="fifo")

def blocking(w: weir.sync.Client) -> None:
    w.consumer("t", cluster="c", mode="fifo")
    w.producer("t", compression="gzip")

app = weir.App()

@app.subscribe("t", cluster="c", mode="fifo")
async def handle(message: weir.Message) -> None:
    pass
"""


def checked(folder: Path, text: str) -> list[str]:
    """Return the lines of a program that mypy complains about."""
    program = folder / "program.py"
    program.write_text(text)
    environment = os.environ | {"MYPYPATH": str(ROOT / "packages/weir-mq/src")}
    command = [sys.executable, "-m", "mypy", "--follow-imports=silent", str(program)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr
    return [line for line in done.stdout.splitlines() if ": error:" in line]


def test_right_calls_pass(tmp_path: Path) -> None:
    assert checked(tmp_path, RIGHT) == []


def test_each_wrong_choice_is_refused(tmp_path: Path) -> None:
    found = {int(line.split(":")[1]) for line in checked(tmp_path, WRONG)}
    words = ('"global"', '"gzip"', '"all"', '"nearest"', '"fifo"')
    wrong = {
        number
        for number, line in enumerate(WRONG.splitlines(), 1)
        if any(word in line for word in words)
    }
    assert found == wrong
