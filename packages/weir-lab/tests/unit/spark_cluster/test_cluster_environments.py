"""Environments are made once, anew when what they are made of changes, and packed without jars."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from weir_lab.spark_cluster import environments
from weir_lab.spark_cluster.environments import Environments, NotInstalled, write_archive

PACKAGES = "lib/python3.11/site-packages"


class Pip:
    """Stands for venv and pip: makes the folders that they would make, and keeps their words."""

    def __init__(self) -> None:
        self.installs: list[list[str]] = []

    def run(self, command: Sequence[str], seconds: float) -> None:
        words = [*command]
        if "venv" in words:
            place = Path(words[-1])
            (place / PACKAGES).mkdir(parents=True)
            (place / "bin").mkdir()
            os.symlink("/usr/bin/python3", place / "bin" / "python")
        elif "wheel" in words:
            folder = Path(words[words.index("-w") + 1])
            folder.mkdir(parents=True, exist_ok=True)
            name = Path(words[-1]).name.replace("-", "_")
            (folder / f"{name}-0.1.0-py3-none-any.whl").touch()
        else:
            self.installs.append(words)
            place = Path(words[words.index("--python") + 1]).parents[1]
            package = place / PACKAGES / ("pyspark" if "pyspark" in words[-1] else "weir")
            package.mkdir(exist_ok=True)
            (package / "__init__.py").write_text(f"# {len(self.installs)}")


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch) -> Pip:
    made = Pip()
    monkeypatch.setattr(environments, "_run", made.run)
    return made


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    root = tmp_path / "checkout"
    (root / "packages" / "weir-mq").mkdir(parents=True)
    (root / "packages" / "weir-mq" / "pyproject.toml").write_text("[project]")
    (root / "constraints.txt").write_text("pyspark==4.3.0\n")
    return root


def test_three_sparks_are_installed_once(pip: Pip, checkout: Path, tmp_path: Path) -> None:
    kept = Environments(checkout, tmp_path / "kept")
    homes = [kept.spark(name) for name in ("master", "worker-1")]
    assert len(pip.installs) == 1
    assert pip.installs[0][-1].startswith("pyspark==")
    files = [home.folder / "__init__.py" for home in homes]
    assert files[0] != files[1]
    assert files[0].samefile(files[1])  # one file in two places
    assert Environments(checkout, tmp_path / "kept").spark("master") == homes[0]
    assert len(pip.installs) == 1


def test_another_pyspark_is_another_environment(
    pip: Pip, checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Environments(checkout, tmp_path / "kept")
    before = (kept.spark("master").folder / "__init__.py").read_text()
    monkeypatch.setattr(environments, "version", lambda name: "9.9.9")
    after = kept.spark("master").folder / "__init__.py"
    assert pip.installs[-1][-1] == "pyspark==9.9.9"
    assert after.read_text() != before


def test_what_is_shipped_is_made_anew_for_other_constraints(
    pip: Pip, checkout: Path, tmp_path: Path
) -> None:
    def needed() -> list[list[str]]:
        return [words for words in pip.installs if "--force-reinstall" not in words]

    kept = Environments(checkout, tmp_path / "kept")
    archive = kept.pack()
    assert any(word.endswith("[spark-worker]") for word in needed()[-1])
    kept.pack()
    assert len(needed()) == 1
    assert len(pip.installs) == 3  # weir itself is installed each time
    (checkout / "constraints.txt").write_text("pyspark==4.3.1\n")
    kept.pack()
    assert len(needed()) == 2
    with tarfile.open(archive) as file:
        assert {f"{PACKAGES}/weir/__init__.py", "bin/python"} <= {*file.getnames()}


def test_an_archive_is_found_at_its_root_and_keeps_links(tmp_path: Path) -> None:
    place = tmp_path / "made"
    (place / "bin").mkdir(parents=True)
    os.symlink("/usr/bin/python3", place / "bin" / "python")
    (place / "pyvenv.cfg").write_text("home = /usr/bin")
    write_archive(place, tmp_path / "a.tar.gz")
    with tarfile.open(tmp_path / "a.tar.gz") as file:
        members = {member.name.removeprefix("./"): member for member in file}
        settings = file.extractfile(members["pyvenv.cfg"])
        assert settings is not None
        assert settings.read() == b"home = /usr/bin"
    assert members["bin/python"].issym()
    assert members["bin/python"].linkname == "/usr/bin/python3"


def test_jars_are_not_shipped(tmp_path: Path) -> None:
    (tmp_path / "made" / PACKAGES / "pyspark" / "jars").mkdir(parents=True)
    with pytest.raises(NotInstalled, match="install the extra spark-worker"):
        write_archive(tmp_path / "made", tmp_path / "a.tar.gz")
    assert not (tmp_path / "a.tar.gz").exists()


def test_it_is_run_in_a_checkout(tmp_path: Path) -> None:
    with pytest.raises(NotInstalled, match="is no checkout of weir: run this in its root"):
        Environments(tmp_path, tmp_path / "kept")


def test_what_pip_said_last_is_told(tmp_path: Path, checkout: Path) -> None:
    kept = Environments(checkout, tmp_path / "kept")
    (tmp_path / "kept" / "spark").touch()  # a file where the environment is to be
    with pytest.raises(NotInstalled, match=r"venv .* failed: "):
        kept.spark("master")
