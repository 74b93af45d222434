"""The pages of the documentation: links, what they include, and what is generated for them."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs/**/*.md", "examples/**/*.md",
         "packages/*/README.md")  # fmt: skip

#: Diagrams included.
ARCHITECTURE_WORDS_MAX = 1_500

FENCE = re.compile(r"^(`{3,}|:{3,}).*?^\1\s*$", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"`[^`\n]+`")
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
INCLUDE = re.compile(r"^```\{literalinclude\} (\S+)", re.MULTILINE)
TOCTREE = re.compile(r"^```\{toctree\}\n(.*?)^```", re.DOTALL | re.MULTILINE)


def pages(root: Path) -> Iterator[Path]:
    for pattern in PAGES:
        yield from sorted(root.glob(pattern))


@cache
def anchors(page: Path) -> frozenset[str]:
    """What links to the headings of a page may name."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    found: set[str] = set()
    for heading in re.findall(r"^#{1,4} (.+)$", text, re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        found.add(re.sub(r"[^\w\- ]", "", plain).replace(" ", "-"))
    return frozenset(found)


def broken_links(root: Path) -> Iterator[str]:
    for page in pages(root):
        name = page.relative_to(root).as_posix()
        text = page.read_text(encoding="utf-8")
        for target in INCLUDE.findall(text):
            if not (page.parent / target).is_file():
                yield f"{name}: includes {target}, which is not there"
        for target in LINK.findall(CODE.sub("", FENCE.sub("", text))):
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            place = (page.parent / path).resolve() if path else page
            if not place.is_file():
                yield f"{name}: {target} is no file"
            elif anchor and place.suffix == ".md" and anchor not in anchors(place):
                yield f"{name}: {target} has no such heading"


def pages_in_no_contents(root: Path) -> Iterator[str]:
    """Pages of docs/ that no toctree names."""
    named: set[Path] = set()
    for page in (root / "docs").rglob("*.md"):
        for block in TOCTREE.findall(page.read_text(encoding="utf-8")):
            for line in block.splitlines():
                entry = re.sub(r".*<(.*)>", r"\1", line).strip()
                if entry and not entry.startswith(":"):
                    named |= (
                        {one.resolve() for one in page.parent.glob(f"{entry}.md")}
                        if (not entry.startswith(".."))
                        else {(page.parent / f"{entry}.md").resolve()}
                    )
    for page in sorted((root / "docs").rglob("*.md")):
        if page.resolve() not in named and page.name != "index.md":
            yield f"{page.relative_to(root).as_posix()}: in no contents"
    for page in sorted(named):
        if not page.is_file():
            yield f"the contents name {page.name}, which is not there"


def test_links_and_includes_resolve() -> None:
    assert "\n".join(broken_links(ROOT)) == ""


def test_every_page_is_in_the_contents() -> None:
    assert "\n".join(pages_in_no_contents(ROOT)) == ""


def test_every_program_of_the_examples_is_shown() -> None:
    shown: set[Path] = set()
    for page in pages(ROOT):
        for target in INCLUDE.findall(page.read_text(encoding="utf-8")):
            shown.add((page.parent / target).resolve())
    for folder in ("guide", "tutorial", "handlers", "worlds"):
        for program in (ROOT / "examples" / folder).glob("*.py"):
            assert program in shown, f"no page shows {program.relative_to(ROOT)}"


def test_the_architecture_is_short() -> None:
    text = (ROOT / "docs/ARCHITECTURE.md").read_text(encoding="utf-8")
    assert len(text.split()) <= ARCHITECTURE_WORDS_MAX


def test_what_is_broken_is_caught(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "index.md").write_text("# I\n\n```{toctree}\none\nTwo <two>\n```\n")
    (docs / "one.md").write_text("# One thing: it\n\n[two](two.md), [it](#one-thing-it)\n")
    (docs / "two.md").write_text("# Two\n\n`[code](none.md)` [out](https://a.b) [1](one.md)\n")
    assert [*broken_links(tmp_path), *pages_in_no_contents(tmp_path)] == []
    (docs / "three.md").write_text(
        "[a](none.md) [b](two.md#three) [c](../docs)\n\n```{literalinclude} x.py\n```\n"
    )
    assert list(broken_links(tmp_path)) == [
        "docs/three.md: includes x.py, which is not there",
        "docs/three.md: none.md is no file",
        "docs/three.md: two.md#three has no such heading",
        "docs/three.md: ../docs is no file",
    ]
    assert list(pages_in_no_contents(tmp_path)) == ["docs/three.md: in no contents"]


@pytest.fixture(scope="module")
def reference() -> Iterator[ModuleType]:
    """What generates the pages of the reference; it needs no Sphinx."""
    folder = str(ROOT / "tools/site")
    sys.path.insert(0, folder)
    try:
        import reference

        yield reference
    finally:
        sys.path.remove(folder)
        sys.modules.pop("reference", None)


def test_pages_are_generated_for_each_directive(reference: ModuleType) -> None:
    asked = [
        name for page in sorted((ROOT / "docs").rglob("*.md"))
        for name in re.findall(r"\{weir-reference\} (\w+)", page.read_text(encoding="utf-8"))
    ]  # fmt: skip
    assert sorted(asked) == sorted(reference.PAGES)


def test_the_reference_names_all_there_is(reference: ModuleType) -> None:
    import weir
    from weir import errors
    from weir.server.config import settings
    from weir.spark.options import NAMES
    from weir.spark.sink.options import NAMES as SINK_NAMES

    api = reference.PAGES["api"]()
    for name in weir.__all__:
        if name not in {"__version__", "errors"}:
            assert f"weir.{name}\n" in api
    assert "publish(" in api
    assert '```python\napp = weir.App("weir://localhost")\n\n@app.subscribe(' in api
    commands = reference.PAGES["commands"]()
    for verb in ("weir serve", "weir topic create", "weir work", "weir sim run"):
        assert f"# {verb}\n" in commands
    configuration = reference.PAGES["configuration"]()
    assert all(f"`{one.key}`" in configuration for one in settings())
    listed = reference.PAGES["errors"]()
    kinds = [one for one in vars(errors).values() if isinstance(one, type)]
    assert all(f"`{one.__name__}`" in listed for one in kinds if issubclass(one, errors.WeirError))
    assert "| `BATCH_BYTES_MAX` | 8 MiB |" in reference.PAGES["limits"]()
    spark = reference.PAGES["spark"]()
    to_read, to_write = spark.split("## To write")
    assert all(f"| `{name}` |" in to_read for name in NAMES if name not in {"host", "port"})
    assert all(f"| `{name}` |" in to_write for name in SINK_NAMES if name not in {"host", "port"})
