"""The house rules that no other tool checks, each a test of its own.

A check takes a root folder and returns what is wrong under it, a line each, so that the last test
can show every check a small tree with one planted violation.
"""

from __future__ import annotations

import ast
import fnmatch
import re
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
#: Where the code of the distributions lies, the rooms of weir-mq, and the tests.
SOURCES = "packages/*/src"
WEIR = "packages/weir-mq/src/weir/"
RAFT = "packages/weir-raft/src/weir_raft/"
TOC = "packages/weir-toc/src/weir_toc/"
LAB = "packages/weir-lab/src/weir_lab/"
TESTS = ("packages/*/tests", "tests")

FILE_LINES_MAX = 700
FUNCTION_LINES_MAX = 70
CLASS_LINES_MAX = 500

BANNED_NAMES = {"utils", "common", "helpers", "manager", "base"}
PURE = ("codec", "model", "storage", "order", "place", "protocol", "relay", "broker",
        "host")  # fmt: skip
#: Who carries out what the pure floors decide.
HOSTS = ("server", "testing")
DECIDED = {
    "ef.Send", "ef.Answers", "ef.Hangup",
    "ev.Opened", "ev.Closed", "ev.LetGo", "ev.Received", "ev.Arrived", "ev.Flushed",
    "ev.LinkOpened", "ev.LinkClosed", "ev.PeerSent", "ev.TrunkOpened", "ev.TrunkClosed",
    "ev.PassedBack",
}  # fmt: skip
PURE_ROOMS = ("client/core/", "app/core/")
FACADE = {
    "App", "Backoff", "Batch", "Inbox", "Message", "Reject", "__version__", "at", "connect", "last",
    "sync", "testing",
}  # fmt: skip
#: Where the client meets the machine: its clocks and dice, and what has threads of its own.
OF_THE_MACHINE = ("system",)
MACHINE = {"time", "secrets", "uuid", "threading", "concurrent", "subprocess", "signal"}
#: What a set of them is iterated by is their hashes: of numbers, themselves.
NUMBERS = {"int", "str", "bytes"}
#: What no world runs, and why: there the order of sets changes no run of a seed.
OUTSIDE_WORLDS = {
    f"{LAB}{room}/": "it drives real processes"
    for room in (
        "attack", "bench", "cli", "company", "demo", "network", "proofs", "spark_cluster"
    )
} | {
    f"{WEIR}server/": "it has threads and sockets; worlds run `weir.host`, which decides",
    f"{WEIR}cli/": "a process of its own",
    f"{WEIR}client/connection/system.py": "a simulated client is given another one",
    f"{TOC}hosts/": "it has sockets; worlds run what decides",
    f"{TOC}xdp/": "it runs in a kernel",
    f"{TOC}cli.py": "a process of its own",
}  # fmt: skip
_TESTED = "it is only asked what is in it"
_OF_NUMBERS = "what is in it is made of numbers, and hashed by them"
#: Sets in what worlds run that may stay, by file, with the reason of each.
ORDERLESS = {
    (f"{LAB}sim/checkers/exercised.py", "set[object]"): "it is only counted",
    (f"{LAB}sim/observations.py", "set[Place]"): _OF_NUMBERS,
    (f"{WEIR}app/dispatcher.py", "set[Worker]"): _TESTED,
    (f"{WEIR}app/supervisor.py", "set[asyncio.Task[None]]"): "it is only waited for",
    (f"{WEIR}broker/access/session_ends.py", "set(self._queue)"): _OF_NUMBERS,
    (f"{WEIR}broker/barriers/topic_order.py", "set[Request]"): _TESTED,
    (f"{WEIR}broker/consumers/acks.py", "set[Caller]"): _TESTED,
    (f"{WEIR}broker/replica/node_state.py", "{node, *among}"): "it is sorted",
    (f"{WEIR}broker/scattering/coordinator.py", "set[Attempt]"): _OF_NUMBERS,
    (f"{WEIR}broker/scattering/coordinator.py", "set[Standing]"): _TESTED,
    (f"{WEIR}broker/scattering/rounds.py", "set[Standing]"): "any of it counts",
    (f"{WEIR}broker/state/scatterings.py", "set[Attempt]"): "it is sorted where it is written",
    (f"{WEIR}broker/state/state.py", "set(zip(origins.hubs, origins.generations, strict=True))"):
        _OF_NUMBERS,
    (f"{WEIR}client/consumer/delivery.py", "{holding.partition for holding in holdings}"):
        _OF_NUMBERS,
    (f"{WEIR}host/shard_loop.py", "set[type]"): _TESTED,
    (f"{WEIR}host/strangers.py", "set[C]"): _TESTED,
    (f"{WEIR}host/trunks.py", "set[Kind]"): _TESTED,
    (f"{WEIR}protocol/client/declaration.py", "set[Verb]"): "it is sorted",
    (f"{WEIR}protocol/client/messages.py", "set[type[Any]]"): _TESTED,
    (f"{WEIR}relay/holds.py", "set[Child]"): "what is told of it is sorted",
    (f"{WEIR}relay/ports.py", "set[Child]"): _TESTED,
    (f"{WEIR}relay_node/tiers.py", "set[Child]"): _OF_NUMBERS,
    (f"{WEIR}spark/blocking_client.py", "set[Hosts]"): _TESTED,
    (f"{WEIR}spark/selection.py", "set[V]"): "rows are looked up in it",
    (f"{WEIR}spark/selection.py", "set[bytes | None]"): "rows are looked up in it",
    (f"{TOC}controller/failures.py", "set[Link]"): _OF_NUMBERS,
    (f"{TOC}controller/failures.py", "set[Port]"): _OF_NUMBERS,
    (f"{TOC}topology.py", "set[Link]"): _TESTED,
}  # fmt: skip
PRINTING = (f"{TOC}cli.py", "cli/", "spark/jobs")

