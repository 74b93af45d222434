"""Finding Java, with small scripts that stand for runtimes."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from weir.errors import NoJava
from weir.spark import session

FLAG = "--add-modules=jdk.incubator.vector"


def runtime(home: Path, version: str, whole: bool = True) -> Path:
    """Write a `java` that answers as a runtime of this version does."""
    refuse = "" if whole else f'for a in "$@"; do [ "$a" = {FLAG} ] && exit 1; done\n'
    script = (
        f"#!/bin/sh\n{refuse}"
        f'echo "    java.home = {home}" >&2\n'
        f'echo "    java.specification.version = {version}" >&2\n'
        'for a in "$@"; do echo "<$a>"; done\n'
    )
    path = home / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(script)
    path.chmod(0o755)
    return path


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with no Java at all; JAVA_HOME is put back after the test."""
    monkeypatch.setenv("JAVA_HOME", "")
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("weir.spark.session.importlib.import_module", _missing)
    return tmp_path


def _missing(name: str) -> None:
    raise ImportError(name)


def test_java_home_comes_first(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime(places / "path", "21")
    monkeypatch.setenv("PATH", f"{places}/path/bin:/bin:/usr/bin")
    assert session.use_java() == places / "path"
    assert os.environ["JAVA_HOME"] == str(places / "path")
    runtime(places / "home", "17")
    monkeypatch.setenv("JAVA_HOME", str(places / "home"))
    assert session.use_java() == places / "home"


def test_an_old_java_is_passed_over(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime(places / "old", "1.8", whole=False)
    runtime(places / "new", "25")
    monkeypatch.setenv("JAVA_HOME", str(places / "old"))
    monkeypatch.setenv("PATH", f"{places}/new/bin:/bin:/usr/bin")
    assert session.use_java() == places / "new"


def test_without_java_the_error_says_what_to_do(
    places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NoJava, match=r"none was found.*pip install weir-mq\[spark\]"):
        session.use_java()
    old = runtime(places / "old", "11")
    monkeypatch.setenv("JAVA_HOME", str(places / "old"))
    with pytest.raises(NoJava, match=f"JAVA_HOME: {old} is Java 11"):
        session.use_java()
    monkeypatch.setenv("JAVA_HOME", str(places / "gone"))
    with pytest.raises(NoJava, match="gone/bin/java does not run"):
        session.use_java()


def test_a_trimmed_java_gets_a_shim(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = places / "it's trimmed"
    runtime(home, "25", whole=False)
    monkeypatch.setenv("JAVA_HOME", str(home))
    found = session.use_java()
    assert found.is_relative_to(places / "cache" / "weir")
    # JAVA_HOME names the shim now, and must go on doing so: java.home is still the trimmed one.
    assert session.use_java() == found
    called = subprocess.run(
        [found / "bin" / "java", "-a b", FLAG, "", "-jar", "x"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert called.stdout.splitlines() == ["<-a b>", "<>", "<-jar>", "<x>"]


def test_a_shim_is_written_once_and_mended(tmp_path: Path) -> None:
    home = session.shim(tmp_path / "jdk", tmp_path / "cache")
    script = home / "bin" / "java"
    written = script.stat().st_ino
    assert session.shim(tmp_path / "jdk", tmp_path / "cache") == home
    assert script.stat().st_ino == written
    script.write_text("torn")
    assert session.shim(tmp_path / "jdk", tmp_path / "cache") == home
    assert "exec" in script.read_text()
    assert os.access(script, os.X_OK)
    assert [*script.parent.iterdir()] == [script]
    assert session.shim(tmp_path / "other", tmp_path / "cache") != home


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(NoJava, match="XDG_CACHE_HOME"):
        session.shim(tmp_path / "jdk", tmp_path / "cache")
