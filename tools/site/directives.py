"""What Sphinx needs beside its own: pages that are generated, and a first page of the site."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import reference
from docutils.nodes import Node
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

_FIRST_PAGE = """\
<!doctype html>
<meta charset="utf-8">
<title>weir</title>
<meta http-equiv="refresh" content="0; url=docs/index.html">
<a href="docs/index.html">weir</a>
"""


class Reference(SphinxDirective):
    """Put the page of `weir_reference` that is named where the directive stands."""

    required_arguments = 1

    def run(self) -> list[Node]:
        """Generate the page, and parse it as if it stood here."""
        text = reference.PAGES[self.arguments[0]]()
        return self.parse_text_to_nodes(text, allow_section_headings=True)


def write_first_page(app: Sphinx, error: Exception | None) -> None:
    """Let the site's root lead to its contents."""
    if error is None and app.builder.name == "html":
        (Path(app.outdir) / "index.html").write_text(_FIRST_PAGE, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, Any]:
    """Tell Sphinx of it."""
    app.add_directive("weir-reference", Reference)
    app.connect("build-finished", write_first_page)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
