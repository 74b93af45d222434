"""Every citation in code and docs names something that is there.

What is cited are sections of docs/DESIGN.md (`DESIGN §5 Consume`), works of docs/BIBLIOGRAPHY.md
(`SmartDep §2.1.3`; a bare `(§3.4)` is Ongaro's), decisions (`ADR 0009 §5`) and counterexamples.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
#: Where a section without a name is one of Ongaro's dissertation.
ONGARO = (
    "packages/weir-raft/",
    "docs/RAFT.md",
    "packages/weir-lab/src/weir_lab/sim/mutants/replication.py",
)
SUFFIXES = {".py", ".md"}

HEADING = re.compile(r"^(#{2,4}) (.+)$", re.MULTILINE)
#: A line of a table, whose first cell may name what is cited.
ROW = re.compile(r"^\| (\S+) \|", re.MULTILINE)
SECTION = r"§(\d+(?:\.\d+)*)"
NAMED = re.compile(rf"([Dd]esign|DESIGN|ADR \d{{4}}|[A-Z]\w+|[Dd]issertation)(?:'s)?,? ?{SECTION}")
WORKS = {"design": "DESIGN", "Design": "DESIGN", "dissertation": "Ongaro"}
ANY = re.compile(SECTION)
#: Where a list of sections goes on: `DESIGN §1 and §4`.
NEXT = re.compile(rf"(?: [*\"]?[A-Z]\w+[*\"]?(?: \w+)?)?(?:,? and |, )(?={SECTION})")
DECISION = re.compile(r"\b(?:ADR|docs/adr)[ /](\d{4})\b")
COUNTEREXAMPLE = re.compile(r"[Cc]ounterexamples? (\d+)")


class Sources(NamedTuple):
    """What may be cited: sections by work and number, with the names of what is in each."""

    sections: dict[str, dict[str, set[str]]]
    decisions: dict[str, str]
    counterexamples: set[int]


def sections_of(text: str) -> dict[str, set[str]]:
    """The numbered sections of a page; each with the names of its parts."""
    found: dict[str, set[str]] = {}
    number = ""
    for line in text.splitlines():
        if heading := HEADING.match(line):
            title = heading[2]
            if numbered := re.match(r"(\d+(?:\.\d+)*)\.? ", title):
                number = numbered[1]
                found[number] = {title[numbered.end() :]}
            elif number:
                found[number].add(title)
        elif number and (row := ROW.match(line)):
            found[number].add(row[1])
    return found


def works_of(text: str) -> dict[str, dict[str, set[str]]]:
    """The sections that the bibliography says are cited, by the heading of the work."""
    works: dict[str, dict[str, set[str]]] = {}
    for block in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        name, _, body = block.partition("\n")
        rows = re.findall(rf"^\| {SECTION} \|", body, re.MULTILINE)
        works[name] = {number: set() for number in rows}
    return works


def sources(root: Path) -> Sources:
    docs = root / "docs"
    sections = works_of((docs / "BIBLIOGRAPHY.md").read_text(encoding="utf-8"))
    sections["DESIGN"] = sections_of((docs / "DESIGN.md").read_text(encoding="utf-8"))
    decisions = {path.name[:4]: path.read_text(encoding="utf-8") for path in docs.glob("adr/*.md")}
    listed = (docs / "COUNTEREXAMPLES.md").read_text(encoding="utf-8")
    return Sources(
        sections, decisions, {int(one) for one in re.findall(r"^(\d+)\. ", listed, re.MULTILINE)}
    )


def texts(root: Path) -> Iterator[tuple[str, str]]:
    """Every file that may cite, by its name; line breaks and comment signs are gone."""
    for folder in ("docs", "packages", "tests", "scripts", "examples", "conftest.py", "README.md"):
        place = root / folder
        for path in sorted(place.rglob("*")) if place.is_dir() else [place]:
            if path.suffix in SUFFIXES and path.is_file() and path != Path(__file__):
                text = path.read_text(encoding="utf-8")
                yield path.relative_to(root).as_posix(), re.sub(r"\s*\n\s*(#:? )?", " ", text)


def unresolved(root: Path) -> Iterator[str]:
    """Citations that lead nowhere, a line each."""
    known = sources(root)
    for name, text in texts(root):
        for number in DECISION.findall(text):
            if number not in known.decisions:
                yield f"{name}: no decision {number}"
        for number in COUNTEREXAMPLE.findall(text):
            if int(number) not in known.counterexamples:
                yield f"{name}: no counterexample {number}"
        if "§" in text and name not in {"docs/DESIGN.md", "docs/BIBLIOGRAPHY.md"}:
            for fault in wrong_sections(name, text, known):
                yield f"{name}: {fault}"


def wrong_sections(name: str, text: str, known: Sources) -> Iterator[str]:
    named = {match.start(2): WORKS.get(match[1], match[1]) for match in NAMED.finditer(text)}
    work = ""
    goes_on_at = -1
    for match in ANY.finditer(text):
        if match.start() != goes_on_at:
            work = named.get(match.start(1), "")
            if name.startswith(ONGARO) and not (work.startswith("ADR") or work in known.sections):
                work = "Ongaro"
        if following := NEXT.match(text, match.end()):
            goes_on_at = following.end()
        if work or not name.startswith("docs/adr/"):  # where those without a name are its own
            yield from wrong_section(work, match[1], text[match.end() :], known)


def wrong_section(work: str, number: str, rest: str, known: Sources) -> Iterator[str]:
    """Check one citation; `rest` is the text behind its number, which may name a part."""
    if work.startswith("ADR "):
        decision = known.decisions.get(work[4:], "")
        if not re.search(rf"^(?:#+ )?{re.escape(number)}\. ", decision, re.MULTILINE):
            yield f"{work} has no point {number}"
        return
    sections = known.sections.get(work)
    if sections is None:
        yield f"§{number} is of no work that the bibliography has" + (f": {work}" if work else "")
    elif number not in sections:
        yield f"{work} has no §{number}"
    elif work == "DESIGN" and (part := re.match(r" [*\"]?([A-Z][\w-]+)", rest)):
        parts = sections[number] | {
            one for other, names in sections.items() if other.startswith(f"{number}.")
            for one in names
        }  # fmt: skip
        if not any(one.split()[0] == part[1] for one in parts):
            yield f"DESIGN §{number} has no part {part[1]!r}"


def test_every_citation_resolves() -> None:
    assert "\n".join(unresolved(ROOT)) == ""


@pytest.mark.parametrize(
    ("cites", "fault"),
    [
        ("of DESIGN §9", "DESIGN has no §9"),
        ("(DESIGN §1 and §9)", "DESIGN has no §9"),
        ("(DESIGN §1 Batch)", "DESIGN §1 has no part 'Batch'"),
        ("(DESIGN §1\n# Batch)", "DESIGN §1 has no part 'Batch'"),
        ("(Paper §4)", "Paper has no §4"),
        ("(Novel §4)", "§4 is of no work that the bibliography has: Novel"),
        ("(§3.4)", "§3.4 is of no work that the bibliography has"),
        ("(ADR 0001 §3)", "ADR 0001 has no point 3"),
        ("docs/adr/0002", "no decision 0002"),
        ("counterexample 3", "no counterexample 3"),
    ],
)
def test_a_citation_of_nothing_is_caught(tmp_path: Path, cites: str, fault: str) -> None:
    docs = tmp_path / "docs"
    (docs / "adr").mkdir(parents=True)
    (docs / "DESIGN.md").write_text("# Design\n\n## 1. Words\n\n### Log\n\n| Durable | x |\n")
    (docs / "BIBLIOGRAPHY.md").write_text("# B\n\n## Paper\n\n| §3 | x |\n")
    (docs / "COUNTEREXAMPLES.md").write_text("1. *One.*\n2. *Two.*\n")
    (docs / "adr/0001-one.md").write_text("# 0001 One\n\n1. A\n2. B\n")
    page = docs / "page.md"
    page.write_text(
        "DESIGN §1, DESIGN §1 Log, §1 Durable and Paper §3; ADR 0001 §2, counterexample 2"
    )
    assert list(unresolved(tmp_path)) == []
    page.write_text(cites)
    assert list(unresolved(tmp_path)) == [f"docs/page.md: {fault}"]
