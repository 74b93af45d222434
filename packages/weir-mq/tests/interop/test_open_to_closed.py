"""A node in a network is closed as the how-to says: it starts so, and no stranger comes in."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from weir import sync
from weir.cli import output
from weir.cli.main import main
from weir.errors import NotAuthenticated, Unauthorized
from weir.server.disk.node_folder import NodeFolder
from weir.server.interpreter import environment, python
from weir.testing.nodes import HOST, Node, running_node

PATIENCE = 60
EVERYWHERE = "0.0.0.0"


def weir_says(*words: str, url: str) -> Any:
    with contextlib.redirect_stdout(io.StringIO()) as said:
        assert main([*words, "--json", "--url", url]) == 0
    return json.loads(said.getvalue())


def refused(folder: Path) -> str:
    """Start a node on every address as if that were safe; return what it says."""
    done = subprocess.run(
        python("weir.cli", "serve", "--data", str(folder), "--host", EVERYWHERE, "--port", "0"),
        capture_output=True, text=True, env=environment(), timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done
    return done.stderr


def doctor(folder: Path, **variables: str) -> dict[str, Any]:
    """What the doctor finds of access."""
    with contextlib.redirect_stdout(io.StringIO()) as said, pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        main(["doctor", "--data", str(folder), "--only", "access", "--json"])
    (found,) = json.loads(said.getvalue())["findings"]
    assert isinstance(found, dict)
    return found


def insecure(figures: str) -> str:
    with urllib.request.urlopen(f"{figures}/metrics", timeout=PATIENCE) as page:
        lines = page.read().decode().splitlines()
    return next(line for line in lines if line.startswith("weir_insecure "))


def strangers(url: str) -> None:
    with sync.connect(url) as client:
        client.publish("orders", b"from anyone")


def figures_of(node: Node) -> str:
    said = next(line for line in node.said().splitlines() if "metrics at " in line)
    return said.partition("metrics at ")[2].split("/metrics")[0].strip()


def test_from_open_to_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "data"
    assert "--insecure" in refused(folder)
    assert not folder.exists(), "a start that is refused founds no node"
    everywhere = {"WEIR__NODE__HOST": EVERYWHERE}
    assert doctor(folder, **everywhere)["state"] == "fail"
    assert doctor(folder, WEIR__ACCESS__INSECURE="true", **everywhere)["state"] == "warn"
    monkeypatch.setenv("WEIR_NEW_PASSWORD", "of the first administrator")

    with running_node(folder, host=EVERYWHERE, insecure=True, listen=f"{HOST}:0") as node:
        url = f"weir://{HOST}:{node.port}"
        assert "anyone who reaches 0.0.0.0 may do everything" in node.said()
        assert insecure(figures_of(node)) == "weir_insecure 1"
        assert main(["topic", "create", "orders", "--url", url]) == 0
        weir_says("access", "init", "--user", "root", url=url)
        weir_says("user", "create", "ann", url=url)
        weir_says("access", "mode", "watch", url=url)
        monkeypatch.setenv("WEIR_PASSWORD", "of the first administrator")
        with sync.connect(f"weir://ann@{HOST}:{node.port}") as ann:
            ann.publish("orders", b"before there is a rule")
            root = f"weir://root@{HOST}:{node.port}"
            missing = weir_says("acl", "suggest", url=root)["missing"]
            rules = {one["rule"] for one in missing if "ann" in one["principal"]}
            wanted = next(one for one in rules if one.startswith("publish topic default/"))
            weir_says("acl", "allow", "shop", *wanted.split(), url=root)
            weir_says("acl", "allow", "shop", "read", "topic", "orders", url=root)
            weir_says("user", "grant", "ann", "shop", url=root)
            weir_says("access", "mode", "closed", url=root)
            ann.publish("orders", b"after the set is closed, on the same connection")
        with pytest.raises(NotAuthenticated):
            strangers(url)
        with pytest.raises(urllib.error.HTTPError, match="401"):
            insecure(figures_of(node))
    assert NodeFolder(folder).access_mode() == "closed"
    found = doctor(folder, **everywhere)
    assert (found["state"], "without TLS" in found["found"]) == ("warn", True)
    tls = {"WEIR__TLS__CERTIFICATE": "a", "WEIR__TLS__KEY": "b", "WEIR__TLS__TRUST": "c"}
    assert doctor(folder, WEIR__TLS__PLAINTEXT="loopback", **tls, **everywhere)["state"] == "ok"

    with running_node(folder, host=EVERYWHERE) as node:
        with pytest.raises(NotAuthenticated):
            strangers(f"weir://{HOST}:{node.port}")
        with sync.connect(f"weir://ann@{HOST}:{node.port}") as ann:
            ann.publish("orders", b"after the restart")
            with pytest.raises(Unauthorized):
                ann.delete_topic("orders")
            values = [one.value for one in ann.reader("orders", start="earliest", follow=False)]
        assert values[-1] == b"after the restart"
        assert "may do everything" not in node.said()
        weir_says("access", "mode", "open", url=f"weir://root@{HOST}:{node.port}")
    assert "mode open" in refused(folder), "it was closed once, and is open now"


def test_an_administrator_is_rescued_on_the_machine_of_a_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "data"
    monkeypatch.setattr(output, "LINE_SECONDS", 0.2)
    with running_node(folder, host=EVERYWHERE, insecure=True, shards=2, logs=2) as node:
        url = f"weir://{HOST}:{node.port}"
        monkeypatch.setenv("WEIR_NEW_PASSWORD", "that everybody forgot")
        weir_says("access", "init", "--user", "root", url=url)
        monkeypatch.setenv("WEIR_PASSWORD", "that everybody forgot")
        weir_says("access", "mode", "closed", url=f"weir://root@{HOST}:{node.port}")
        monkeypatch.setenv("WEIR_NEW_PASSWORD", "the new one")
        monkeypatch.delenv("WEIR_PASSWORD")
        for user in ("root", "other"):
            assert main(["access", "rescue", "--data", str(folder), "--user", user]) == 0
            assert "waiting for the node: 0 s so far" in capsys.readouterr().err
            with sync.connect(
                f"weir://{user}@{HOST}:{node.port}", password="the new one"
            ) as client:
                names = {one.name for one in client.access.describe().users if "admin" in one.roles}
                assert f"default/{user}" in names
        assert not (folder / "rescue.json").exists()
        with pytest.raises(NotAuthenticated):
            sync.connect(f"weir://%3Arescue@{HOST}:{node.port}", password="the new one").close()
        assert "rescue.json of the data folder lets an administrator in" in node.said()
    assert main(["access", "rescue", "--data", str(folder)]) == 1
