"""What two type checkers say of the public API: right calls pass, wrong choices are refused.

basedpyright stands for pyright, which downloads a program at its first run and so needs a network.
"""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import weir
from weir import device, sync, testing

ROOT = Path(__file__).parents[1]
SOURCES = os.pathsep.join(
    str(ROOT / "packages" / name / "src") for name in ("weir-mq", "weir-raft")
)

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
async def wrong(w: weir.Client) -> None:
    await w.create_topic("t", order="global")
    w.producer("t", compression="gzip")
    w.producer("t", ack="all")
    w.reader("t", order="global")
    w.reader("t", read_from="nearest")
    w.consumer("t", cluster="c", mode="fifo")
    weir.ConsumerOptions(cluster="c", mode="fifo")

def wrong_blocking(w: weir.sync.Client) -> None:
    w.consumer("t", cluster="c", mode="fifo")
    w.producer("t", compression="gzip")

app = weir.App()

@app.subscribe("t", cluster="c", mode="fifo")
async def handle(message: weir.Message) -> None:
    pass
"""


#: What a user of basedpyright gets who asks for no more; and what finds a name without a type.
STANDARD = {"typeCheckingMode": "standard"}
KNOWN = {
    "typeCheckingMode": "off",
    "reportAttributeAccessIssue": "error",
    "reportMissingImports": "error",
    "reportUnknownMemberType": "error",
    "reportUnknownVariableType": "error",
}


def mypy(folder: Path, text: str) -> set[int]:
    """Return the lines of a program that mypy complains about."""
    program = folder / "program.py"
    program.write_text(text)
    environment = os.environ | {"MYPYPATH": str(ROOT / "packages/weir-mq/src")}
    # With the settings of `make verify`: what that found of our own modules is kept and used again.
    command = [sys.executable, "-m", "mypy", "--strict", str(program)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr
    return {int(line.split(":")[1]) for line in done.stdout.splitlines() if ": error:" in line}


def basedpyright(folder: Path, text: str, rules: dict[str, str] = STANDARD) -> set[int]:
    """Return the lines of a program that basedpyright complains about."""
    program = folder / "program.py"
    program.write_text(text)
    (folder / "pyrightconfig.json").write_text(json.dumps(rules))
    command = [
        sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable,
        "--project", str(folder),
    ]  # fmt: skip
    environment = os.environ | {"PYTHONPATH": SOURCES}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    told = json.loads(done.stdout)
    assert told["summary"]["filesAnalyzed"] == 1
    found = [one for one in told["generalDiagnostics"] if one["severity"] == "error"]
    return {one["range"]["start"]["line"] + 1 for one in found}


@pytest.fixture(scope="module", params=[mypy, basedpyright])
def wrong(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> set[int]:
    """The lines of which a type checker complains in right calls and, behind them, wrong ones."""
    found: set[int] = request.param(tmp_path_factory.mktemp("program"), RIGHT + WRONG)
    return found


def test_right_calls_pass(wrong: set[int]) -> None:
    assert not [number for number in wrong if number <= len(RIGHT.splitlines())]


def test_each_wrong_choice_is_refused(wrong: set[int]) -> None:
    words = ('"global"', '"gzip"', '"all"', '"nearest"', '"fifo"')
    expected = {
        number
        for number, line in enumerate((RIGHT + WRONG).splitlines(), 1)
        if any(word in line for word in words)
    }
    assert wrong == expected


def public(module: ModuleType, spelt: str) -> Iterator[str]:
    """Yield what `help` shows of a module: its names, and the methods of its classes."""
    for name in module.__all__:
        yield f"{spelt}.{name}"
        one = getattr(module, name)
        if inspect.isclass(one) and not issubclass(one, BaseException):
            for method, _ in inspect.getmembers(one):
                if method[0] != "_":
                    yield f"{spelt}.{name}.{method}"


def test_each_public_name_has_a_type(tmp_path: Path) -> None:
    names = [
        *public(weir, "weir"),
        *public(testing, "weir.testing"),
        *public(device, "weir.device"),
        *public(sync, "weir.sync"),
    ]
    assert len(names) > 200
    head = ["import weir", "import weir.device", "import nothing_of_that_name", ""]
    lines = [f"one{at} = {name}" for at, name in enumerate(names)]
    planted = ["wrong = weir.Client.misspelt", "unknown = nothing_of_that_name.value"]
    found = basedpyright(tmp_path, "\n".join([*head, *lines, *planted]), KNOWN)
    last = len(head) + len(lines)
    assert found == {3, last + 1, last + 2}