# Each pattern is spelt so that it does not match itself.
MARKER = re.compile(r"\b(T[O]DO|FI[X]ME|X[X]X|HA[C]K|NotImplemented[E]rror)\b|pragma: no[ ]cover")
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:work|root)/")
#: A kernel's version with a suffix of who built it, where only the processor may follow.
LOCAL_KERNEL = re.compile(
    r"\bLinux[- ]\d[\d.]*-(?!(?:x86_64|aarch64|arm64|armv\w+|ppc64le|riscv64|s390x)\b)[\w.-]+"
)
PACKAGE_INDEX = re.compile(
    r"pypi\.org|pythonhosted\.org|--(?:extra-)?index-url|\bindex-url\s*=|https?://\S*/simple\b"
)

Function = ast.FunctionDef | ast.AsyncFunctionDef
#: Whether a file of some name is looked at.
Where = Callable[[str], bool]


def anywhere(name: str) -> bool:
    return True


def python_files(root: Path, *folders: str) -> Iterator[tuple[Path, str]]:
    """Every Python file below `folders` (globs), with its name relative to `root`."""
    for pattern in folders:
        for folder in sorted(root.glob(pattern)):
            for path in sorted(folder.rglob("*.py")):
                yield path, path.relative_to(root).as_posix()


def source_nodes(root: Path, where: Where = anywhere) -> Iterator[tuple[str, ast.AST]]:
    """Every syntax node of the distributions, with the name of its file, of which `where` is true.

    It is asked once for each file: there are a thousand times as many nodes.
    """
    for path, name in python_files(root, SOURCES):
        if where(name):
            for node in nodes_of(path.read_text(encoding="utf-8")):
                yield name, node


@cache
def nodes_of(text: str) -> list[ast.AST]:
    """The syntax nodes of a file, the module first: several checks ask for those of each file."""
    return list(ast.walk(ast.parse(text)))


def kept_texts(root: Path) -> Iterator[tuple[str, str]]:
    """Name and text of every file that .gitignore does not exclude, so of new files too."""
    lines = (root / ".gitignore").read_text(encoding="utf-8").splitlines()
    patterns = [line.rstrip("/") for line in lines if line and not line.startswith("#")]
    patterns.append(".git")
    folders = [root]
    while folders:
        for path in sorted(folders.pop().iterdir()):
            if any(fnmatch.fnmatch(path.name, pattern) for pattern in patterns):
                continue
            if path.is_dir():
                folders.append(path)
                continue
            data = path.read_bytes()
            if b"\0" not in data:
                yield path.relative_to(root).as_posix(), data.decode("utf-8", "replace")


