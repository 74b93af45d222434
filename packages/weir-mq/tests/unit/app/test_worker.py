"""A process of `weir work` that cannot go on."""

import subprocess
from pathlib import Path

from weir import testing
from weir.server.interpreter import environment, python

APP = """
import weir

app = weir.App()

@app.subscribe("absent", cluster="crew")
def handle(message):
    pass
"""


def test_what_ends_a_process_is_told_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "crew.py").write_text(APP, encoding="utf-8")
    with (
        testing.node() as node,
        subprocess.Popen(
            python("weir.app.worker", "crew:app", "crew", node.url, "10"),
            cwd=tmp_path,
            env=environment(),
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        assert process.stderr is not None
        assert process.stderr.read() == ("no topic 'absent': `weir topic create absent` makes it\n")
        assert process.wait(30) == 1
