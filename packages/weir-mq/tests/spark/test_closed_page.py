"""The tutorial of a closed set: its commands are typed into a shell, and print what it shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from rigs.pages import environment, free_port, serving, shown, typed
from weir.client.sync.client import connect
from weir.errors import NotAuthenticated

ROOT = Path(__file__).parents[4]
PAGE = ROOT / "docs/closed.md"
EXAMPLES = ROOT / "examples/closed"


@pytest.mark.timeout(600)  # it starts thirty processes, and Spark
def test_the_page_leads_to_what_it_says(tmp_path: Path) -> None:
    port = str(free_port())
    for one in EXAMPLES.iterdir():
        (tmp_path / one.name).write_text(one.read_text().replace("6800", port))
    with (tmp_path / "weir.toml").open("r+") as file:
        text = file.read().replace("[node]\n", f"[node]\nport = {port}\n")
        file.seek(0)
        file.write(text)
    env = environment(tmp_path)
    page = [(line.replace("6800", port), told) for line, told in shown(PAGE.read_text())]
    serve = next(number for number, (line, _) in enumerate(page) if line.startswith("weir serve"))
    typed(page[:serve], tmp_path, env)
    with serving(page[serve][0], tmp_path, env):
        url = f"weirs://localhost:{port}?ca={tmp_path}/weir-ca/ca.pem"
        connect(url, request_timeout=60.0).close()  # it is up
        typed(page[serve + 1 :], tmp_path, env)
        # It is closed, and to ann as well.
        for user, password in (("ann", tmp_path / "ann.password"), ("", None)):
            address = url.replace("//", f"//{user}@") if user else url
            try:
                connect(address, password=password).close()
            except NotAuthenticated:
                continue
            raise AssertionError(f"{user or 'nobody'} was let in")
    # Passwords are in their files, and nowhere else.
    for secret in tmp_path.glob("*.password"):
        words = secret.read_text().strip()
        assert secret.stat().st_mode & 0o077 == 0
        found = [
            path for path in tmp_path.rglob("*")
            if path.is_file() and path != secret and words.encode() in path.read_bytes()
        ]  # fmt: skip
        assert found == [], words