def lines_of(node: Function | ast.ClassDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def matches(name: str, text: str, pattern: re.Pattern[str], what: str) -> Iterator[str]:
    for number, line in enumerate(text.splitlines(), 1):
        if found := pattern.search(line):
            yield f"{name}:{number}: {what} {found.group()!r}"


def long_files(root: Path) -> Iterator[str]:
    for path, name in python_files(root, SOURCES, *TESTS):
        count = len(path.read_text(encoding="utf-8").splitlines())
        if count > FILE_LINES_MAX:
            yield f"{name}: {count} lines, at most {FILE_LINES_MAX}: split it by duty"


def long_functions(root: Path) -> Iterator[str]:
    for name, node in source_nodes(root):
        if isinstance(node, Function) and lines_of(node) > FUNCTION_LINES_MAX:
            yield (
                f"{name}:{node.lineno}: function {node.name} has {lines_of(node)} lines, "
                f"at most {FUNCTION_LINES_MAX}"
            )


def long_classes(root: Path) -> Iterator[str]:
    for name, node in source_nodes(root):
        if isinstance(node, ast.ClassDef) and lines_of(node) > CLASS_LINES_MAX:
            yield (
                f"{name}:{node.lineno}: class {node.name} has {lines_of(node)} lines, "
                f"at most {CLASS_LINES_MAX}: split it by duty"
            )


def banned_names(root: Path) -> Iterator[str]:
    for path, name in python_files(root, SOURCES, *TESTS):
        words = {part.strip("_") for part in (*path.relative_to(root).parts[:-1], path.stem)}
        for word in sorted(words & BANNED_NAMES):
            yield f"{name}: a module called {word!r} says nothing: name its duty"


def markers(root: Path) -> Iterator[str]:
    for path, name in python_files(root, SOURCES, *TESTS, "scripts"):
        yield from matches(name, path.read_text(encoding="utf-8"), MARKER, "unfinished work:")


def is_pure(name: str) -> bool:
    """Whether a file is one of the pure floors."""
    inside = name.removeprefix("packages/weir-mq/src/weir/")
    return inside.split("/")[0] in PURE or inside.startswith(PURE_ROOMS)


#: What lets a shard take events, or do what is deferred.
TURNS = {"handle", "step", "take", "follow", "run_deferred"}


def shards_fed_by_hand(root: Path) -> Iterator[str]:
    hosts = (LAB, *(f"{WEIR}{host}/" for host in HOSTS))
    for name, node in source_nodes(root, lambda name: name.startswith(hosts)):
        if isinstance(node, ast.Attribute) and node.attr in TURNS:
            owner = node.value
            of = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
            if (of := of.strip("_")) in {"shard", "feed"}:
                yield f"{name}:{node.lineno}: {of}.{node.attr}: weir.host decides when"


def decisions_in_hosts(root: Path) -> Iterator[str]:
    """What names an effect or event of which `weir.host` decides, where I/O alone belongs."""
    hosts = (LAB, f"{WEIR}testing/")
    for name, node in source_nodes(root, lambda name: name.startswith(hosts)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            named = f"{node.value.id}.{node.attr}"
            if named in DECIDED:
                yield f"{name}:{node.lineno}: {named} is for weir.host to tell apart"


def opens_in_pure_floors(root: Path) -> Iterator[str]:
    for name, node in source_nodes(root, is_pure):
        # The bare name, not only the call, so that it cannot be handed on.
        named = isinstance(node, ast.Name) and node.id == "open"
        borrowed = (
            isinstance(node, ast.Attribute)
            and node.attr == "open"
            and isinstance(node.value, ast.Name)
            and node.value.id in {"io", "builtins"}
        )
        if named or borrowed:
            line = node.lineno if isinstance(node, ast.expr) else 0
            yield f"{name}:{line}: open() in a pure floor: take a disk port instead"


def facade_in_pure_floors(root: Path) -> Iterator[str]:
    # import-linter sees no floor in `weir` itself, so the façade would be a stairway up.
    for name, node in source_nodes(root, is_pure):
        if isinstance(node, ast.Import):
            doors = {"weir"}
        elif isinstance(node, ast.ImportFrom) and node.module == "weir":
            doors = FACADE
        else:
            continue
        for what in sorted(doors & {alias.name for alias in node.names}):
            yield f"{name}:{node.lineno}: imports {what} from the façade: name its own module"


def is_silent(name: str) -> bool:
    """Whether a file prints nothing."""
    return not name.removeprefix(WEIR).startswith(PRINTING) and not name.startswith(LAB)


def prints(root: Path) -> Iterator[str]:
    for name, node in source_nodes(root, is_silent):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "print"
        ):
            yield f"{name}:{node.lineno}: print() outside the verbs, the lab and the Spark jobs"


def is_clockless(name: str) -> bool:
    """Whether a file is of the client, and not what meets the machine."""
    return name.startswith(f"{WEIR}client/") and Path(name).stem not in OF_THE_MACHINE


def is_number(annotation: ast.AST) -> bool:
    """Whether values of a type are hashed by their numbers, and not by where they lie."""
    if isinstance(annotation, ast.Name):
        return annotation.id in NUMBERS
    if isinstance(annotation, ast.BinOp):
        return is_number(annotation.left) and is_number(annotation.right)
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "tuple":
        parts = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else ()
        return bool(parts) and all(map(is_number, parts))
    return isinstance(annotation, ast.Constant) and annotation.value is Ellipsis


def is_set(node: ast.AST) -> bool:
    """Whether an expression makes a set."""
    made = isinstance(node, ast.Call) and ast.unparse(node.func) in {"set", "frozenset"}
    return made or isinstance(node, ast.Set | ast.SetComp)


def sets_of_objects(node: ast.AST) -> Iterator[tuple[str, str]]:
    """What is of a set, and why it has no order that a run of the same seed has as well."""
    if isinstance(node, ast.Subscript) and ast.unparse(node.value) in {"set", "frozenset"}:
        if not is_number(node.slice):
            of = ast.unparse(node.slice)
            yield f"set[{of}]", f"a set of {of} has no order: take a dict"
    elif isinstance(node, ast.Attribute) and node.attr in {"all_tasks", "as_completed",
                                                           "TaskGroup"}:  # fmt: skip
        yield node.attr, f"{node.attr} goes through tasks in the order of a set"
    elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension) and is_set(node.iter):
        of = ast.unparse(node.iter)
        yield of, f"goes through {of}: sort it, or take a dict"
    elif isinstance(node, ast.Assign | ast.For | ast.Starred | ast.Return):
        value = node.iter if isinstance(node, ast.For) else node.value
        if value is not None and "asyncio.wait(" in ast.unparse(value):
            yield "asyncio.wait", "what asyncio.wait returns are sets: look at the tasks"


