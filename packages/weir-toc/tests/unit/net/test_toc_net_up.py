"""`weir-toc net up`: what it builds, and that nothing of it stays, whoever ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rigs.examples import FOLDER
from rigs.programs import PATIENCE_SECONDS
from rigs.trees import SMALL, missing, namespace_of, processes_in, tree
from weir_toc.cli import WRONG_USE, main
from weir_toc.errors import TocError
from weir_toc.net import linux, namespaces

needs_root = pytest.mark.skipif(bool(missing()), reason=missing())


def traces() -> set[str]:
    """Return what of such a tree is seen outside it; other programs may change the rest."""
    nodes, words = {"host-0", "rack-0"}, ["ip", "-o", "link"]
    shown = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    names = {line.split(": ")[1].partition("@")[0] for line in shown.splitlines()}
    mounts = Path("/proc/mounts").read_text().splitlines()
    return {
        *names & {*nodes, "ctl", *(f"c-{node}" for node in nodes)},
        *(line for line in mounts if line.split()[1].startswith(str(namespaces.NAMESPACES))),
        *(str(path) for path in namespaces.NAMESPACES.glob("*") if path.name in nodes),
    }


@needs_root
@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
def test_nothing_stays_of_a_tree_that_a_signal_ends(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    namespaces.NAMESPACES.mkdir(parents=True, exist_ok=True)  # it stays
    before = traces()
    with tree(*SMALL) as made:
        assert "10.0.0.1/32" in made.run("host-0", "ip", "-o", "address", "show", "dev", "eth0")
        assert made.namespace != namespace_of(os.getpid())
        assert len(processes_in(made.namespace)) >= 2  # the first process, and the controller
        sleeper = subprocess.Popen([*made.command("host-0"), "sleep", "1000"])
        switch = made.run("rack-0", "readlink", "/proc/self/ns/net").strip("net:[]\n")
        assert processes_in(int(switch))
        assert traces() == before
        made.process.send_signal(number)
        assert made.process.wait(PATIENCE_SECONDS) == (
            -signal.SIGKILL if number is signal.SIGKILL else 0
        )
        assert sleeper.wait(PATIENCE_SECONDS) != 0
        until = time.monotonic() + PATIENCE_SECONDS
        while processes_in(made.namespace) or processes_in(int(switch)):
            assert time.monotonic() < until
            time.sleep(0.01)
    # After SIGKILL an empty folder may stay, over which the tree had mounted.
    left = [*tmp_path.rglob("*")]
    assert len(left) == (1 if number is signal.SIGKILL else 0), left
    assert traces() == before


@needs_root
def test_a_tree_ends_with_the_process_that_started_it() -> None:
    parent = (
        "import sys, time\n"
        "from rigs.trees import SMALL, tree\n"
        "with tree(*SMALL) as made:\n"
        "    print(made.first, made.process.pid, made.namespace, flush=True)\n"
        "    time.sleep(1000)\n"
    )
    one = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True,
                           env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})  # fmt: skip
    assert one.stdout is not None
    first, outer, namespace = map(int, one.stdout.readline().split())
    assert processes_in(namespace)
    one.kill()
    one.wait()
    one.stdout.close()
    until = time.monotonic() + PATIENCE_SECONDS
    while processes_in(namespace) or Path(f"/proc/{first}").exists():
        assert time.monotonic() < until, outer
        time.sleep(0.01)


@needs_root
@pytest.mark.slow
def test_the_kernel_takes_another_path_once_the_controller_has_taken_a_cable_out() -> None:
    shape = ("--hosts", "2", "--racks", "2", "--spines", "2", "--cores", "0", "--members", "1")
    with tree(*shape, "--interval-ms", "100", "--place", "switch") as made:

        def wait_for(node: str, network: str, ports: set[str]) -> None:
            until = time.monotonic() + PATIENCE_SECONDS
            while True:
                shown = made.run(node, "ip", "route", "show", network)
                if {one for one in ("spine-0", "spine-1") if one in shown} == ports:
                    return
                assert time.monotonic() < until, shown
                time.sleep(0.05)

        both = {"spine-0", "spine-1"}
        wait_for("rack-0", "10.0.1.0/24", both)
        for node, port, address in (("rack-0", "spine-0", "10.2.0.1"),
                                    ("spine-0", "rack-0", "10.1.0.1")):  # fmt: skip
            made.run(node, "ip", "neighbour", "replace", address, "lladdr", "02:ff:ff:ff:ff:ff",
                     "dev", port, "nud", "permanent")  # fmt: skip
        wait_for("rack-0", "10.0.1.0/24", {"spine-1"})
        wait_for("rack-1", "10.0.0.0/24", {"spine-1"})  # spine 0 does not lead there any more
        assert "unreachable" in made.run("spine-0", "ip", "route", "show", "10.0.0.0/24")


@needs_root
def test_a_program_in_a_host_joins_at_the_switch_of_that_host() -> None:
    wrong = (
        "import sys, weir_toc.sync as toc\n"
        "try:\n"
        "    toc.join(sys.argv[1], name='c', rack=0, timeout=1.5).__enter__()\n"
        "except toc.TocError as error:\n"
        "    print(error)\n"
    )
    with tree("--hosts", "2", "--racks", "2", "--spines", "1", "--cores", "0", "--members", "3",
              "--interval-ms", "20") as made:  # fmt: skip
        url = made.facts["url"]
        shown = made.run("host-1", sys.executable, str(FOLDER / "hello.py"), url).split()
        assert shown.count("a") == shown.count("b") == 4  # two messages each, one from each
        why = made.run("host-1", sys.executable, "-c", wrong, url)
        assert "the aggregator of rack-0 at 10.1.0.1:7100 did not answer" in why
        assert "say so with rack=" in why


@needs_root
@pytest.mark.slow
def test_a_tree_whose_switch_ends_says_so_and_is_taken_down() -> None:
    with tree(*SMALL) as made:
        switch = made.run("rack-0", "readlink", "/proc/self/ns/net").strip("net:[]\n")
        (process,) = processes_in(int(switch))
        os.kill(process, signal.SIGKILL)
        assert made.process.wait(PATIENCE_SECONDS) == 1
        assert made.process.stderr is not None
        assert b"rack-0 ended" in made.process.stderr.read()
        assert not processes_in(made.namespace)


@pytest.mark.parametrize(("options", "why"), [
    (["--loss", "51"], "0 to 50 percent"),
    (["--members", "0"], "1 to 7"),
    (["--interval-ms", "0"], "0.1 to 1000"),
    (["--hosts", "0"], "hosts"),
    (["--spines", "0"], "spine"),
])  # fmt: skip
def test_wrong_options_are_refused_before_anything_is_built(
    options: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["net", "up", *options]) == WRONG_USE
    assert why in capsys.readouterr().err


@pytest.mark.parametrize("words", [
    ["net", "up"], ["controller", "--id", "1", "--members", "toc://127.0.0.1:1"],
])  # fmt: skip
def test_a_folder_that_cannot_be_made_is_named(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    folder = tmp_path / "file" / "log"
    assert main([*words, "--folder", str(folder)]) == 1
    said = capsys.readouterr().err
    assert said == f"weir-toc: --folder {folder} cannot be made: Not a directory\n"


def test_what_is_missing_is_said_before_anything_is_built(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(linux, "missing_rights", lambda: ["CAP_NET_ADMIN", "CAP_SYS_ADMIN"])
    assert main(["net", "up"]) == 1
    assert "CAP_NET_ADMIN and CAP_SYS_ADMIN are missing: run it as root" in capsys.readouterr().err
    monkeypatch.setattr(linux, "missing_rights", list)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(TocError, match="install iproute2"):
        namespaces.check_needs()


#: Two trees over a folder that was not there before: the first one ends, and the other one must go
#: on. It prints whether the folder is still mounted in the other one.
_TWO_TREES = """
import subprocess, sys, tempfile
from pathlib import Path

subprocess.run(["mount", "-t", "tmpfs", "none", "/run"], check=True)

def start():
    words = [sys.executable, "-m", "weir_toc", "net", "up", "--json", "--hosts", "1",
             "--racks", "1", "--members", "1"]
    made = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    while '"event": "up"' not in made.stdout.readline().replace('":"', '": "'):
        assert made.poll() is None
    return made

def is_mounted(tree):
    (first,) = Path(f"/proc/{tree.pid}/task/{tree.pid}/children").read_text().split()
    return " /run/netns " in Path(f"/proc/{first}/mountinfo").read_text()

one, other = start(), start()
assert is_mounted(one) and is_mounted(other)
one.terminate()
one.wait(30)
print(is_mounted(other))
other.terminate()
other.wait(30)
"""


@needs_root
def test_a_tree_that_ends_leaves_another_one_its_namespaces() -> None:
    words = ["unshare", "--mount", "--propagation", "private", sys.executable, "-c", _TWO_TREES]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
