"""Every Python example of README.md, CLIENT.md and ORDER.md runs, and prints what the page says."""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import weir
from weir import testing

ROOT = Path(__file__).parents[4]
SOURCE = Path(weir.__file__).parents[1]
URL = "weir://localhost:6800"
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


class Example(NamedTuple):
    """A block of Python, and the block of text behind it if there is one."""

    line: int
    code: str
    printed: str | None


def examples(text: str) -> list[Example]:
    """Return a page's examples in order."""
    found: list[Example] = []
    for fence in _FENCE.finditer(text):
        kind, body = fence.groups()
        if kind == "python":
            found.append(Example(text.count("\n", 0, fence.start()) + 1, body, None))
        elif kind == "text" and found:
            found[-1] = found[-1]._replace(printed=body)
    return found


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@pytest.fixture
def node() -> Iterator[testing.Node]:
    with testing.node() as node:
        yield node


def run(example: Example, name: str, url: str) -> str:
    """Run an example against a node; return what it printed."""
    # Padded, so that a traceback names the line of the page.
    code = "\n" * example.line + example.code.replace(URL, url)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, name, "exec"), {"__name__": "example"})
    return out.getvalue()


def test_the_client_page_is_true(node: testing.Node) -> None:
    found = [e for e in examples(page("docs/CLIENT.md")) if not e.code.startswith("# test_")]
    assert len(found) == 12
    for example in found:
        assert run(example, "docs/CLIENT.md", node.url) == example.printed


def test_the_page_about_order_is_true(node: testing.Node) -> None:
    (example,) = examples(page("docs/ORDER.md"))
    assert run(example, "docs/ORDER.md", node.url) == example.printed


def test_the_tests_on_the_client_page_pass(tmp_path: Path) -> None:
    (example,) = [e for e in examples(page("docs/CLIENT.md")) if e.code.startswith("# test_")]
    file = tmp_path / "test_billing.py"
    file.write_text(example.code, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(file)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


def test_the_client_of_the_readme_runs(node: testing.Node) -> None:
    example = examples(page("README.md"))[0]
    printed = run(example, "README.md", node.url).splitlines()
    assert len([line for line in printed if line.startswith("billed")]) == 1


def test_a_page_that_lies_is_caught(node: testing.Node) -> None:
    (example,) = examples(
        f"text\n\n```python\nfrom weir import sync\nwith sync.connect('{URL}') as w:\n"
        "    print(len(w.topics()))\n```\n\nand\n\n```text\n1\n```\n"
    )
    assert run(example, "page", node.url) == "0\n" != example.printed