def orders_of_sets(root: Path) -> Iterator[str]:
    """Sets of tasks, and of other objects: they are iterated by where they lie in memory."""
    outside = tuple(OUTSIDE_WORLDS)
    for name, node in source_nodes(root, lambda name: not name.startswith(outside)):
        for what, why in sets_of_objects(node):
            if (name, what) not in ORDERLESS:
                line = node.iter.lineno if isinstance(node, ast.comprehension) else node.lineno
                yield f"{name}:{line}: {why}"


def clocks_of_the_machine(root: Path) -> Iterator[str]:
    """Clocks, dice and threads that a client takes by itself: a simulated one is given others."""
    for name, node in source_nodes(root, is_clockless):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module] if isinstance(node, ast.ImportFrom) else [
                alias.name for alias in node.names
            ]  # fmt: skip
            for found in sorted(MACHINE & {(one or "").split(".")[0] for one in names}):
                yield f"{name}:{node.lineno}: imports {found}: take it of connection.system"
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in {"Random", "random.Random"}:
            yield f"{name}:{node.lineno}: dice of its own: take those of connection.system"


def documented(path: Path) -> bool:
    module = nodes_of(path.read_text(encoding="utf-8"))[0]
    return isinstance(module, ast.Module) and bool(ast.get_docstring(module))


def packages_without_docstring(root: Path) -> Iterator[str]:
    folders = {path.parent for path, _ in python_files(root, f"{SOURCES}/*")}
    for folder in sorted(folders):
        start = folder / "__init__.py"
        name = start.relative_to(root).as_posix()
        if not start.exists():
            yield f"{name}: missing: every folder below src is a package"
        elif not documented(start):
            yield f"{name}: no docstring: say what the room is for"


