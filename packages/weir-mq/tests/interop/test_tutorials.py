"""Tutorials of fleets, quotas and the audit: commands are typed into a shell, and print what the
page shows.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from rigs.pages import environment, free_port, serving, shown, typed
from weir.client.sync.client import connect
from weir.errors import NotAuthenticated

ROOT = Path(__file__).parents[4]


@pytest.mark.timeout(600)  # each starts thirty processes
@pytest.mark.parametrize(
    ("page", "example", "is_closed"),
    [("fleets", "fleet", False), ("tenants", "tenants", False), ("audit", "audit", True)],
)
def test_the_page_leads_to_what_it_says(
    page: str, example: str, is_closed: bool, tmp_path: Path
) -> None:
    port = str(free_port())
    for one in (ROOT / "examples" / example).iterdir():
        text = one.read_text(encoding="utf-8").replace("6800", port)
        (tmp_path / one.name).write_text(text.replace("[node]\n", f"[node]\nport = {port}\n"))
    env = environment(tmp_path)
    url = f"weir://localhost:{port}"
    if not is_closed:  # there the page says where the node is, by a context
        env["WEIR_URL"] = url
    told = (ROOT / f"docs/{page}.md").read_text(encoding="utf-8")
    lines = [(line.replace("6800", port), printed) for line, printed in shown(told)]
    serve = next(at for at, (line, _) in enumerate(lines) if line.startswith("weir serve"))
    assert len(lines) - serve > 10, "commands of the page are not found"
    typed(lines[:serve], tmp_path, env)
    with serving(lines[serve][0], tmp_path, env):
        connect(url, request_timeout=60.0).close()  # it is up
        first = lines[serve + 1 :]
        if is_closed:
            at = 1 + next(n for n, (line, _) in enumerate(first) if "context add" in line)
            typed(first[:at], tmp_path, env | {"WEIR_URL": url})
            first = first[at:]
        typed(first, tmp_path, env)
        if is_closed:
            with pytest.raises(NotAuthenticated):
                connect(url).close()
