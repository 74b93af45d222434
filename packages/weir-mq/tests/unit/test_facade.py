"""The façade `weir` loads its names on first use, and nothing before."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import weir

SOURCE = Path(weir.__file__).parents[1]


def loaded_after(statement: str) -> set[str]:
    """Names of all modules that a fresh interpreter holds after `statement`."""
    done = subprocess.run(
        [sys.executable, "-c", f"{statement}\nimport sys\nprint(*sys.modules)"],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_raft_loads_neither_asyncio_nor_the_client() -> None:
    modules = loaded_after("import weir_raft")
    assert "weir_raft" in modules
    assert not {"asyncio", "weir.client", "weir.model"} & modules


def test_connect_loads_the_client() -> None:
    # The counterpart of the test above: it shows that `loaded_after` would see a client.
    assert {"asyncio", "weir.client.client"} <= loaded_after("from weir import connect")


def test_a_client_loads_no_room_that_it_does_not_need() -> None:
    """Commands, applications and Spark tasks start with it, each in a process of its own."""
    loaded = loaded_after("import weir.client.client")
    assert {name.split(".")[1] for name in loaded if name.startswith("weir.")} == {
        "access", "client", "codec", "errors", "model", "order", "protocol", "schema", "tls",
        "topology", "version",
    }  # fmt: skip
    assert not loaded & {
        "cryptography", "email", "http", "importlib.metadata", "json", "numpy", "pyarrow", "typer",
        "weir.client.sync.client", "weir_raft",
    }  # fmt: skip


def test_names_lead_home() -> None:
    from weir.app.app import App
    from weir.client.client import connect
    from weir.model.batch import Batch
    from weir.model.message import Message

    assert weir.App is App
    assert weir.connect is connect
    assert weir.Batch is Batch
    assert weir.Message is Message
    assert weir.errors is sys.modules["weir.errors"]


def test_dir_lists_every_public_name() -> None:
    assert set(weir.__all__) <= set(dir(weir))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'weir' has no attribute 'conect'"):
        weir.conect  # noqa: B018