def modules_without_docstring(root: Path) -> Iterator[str]:
    for path, name in python_files(root, SOURCES):
        if not documented(path):
            yield f"{name}: no module docstring"


def machine_paths(root: Path) -> Iterator[str]:
    for name, text in kept_texts(root):
        yield from matches(name, text, MACHINE_PATH, "a path of one machine:")


def local_kernels(root: Path) -> Iterator[str]:
    for name, text in kept_texts(root):
        yield from matches(name, text, LOCAL_KERNEL, "a kernel's local name:")


def package_indexes(root: Path) -> Iterator[str]:
    for name, text in kept_texts(root):
        yield from matches(name, text, PACKAGE_INDEX, "a package index address:")


def unknown_make_targets(root: Path) -> Iterator[str]:
    rules = (root / "Makefile").read_text(encoding="utf-8")
    known = set(re.findall(r"^([a-z][a-z-]*):", rules, re.MULTILINE))
    readme = (root / "README.md").read_text(encoding="utf-8")
    for code in re.findall(r"```.*?```|`[^`\n]+`", readme, re.DOTALL):
        for arguments in re.findall(r"^\W*make[ \t]+([^#`\n]*)", code, re.MULTILINE):
            for word in arguments.split():
                if re.fullmatch(r"[a-z][a-z-]*", word) and word not in known:
                    yield f"README.md: the Makefile has no target {word!r}"


def decisions_out_of_order(root: Path) -> Iterator[str]:
    """Decisions whose number is another's, is not the next one, or is not in their title."""
    for number, path in enumerate(sorted((root / "docs/adr").glob("*.md"))):
        title = path.read_text(encoding="utf-8").split("\n", 1)[0]
        if not path.name.startswith(f"{number:04}-"):
            yield f"{path.name}: the next number is {number:04}"
        elif number and not title.startswith(f"# {number:04}"):
            yield f"{path.name}: its title begins {title[:8]!r}"


def rooms_left_in_parentheses(root: Path) -> Iterator[str]:
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    for contract in settings["tool"]["importlinter"]["contracts"]:
        for room in re.findall(r"\((\w+)\)", " ".join(contract.get("layers", []))):
            if (root / WEIR / room / "__init__.py").exists():
                yield (
                    f"pyproject.toml: weir.{room} is built: take it out of the parentheses "
                    "and name it in the contracts that speak of its floor"
                )


def modules_that_are_gone(root: Path) -> Iterator[str]:
    """Modules that pages name, as `broker.shard`, and that are not there."""
    tops = {"weir_lab": root / LAB, "weir_raft": root / RAFT, "weir_toc": root / TOC}
    tops |= {path.name: path for path in (root / WEIR).glob("*") if path.is_dir()}
    for page in [root / "docs" / name for name in ("ARCHITECTURE.md", "GLOSSARY.md")]:
        text = page.read_text(encoding="utf-8") if page.exists() else ""
        for name in sorted(set(re.findall(r"`((?:weir\.)?[a-z_]+(?:\.[a-z_]+)+)`", text))):
            top, *parts = name.removeprefix("weir.").split(".")
            if top not in tops:
                continue  # a file, or a setting
            place = tops[top].joinpath(*parts)
            if not (place.is_dir() or place.with_suffix(".py").exists()):
                yield f"docs/{page.name}: no module {name}"


def words_with_two_meanings(root: Path) -> Iterator[str]:
    """Words that the glossary explains in more than one row."""
    page = root / "docs" / "GLOSSARY.md"
    seen: dict[str, int] = {}
    for number, line in enumerate(page.read_text().splitlines() if page.exists() else (), 1):
        row = re.match(r"\| ([^|]+) \| [^|]", line)
        for word in row[1].split(", ") if row and row[1] != "word" and row[1][0] != "-" else ():
            if word in seen:
                yield f"docs/{page.name}:{number}: {word!r} stands in line {seen[word]}, too"
            seen.setdefault(word, number)


@pytest.fixture(scope="module", autouse=True)
def forgotten() -> Iterator[None]:
    """The syntax of the whole source is no load for the tests that come later."""
    yield
    nodes_of.cache_clear()


def complaints(check: Callable[[Path], Iterator[str]], root: Path = ROOT) -> str:
    return "\n".join(check(root))


def test_files_are_short() -> None:
    assert not complaints(long_files)


