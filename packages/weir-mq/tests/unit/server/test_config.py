"""Settings: every value checked, every problem named at once with its place, every origin told."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import pytest

from weir.server.config import (
    BadConfig,
    Config,
    MemoryConfig,
    MetricsConfig,
    NodeConfig,
    metrics_ports,
    quantity,
    settings,
)
from weir.server.config_sources import load, resolve, sample
from weir.server.processes.node import run

ROOT = Path(__file__).parents[5]


def write(folder: Path, text: str) -> Path:
    file = folder / "weir.toml"
    file.write_text(text)
    return file


def test_no_file_gives_the_defaults() -> None:
    assert load(None) == Config()
    assert load(None).node.port == 6800


def test_a_file_overrides_what_it_names(tmp_path: Path) -> None:
    config = load(write(tmp_path, '[node]\nport = 7000\ndata = "/d"\n[log]\nsegment_mib = 128\n'))
    assert (config.node.port, config.node.data, config.log.segment_mib) == (7000, "/d", 128)
    assert config.memory == Config().memory


def test_text_may_carry_a_unit(tmp_path: Path) -> None:
    text = '[memory]\nbudget_mib = "1GiB"\n[stop]\ndrain_seconds = "2m"\n'
    config = load(write(tmp_path, text))
    assert (config.memory.budget_mib, config.stop.drain_seconds) == (1024, 120.0)


@pytest.mark.parametrize(
    ("text", "unit", "number"),
    [
        ("64MiB", "MiB", 64),
        ("1 GiB", "MiB", 1024),
        ("64", "MiB", 64),
        ("128KiB", "MiB", 0.125),
        ("1_000", "", 1000),
        ("7d", "s", 604_800),
        ("500ms", "s", 0.5),
        ("1.5h", "s", 5400),
        ("-3", "", -3),
    ],
)
def test_quantities(text: str, unit: str, number: float) -> None:
    assert quantity(text, unit) == number


@pytest.mark.parametrize("text", ["5", "0.5", " 10 ", "0"])
def test_a_duration_without_a_unit_is_refused(text: str) -> None:
    number = text.strip()
    with pytest.raises(ValueError, match=f"has no unit: write {number}s, {number}m or {number}h"):
        quantity(text, "s")


def test_a_duration_in_the_configuration_that_is_text_needs_a_unit(tmp_path: Path) -> None:
    name = "WEIR__STOP__DRAIN_SECONDS"
    with pytest.raises(BadConfig, match=f"{name}: stop.drain_seconds is '5', which has no unit"):
        resolve(None, {name: "5"})
    assert resolve(None, {name: "5s"}).config.stop.drain_seconds == 5.0
    file = tmp_path / "weir.toml"
    file.write_text('[stop]\ndrain_seconds = "5"\n')
    with pytest.raises(BadConfig, match="write 5s, 5m or 5h"):
        resolve(file)
    file.write_text("[stop]\ndrain_seconds = 5\n")  # a number, and the name has the unit
    assert resolve(file).config.stop.drain_seconds == 5.0


@pytest.mark.parametrize(("text", "unit"), [("7d", "MiB"), ("1MiB", ""), ("", "s"), ("five", "s")])
def test_what_is_no_quantity_is_refused(text: str, unit: str) -> None:
    with pytest.raises(ValueError, match="write a number"):
        quantity(text, unit)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[node]\nprot = 1\n", ":2: no setting 'node.prot': did you mean node.port?"),
        ("\n[nodes]\n", r":2: no section \[nodes\]: did you mean node\?"),
        ("node = 3\n", r":1: node is a section: write \[node\]"),
        ('[node]\nport = "many"\n', "node.port is 'many': write a number"),
        ("[node]\nport = true\n", "node.port is True: write a number"),
        ("[node]\nport = 70000\n", ":2: node.port is 70000: it must be 0 to 65535"),
        ("[node]\nhost = 1\n", "node.host is 1: write it as text, in quotes"),
        ("[log]\nsegment_mib = 1\n", "log.segment_mib is 1: it must be 32 to 4096"),
        ('[log]\nsegment_mib = "33.5MiB"\n', "that is no whole number of MiB"),
        ("[memory]\nbudget_mib = 1\n", "memory.budget_mib is 1"),
        ("[memory]\nbudget_mib = 66\n", "cache_mib is 128, above memory.budget_mib 66: lower"),
        ('[node]\ndata = ""\n', "node.data must not be empty"),
        ('[status]\nformat = "xml"\n', "status.format is 'xml'"),
        ('[metrics]\nlisten = "6801"\n', "metrics.listen is '6801': write HOST:PORT"),
        ('[node]\nhost = "a..b"\n', "node.host is 'a..b': that is no name of a machine"),
        ('[metrics]\nlisten = "a..b:1"\n', "metrics.listen is 'a..b:1': write HOST:PORT"),
        ("[node\n", r":1: expected '\]'.*, at column 6"),
        ("[node]\nport = 1 2\n", ":2: expected newline or end of document after a statement, at"),
        ("[node]\nport = ", r":2: invalid value"),
        ('[status]\nformat = "xml"\n', "format is 'xml': write text or json"),
        ("[memory]\nbudget_mib = 512.5\n", "budget_mib is 512.5: write a whole number of MiB"),
        ("[memory]\nbudget_mib = 1\n", "it must be 66 to 1048576 MiB"),
        ('[node]\nhost = "not a host!!"\n', ":2: node.host is 'not a host!!': that is no name"),
        ("[node]\nlogs = 2\nshards = 8\n", ":3: node.shards is 8, above node.logs 2"),
    ],
)
def test_a_bad_file_is_refused_with_the_place(tmp_path: Path, text: str, says: str) -> None:
    file = write(tmp_path, text)
    with pytest.raises(BadConfig, match=says) as refused:
        load(file)
    assert str(refused.value).startswith(str(file))


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    file = write(tmp_path, "[node]\nport = -1\nprot = 2\n[log]\nspares = 99\n")
    with pytest.raises(BadConfig) as refused:
        resolve(file, {"WEIR__NODE__HOSTS": "x", "OTHER": "y"}, {"node.port": ("--port", 70_000)})
    places = [problem.split(": ")[0] for problem in refused.value.problems]
    assert places == [f"{file}:2", f"{file}:3", f"{file}:5", "WEIR__NODE__HOSTS", "--port"]


def test_a_bad_value_hides_no_problem_of_others(tmp_path: Path) -> None:
    text = (
        '[node]\nhost = "a b"\n[memory]\nbudget_mib = 66\ncache_mib = 67\n'
        '[metrics]\nlisten = "6801"\n[stop]\ndrain_seconds = nan\n'
    )
    file = write(tmp_path, text)
    with pytest.raises(BadConfig) as refused:
        load(file)
    places = sorted(problem.split(": ")[0] for problem in refused.value.problems)
    assert places == [f"{file}:{line}" for line in (2, 5, 7, 9)]
    file.write_text(text.replace("= 66", '= "x"'))
    with pytest.raises(BadConfig) as refused:
        load(file)
    assert "cache_mib" not in str(refused.value), "nobody knows what it is to be compared with"


def test_a_file_may_begin_with_a_mark_and_must_be_utf8(tmp_path: Path) -> None:
    file = tmp_path / "weir.toml"
    file.write_bytes(b"\xef\xbb\xbf[node]\nport = 7000\n")
    assert load(file).node.port == 7000
    file.write_bytes(b'[node]\ndata = "Z\xfcrich"\n')
    with pytest.raises(BadConfig, match=r"weir\.toml:2: byte 0xfc is not UTF-8: save"):
        load(file)


def test_a_variable_with_one_stroke_is_not_ignored() -> None:
    with pytest.raises(BadConfig, match="WEIR_NODE_PORT: did you mean WEIR__NODE__PORT"):
        resolve(None, {"WEIR_NODE_PORT": "7000"})
    assert resolve(None, {"WEIR_URL": "weir://a"}).config == Config()


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match=r"nowhere\.toml"):
        load(tmp_path / "nowhere.toml")


def test_later_sources_win_and_each_value_says_whence(tmp_path: Path) -> None:
    file = write(tmp_path, '[node]\nport = 1\nhost = "a"\n\n[log]\nspares = 3\n')
    environment = {"WEIR__NODE__HOST": "b", "WEIR__MEMORY__BUDGET_MIB": "1GiB"}
    found = resolve(file, environment, {"node.port": ("--port", 5)})
    node = found.config.node
    assert (node.port, node.host, found.config.log.spares) == (5, "b", 3)
    assert found.config.memory.budget_mib == 1024
    assert found.origins["node.port"] == "--port"
    assert found.origins["node.host"] == "WEIR__NODE__HOST"
    assert found.origins["log.spares"] == f"{file}:6"
    assert found.origins["node.data"] == "default"
    assert found.origins.keys() == {setting.key for setting in settings()}


def test_every_setting_is_explained_and_has_its_variable() -> None:
    for setting in settings():
        assert setting.about.endswith("."), setting.key
        assert setting.problem(setting.default) == "", setting.key
        value = str(setting.default) + ("s" if setting.unit == "s" else "")
        assert resolve(None, {setting.variable: value}).config == Config(), setting.key


def test_the_file_in_deploy_is_the_sample_and_says_the_defaults(tmp_path: Path) -> None:
    assert (ROOT / "deploy/weir.toml").read_text() == sample(), (
        "settings changed: write the file anew with `weir config sample > deploy/weir.toml`"
    )
    assert load(ROOT / "deploy/weir.toml") == Config()
    live = [line.removeprefix("#") if line[1:2] != " " else "" for line in sample().splitlines()]
    assert load(write(tmp_path, "\n".join(live))) == Config()


def test_what_is_built_in_code_is_checked_too() -> None:
    with pytest.raises(BadConfig, match=r"memory\.budget_mib is 1: it must be"):
        Config(memory=MemoryConfig(budget_mib=1)).validate()
    with pytest.raises(BadConfig, match="both 6800: give metrics a port of their own"):
        Config(metrics=MetricsConfig("127.0.0.1:6800")).validate()


@pytest.mark.parametrize(
    ("listen", "host", "shards", "problem"),
    [
        ("127.0.0.1:65535", "127.0.0.1", 2, "take the ports 65535 to 65536: begin at 65534"),
        ("127.0.0.1:65534", "127.0.0.1", 2, ""),
        ("127.0.0.1:6798", "127.0.0.1", 3, "take the ports 6798 to 6800: node.port 6800 is one"),
        ("127.0.0.1:6798", "127.0.0.1", 2, ""),
        ("127.0.0.1:6799", "0.0.0.0", 2, "node.port 6800 is one of them"),
        ("127.0.0.1:6799", "127.0.0.2", 2, ""),
        ("[::]:6800", "::1", 1, "both 6800"),
        ("127.0.0.1:0", "127.0.0.1", 64, ""),
        ("", "127.0.0.1", 64, ""),
    ],
)
def test_the_figures_of_all_shards_have_ports(
    listen: str, host: str, shards: int, problem: str
) -> None:
    config = Config(NodeConfig(host=host, shards=shards), metrics=MetricsConfig(listen))
    if problem:
        with pytest.raises(BadConfig, match=problem):
            config.validate()
    else:
        config.validate()
    # How many there are may be known only at the start: one a core, one for each log at most.
    unsaid = Config(NodeConfig(host=host), metrics=MetricsConfig(listen))
    assert problem in metrics_ports(unsaid, shards)
    assert bool(metrics_ports(unsaid, shards)) == bool(problem)


def test_a_node_whose_figures_have_no_ports_does_not_start(tmp_path: Path) -> None:
    node = NodeConfig(data=str(tmp_path), port=0, shards=0, logs=2)
    with (
        patch("os.cpu_count", return_value=2),
        pytest.raises(BadConfig, match="65535 to 65536"),
    ):
        run(Config(node, metrics=MetricsConfig("127.0.0.1:65535")))
