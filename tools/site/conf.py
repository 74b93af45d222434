"""Settings of Sphinx for the site. `make site` builds it from the repository's root."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(Path(__file__).parent))

import weir  # noqa: E402 - the release is read from the code

project = "weir"
author = "the weir authors"
version = release = weir.__version__
copyright = author

extensions = ["myst_parser", "directives"]
source_suffix = {".md": "markdown"}
# Pages keep their places in the repository, so that one relative link is right here and there.
root_doc = "docs/index"
include_patterns = [
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "docs/**",
    "examples/**.md",
    "packages/*/README.md",
    "packages/weir-raft/examples/**",
]
exclude_patterns = ["docs/adr/0000-template.md", "**/__pycache__"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
# A title is the first heading, whatever the levels of the others.
suppress_warnings = ["myst.header"]
highlight_language = "text"
nitpicky = True

html_theme = "furo"
html_title = f"weir {release}"
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {"navigation_with_keys": True}
# Nothing is fetched from other hosts: fonts are those of the reader's system.
html_permalinks_icon = "#"