def test_functions_are_short() -> None:
    assert not complaints(long_functions)


def test_classes_are_short() -> None:
    assert not complaints(long_classes)


def test_module_names_mean_something() -> None:
    assert not complaints(banned_names)


def test_nothing_is_marked_unfinished() -> None:
    assert not complaints(markers)


def test_no_host_decides_when_a_shard_takes_and_settles() -> None:
    assert not complaints(shards_fed_by_hand)


def test_no_simulated_host_decides_for_its_clients() -> None:
    assert not complaints(decisions_in_hosts)


def test_pure_floors_open_no_files() -> None:
    assert not complaints(opens_in_pure_floors)


def test_pure_floors_do_not_import_the_facade() -> None:
    assert not complaints(facade_in_pure_floors)


def test_only_commands_print() -> None:
    assert not complaints(prints)


def test_what_worlds_run_goes_through_no_set_of_objects() -> None:
    assert not complaints(orders_of_sets)


def test_no_set_is_excused_that_is_not_there() -> None:
    excused = {name for name, _ in ORDERLESS}
    nodes = source_nodes(ROOT, lambda name: name in excused)
    found = {(name, what) for name, node in nodes for what, _ in sets_of_objects(node)}
    assert not ORDERLESS.keys() - found
    assert not [name for name, _ in ORDERLESS if name.startswith(tuple(OUTSIDE_WORLDS))]
    assert not [place for place in OUTSIDE_WORLDS if not (ROOT / place).exists()]


@pytest.mark.parametrize(
    ("text", "is_fine"),
    [
        ("x: set[int]", True),
        ("x: set[tuple[int, str]]", True),
        ("x: set[tuple[int, ...]]", True),
        ("x: frozenset[int | bytes]", True),
        ("x: set[tuple[int, Task]]", False),
        ("x: set[int | None]", False),
        ("x = {one for one in set(tasks)}", False),
        ("for one in {*tasks}: pass", False),
        ("for one in sorted({*tasks}): pass", True),
        ("_, busy = await asyncio.wait(tasks)", False),
        ("await asyncio.wait(tasks)", True),
        ("async with asyncio.TaskGroup() as group: pass", False),
    ],
)
def test_sets_of_numbers_have_an_order(text: str, is_fine: bool) -> None:
    tree = ast.parse(f"async def run():\n    {text}")
    found = [why for node in ast.walk(tree) for _, why in sets_of_objects(node)]
    assert bool(found) != is_fine


def test_the_client_is_given_its_clocks_and_dice() -> None:
    assert not complaints(clocks_of_the_machine)


def test_packages_say_what_they_are_for() -> None:
    assert not complaints(packages_without_docstring)


def test_modules_have_docstrings() -> None:
    assert not complaints(modules_without_docstring)


def test_no_file_names_a_machine_path() -> None:
    assert not complaints(machine_paths)


def test_no_file_names_a_local_kernel() -> None:
    assert not complaints(local_kernels)


def test_no_file_names_a_package_index() -> None:
    assert not complaints(package_indexes)


def test_readme_names_real_make_targets() -> None:
    assert not complaints(unknown_make_targets)


def test_decisions_are_numbered_in_order() -> None:
    assert not complaints(decisions_out_of_order)


def test_the_architecture_names_modules_that_are_there() -> None:
    assert not complaints(modules_that_are_gone)


def test_the_glossary_gives_each_word_one_meaning() -> None:
    assert not complaints(words_with_two_meanings)


def test_built_rooms_are_out_of_parentheses() -> None:
    assert not complaints(rooms_left_in_parentheses)


CLEAN = {
    ".gitignore": "# what a build leaves\nbuild/\n*.pyc\n",
    "Makefile": "demo: ## Show\n\ntest: ## Test\n",
    "README.md": "To make sure, run `make demo`, then\n\n```\nmake test  # minutes\n```\n",
    "pyproject.toml": '[[tool.importlinter.contracts]]\nlayers = ["cli", "storage | (place)"]\n',
    f"{WEIR}__init__.py": '"""The package."""\n',
    f"{WEIR}cli/__init__.py": '"""Commands."""\n\nprint(open)\n',
    f"{WEIR}storage/__init__.py": '"""Storage."""\n',
    "build/made.py": f"# {'/'.join(['', 'root', ''])}\n",
    "tests/test_storage.py": "",
}
LONG_BODY = "    x = 1\n"
DOC = '"""Doc."""\n\n'

