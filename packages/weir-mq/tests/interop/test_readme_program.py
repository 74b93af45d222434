"""The first program of README.md, run against a node again and again, bills no message twice."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from weir import sync
from weir.server.interpreter import environment
from weir.testing.nodes import Node, running_node

ROOT = Path(__file__).parents[4]
URL = "weir://localhost:6800"
_BILLED = re.compile(r"^billed (\d+) (\d+) b", re.MULTILINE)


def billed(program: str, node: Node) -> list[tuple[str, ...]]:
    """Run the program in a process of its own; return (partition, offset) of what it billed."""
    done = subprocess.run(
        [sys.executable, "-c", program.replace(URL, node.url)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [tuple(place) for place in _BILLED.findall(done.stdout)]


def test_the_program_run_twice_bills_no_message_twice() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    program = text.split("```python\n", 1)[1].split("```", 1)[0]
    assert URL in program
    with running_node() as node:
        places = []
        for runs in (1, 2, 3):
            places += billed(program, node)
            assert len(places) == runs
            with sync.connect(node.url) as w:
                (cluster,) = w.clusters("flights", "billing")
                assert cluster.lag == 3 * runs - runs, "what was billed is acked"
        assert len(set(places)) == 3
