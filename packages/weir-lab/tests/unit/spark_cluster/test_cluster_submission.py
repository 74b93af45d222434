"""Jobs are given to a cluster as they are; a small program stands for `spark-submit`."""

from __future__ import annotations

import stat
import sys
import textwrap
import time
from pathlib import Path

import pytest

from weir_lab.spark_cluster import submission
from weir_lab.spark_cluster.standalone import SparkFailed
from weir_lab.spark_cluster.submission import Job, Submitter


def fake(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    program = folder / "pyspark" / "bin" / "spark-submit"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!{sys.executable}\nimport os, sys, time\n{textwrap.dedent(text)}")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(submission.pyspark, "__file__", str(folder / "pyspark" / "__init__.py"))


def submitter(folder: Path, seconds: float = 20.0) -> Submitter:
    archive = folder / "environment.tar.gz"
    return Submitter(
        "spark://127.0.0.1:1", archive, folder / "driver", Path("/java"), 2, seconds=seconds
    )


def job() -> Job:
    return Job("rows", Path("/jobs/rows.py"), ("weir://a", "flights"))


def test_the_job_comes_last_and_as_it_is(tmp_path: Path) -> None:
    words = submitter(tmp_path).command(job())
    assert words[-3:] == ["/jobs/rows.py", "weir://a", "flights"]
    pairs = dict(zip(words[1:-3:2], words[2:-3:2], strict=True))
    assert pairs["--master"] == "spark://127.0.0.1:1"
    assert pairs["--archives"] == f"{tmp_path}/environment.tar.gz#environment"
    assert pairs["--name"] == "rows"
    assert "spark.pyspark.python=./environment/bin/python" in words
    assert f"spark.pyspark.driver.python={sys.executable}" in words


def test_what_a_job_prints_is_returned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", "/elsewhere")
    monkeypatch.setenv("PYSPARK_PYTHON", "other")
    fake(tmp_path, monkeypatch, """
        print("noise", file=sys.stderr)
        print(os.environ.get("SPARK_HOME"), os.environ.get("PYSPARK_PYTHON"))
        print(os.environ["JAVA_HOME"], os.readlink("environment"))
    """)  # fmt: skip
    checks: list[None] = []
    submitting = submitter(tmp_path)
    for _ in range(2):  # the link is there the second time
        said = submitting.submit(job(), lambda: checks.append(None))
        assert said == f"None None\n/java {sys.prefix}\n"
    assert checks


def test_a_job_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(tmp_path, monkeypatch, "sys.exit('first line' + chr(10) + 'it broke')")
    with pytest.raises(SparkFailed, match="rows failed:\nfirst line\nit broke"):
        submitter(tmp_path).submit(job(), lambda: None)


SLEEPS = """
    import subprocess
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    print(child.pid, file=open("child", "w"), flush=True)
    print("waits", file=sys.stderr, flush=True)
    time.sleep(600)
"""


def test_a_job_that_does_not_end_is_ended_with_all_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(tmp_path, monkeypatch, SLEEPS)
    said = tmp_path / "driver" / "rows.log"

    def check() -> None:
        while not said.read_text():
            time.sleep(0.01)

    with pytest.raises(SparkFailed, match=r"rows did not end within 0.1 s: waits"):
        submitter(tmp_path, seconds=0.1).submit(job(), check)
    child = int((tmp_path / "driver" / "child").read_text())
    stat = Path(f"/proc/{child}/stat")
    assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"


def test_whoever_checks_may_end_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(tmp_path, monkeypatch, SLEEPS)

    def check() -> None:
        raise SparkFailed("a node of weir has ended")

    with pytest.raises(SparkFailed, match="a node of weir has ended"):
        submitter(tmp_path).submit(job(), check)