# check -> (file, its text, what the complaint must say)
PLANTED: dict[Callable[[Path], Iterator[str]], tuple[str, str, str]] = {
    long_files: ("tests/test_long.py", "x = 1\n" * 701, "test_long.py: 701 lines"),
    long_functions: (
        f"{WEIR}storage/a.py",
        f"{DOC}async def f():\n{LONG_BODY * 70}",
        "a.py:3: function f has 71 lines",
    ),
    long_classes: (
        f"{WEIR}storage/a.py",
        f"{DOC}class C:\n{LONG_BODY * 500}",
        "a.py:3: class C has 501 lines",
    ),
    banned_names: (f"{WEIR}storage/_utils.py", DOC, "_utils.py: a module called 'utils'"),
    markers: (f"{WEIR}storage/a.py", f"{DOC}# {'TO' + 'DO'}: later\n", "a.py:3: unfinished"),
    shards_fed_by_hand: (
        f"{LAB}sim/a.py",
        f"{DOC}effects = process._feed.follow()\n",
        "a.py:3: feed.follow: weir.host decides",
    ),
    decisions_in_hosts: (
        f"{WEIR}testing/a.py",
        f"{DOC}if type(effect) is ef.Hangup:\n    peer.close()\n",
        "a.py:3: ef.Hangup is for weir.host",
    ),
    opens_in_pure_floors: (
        f"{WEIR}client/core/session.py",
        f"{DOC}read = open\n",
        "session.py:3: open()",
    ),
    facade_in_pure_floors: (
        f"{WEIR}storage/a.py",
        f"{DOC}from weir import Message, errors\n",
        "a.py:3: imports Message from the façade",
    ),
    prints: (f"{WEIR}storage/a.py", f"{DOC}print(1)\n", "a.py:3: print()"),
    orders_of_sets: (
        f"{WEIR}app/a.py",
        f"{DOC}async def f(tasks: set[Task]):\n    done, _ = await asyncio.wait(tasks)\n",
        "a.py:3: a set of Task has no order",
    ),
    clocks_of_the_machine: (f"{WEIR}client/a.py", f"{DOC}import time\n", "a.py:3: imports time"),
    packages_without_docstring: (f"{RAFT}testing/a.py", DOC, "testing/__init__.py: missing"),
    decisions_out_of_order: ("docs/adr/0007-b.md", "# 0007: b\n", "the next number is 0000"),
    modules_without_docstring: (f"{WEIR}storage/a.py", "x = 1\n", "a.py: no module docstring"),
    machine_paths: ("docs/a.md", f"\nsee {'/'.join(['', 'work', 'x'])}\n", "docs/a.md:2: a path"),
    local_kernels: (
        "docs/a.jsonl",
        f'{{"a":"Linux-6.1.0-x86_64"}}\n{{"a":"{"Linux"}-6.1.0-17-x86_64"}}\n',
        "docs/a.jsonl:2: a kernel's local name: 'Linux-",
    ),
    package_indexes: ("b.txt", f"{'--'}index-url x\n", "b.txt:1: a package index"),
    unknown_make_targets: ("README.md", "`make demo prof`\n", "no target 'prof'"),
    modules_that_are_gone: ("docs/ARCHITECTURE.md", "see `cli.gone`", "no module cli.gone"),
    words_with_two_meanings: (
        "docs/GLOSSARY.md",
        "| word | meaning |\n| --- | --- |\n| cut, run | a |\n\n| word | meaning |\n| run | b |\n",
        "GLOSSARY.md:6: 'run' stands in line 3, too",
    ),
    rooms_left_in_parentheses: (f"{WEIR}place/__init__.py", DOC, "weir.place is built"),
}


def lay_out(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


@pytest.mark.parametrize("check", PLANTED, ids=lambda check: check.__name__)
def test_each_check_catches_a_planted_violation(
    check: Callable[[Path], Iterator[str]], tmp_path: Path
) -> None:
    name, text, expected = PLANTED[check]
    lay_out(tmp_path, CLEAN)
    assert not complaints(check, tmp_path)
    lay_out(tmp_path, {name: text})
    assert expected in complaints(check, tmp_path)
