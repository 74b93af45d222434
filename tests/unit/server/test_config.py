"""Settings: every value checked, every error says where."""

from pathlib import Path

import pytest

from weir.server.config import BadConfig, Config, load


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


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[node]\nprot = 1\n", "prot"),
        ("[nodes]\n", "nodes"),
        ('[node]\nport = "6800"\n', "int"),
        ("[node]\nport = 70000\n", "node.port is 70000: it must be 0 to 65535"),
        ("[log]\nsegment_mib = 1\n", "log.segment_mib is 1"),
        ("[memory]\nbudget_mib = 1\n", "memory.budget_mib is 1"),
        ('[node]\ndata = ""\n', "name a folder"),
        ("[node\n", "line 1"),
    ],
)
def test_a_bad_file_is_refused_with_the_place(tmp_path: Path, text: str, says: str) -> None:
    file = write(tmp_path, text)
    with pytest.raises(BadConfig, match=says) as refused:
        load(file)
    assert str(refused.value).startswith(str(file))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match=r"nowhere\.toml"):
        load(tmp_path / "nowhere.toml")
