"""The shape of modules, classes and packages: each rule is a check.

A check takes a root folder and returns what is wrong under it, by the name of what it concerns, so
that what is excused here with a reason can be left out, and an excuse that is not needed be found.
"""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = "packages/*/src"
TESTS = "packages/*/tests/**/*.py"
BROKER = "weir.broker."

FILE_LINES_MAX = 700
METHODS_MAX = 25
ATTRIBUTES_MAX = 15
MODULES_MAX = 15
#: A module that is shorter and has one importer is a fragment of that.
FRAGMENT_LINES = 60
#: So many things may be larger than the ceilings, each with its reason.
EXCUSED_MAX = 10
CALLBACKS_MAX = 25

#: What is larger than the ceilings, and why.
CROWDED: Mapping[str, str] = {
    "weir.client.client.Client": "it is the public API, a method for each thing that is asked",
}
#: Short modules with one importer or none, and why they are modules.
FRAGMENTS: Mapping[str, str] = {
    "weir.cli.__main__": "`python -m weir.cli` starts it",
    "weir.model.arrow_slices": "a process that has Arrow may load it, and has slices made with it",
    "weir.schema.arrow": "each format's parser needs a library of its own",
    "weir_toc.__main__": "`python -m weir_toc` starts it",
    "weir_toc.xdp.__main__": "`python -m weir_toc.xdp` starts it",
    "weir_lab.bench.consumers.dormitory.handlers": "`weir work` is started with it",
    "weir_lab.bench.consumers.pool_app": "`weir work` is started with it",
    "weir_lab.bench.faults.killed.__main__": "`python -m` starts it",
    "weir_lab.bench.faults.powercut.relay": "machines that lose their power start it as a process",
    "weir_lab.bench.faults.stalling": "a process whose disk stalls is started with it",
    "weir_lab.bench.faults.upgrade.job": "a Spark job of either release is started with it",
    "weir_lab.bench.sides.peers.guard": "a process that guards a server is started with it",
    "weir_lab.demo.verb": "an entry point names it",
    "weir_lab.sim.mutants.redraw": "it writes source, and imports no command",
    "weir_lab.sim.programs.publishers.tellers": "a program of its own, as its neighbours are",
}
#: Bases with one subclass of which objects are made by other names, or of which users make others.
BASES: Mapping[str, str] = {
    "weir_raft.testing.rehearsal.Rehearsal": "part of the test kit: who replicates extends it",
    "weir_raft.config.Contacts": "a node alone has those of none, a group those of its slot",
    "weir_lab.barriers.rehearsal.OrderedRehearsal": "tests of given executions make it",
    "weir_lab.bench.sides.peers.redis.Redis": "made by its name in the list of peers",
    "weir_lab.bench.sides.peers.rabbitmq.RabbitMq": "made by its name in the list of peers",
    "weir_lab.sim.programs.publishers.tellers.Teller": "made by the workload, by its class",
    "weir_lab.sim.programs.shipped.producers.ShippedProducer": "made by the workload, by its class",
}

#: Records of weir-mq that are dataclasses, and why they are no structs.
DATACLASSES: Mapping[str, str] = {
    "weir.broker.state.clusters.ClusterState": "what it finds quickly is no part of its equality",
    "weir.broker.state.clusters.Cursor": "what it finds quickly is no part of its equality",
}

Function = ast.FunctionDef | ast.AsyncFunctionDef
#: What every named tuple has.
PUBLIC = {"_asdict", "_fields", "_make", "_replace"}
#: They take rules of the code away, whose names are often private.
PLANTED_BUGS = "weir_lab.sim.mutants."
#: What a class is made of whose attributes are the fields of a record.
RECORDS = {"dataclass", "Struct", "NamedTuple"}


class Module(NamedTuple):
    """A module of the distributions: its name, its lines, its syntax."""

    name: str
    lines: int
    tree: ast.Module
    is_package: bool
    #: All of its syntax: several checks go through it.
    nodes: tuple[ast.AST, ...]


class Wrong(NamedTuple):
    """What is wrong, and of which module, class or package."""

    of: str
    text: str


@cache
def modules(root: Path) -> tuple[Module, ...]:
    """Return all modules of the distributions, in the order of their names."""
    found = []
    for source in sorted(root.glob(SOURCES)):
        for path in sorted(source.rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            name = ".".join(path.relative_to(source).with_suffix("").parts)
            inside = path.name == "__init__.py"
            name = name.removesuffix(".__init__")
            tree = ast.parse(text)
            nodes = tuple(ast.walk(tree))
            found.append(Module(name, len(text.splitlines()), tree, inside, nodes))
    return tuple(found)


@cache
def classes(root: Path) -> tuple[tuple[Module, ast.ClassDef], ...]:
    """Return every class of the distributions, with its module."""
    return tuple(
        (module, node)
        for module in modules(root)
        for node in module.nodes
        if isinstance(node, ast.ClassDef)
    )


@cache
def attributes(node: ast.ClassDef) -> frozenset[str]:
    """Return what an object of a class has: declared in its body, or assigned in a method."""
    found = set()
    for inside in ast.walk(node):
        targets: list[ast.expr] = []
        if isinstance(inside, ast.Assign):
            targets = inside.targets
        elif isinstance(inside, ast.AnnAssign | ast.AugAssign):
            targets = [inside.target]
        for target in targets:
            each = target.elts if isinstance(target, ast.Tuple) else [target]
            found |= {
                one.attr
                for one in each
                if isinstance(one, ast.Attribute) and ast.unparse(one.value) == "self"
            }
    declared = (n.target for n in node.body if isinstance(n, ast.AnnAssign))
    return frozenset(found | {one.id for one in declared if isinstance(one, ast.Name)})


def long_files(root: Path) -> Iterator[Wrong]:
    for module in modules(root):
        if module.lines > FILE_LINES_MAX:
            yield Wrong(module.name, f"{module.lines} lines, at most {FILE_LINES_MAX}")


def crowded_packages(root: Path) -> Iterator[Wrong]:
    held = Counter(m.name.rpartition(".")[0] for m in modules(root) if not m.is_package)
    for package, count in held.items():
        if count > MODULES_MAX:
            yield Wrong(package, f"{count} modules, at most {MODULES_MAX}: make rooms in it")


def crowded_classes(root: Path) -> Iterator[Wrong]:
    for module, node in classes(root):
        of = f"{module.name}.{node.name}"
        methods = [n for n in node.body if isinstance(n, Function) and n.name[0] != "_"]
        if len(methods) > METHODS_MAX:
            yield Wrong(of, f"{len(methods)} public methods, at most {METHODS_MAX}")
        held = len(attributes(node))
        if held > ATTRIBUTES_MAX and not is_record(node):
            yield Wrong(of, f"{held} attributes, at most {ATTRIBUTES_MAX}: split it by duty")


def is_record(node: ast.ClassDef) -> bool:
    """Whether a class only holds fields: of a format, a trace, or a measurement."""
    made_of = {ast.unparse(one) for one in (*node.bases, *node.decorator_list)}
    named = {text.split("(")[0].split(".")[-1] for text in made_of}
    return bool(named & RECORDS)


def dataclasses(root: Path) -> Iterator[Wrong]:
    """Records of weir-mq that take longer to declare than structs do; Spark loads slower things."""
    for module, node in classes(root):
        made_by = {ast.unparse(one).split("(")[0] for one in node.decorator_list}
        ours = module.name.startswith("weir.") and not module.name.startswith("weir.spark.")
        if ours and "dataclass" in made_by:
            yield Wrong(f"{module.name}.{node.name}", "a dataclass: make it a msgspec.Struct")


def fragments(root: Path) -> Iterator[Wrong]:
    importers: dict[str, set[str]] = defaultdict(set)
    for module in modules(root):
        for node in module.nodes:
            if isinstance(node, ast.ImportFrom) and node.module:
                importers[node.module].add(module.name)
                for alias in node.names:
                    importers[f"{node.module}.{alias.name}"].add(module.name)
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    importers[alias.name].add(module.name)
    for module in modules(root):
        of = importers[module.name]
        if not module.is_package and module.lines < FRAGMENT_LINES and len(of) <= 1:
            where = f"it belongs in {', '.join(of)}" if of else "nothing imports it"
            yield Wrong(module.name, f"{module.lines} lines: {where}")


def private_reads(root: Path) -> Iterator[Wrong]:
    """What a module reads of another's object that begins with an underscore."""
    ours = private_names(root)
    for module in modules(root):
        if not module.name.startswith(PLANTED_BUGS):
            for node in reads_of(module.nodes, ours):
                yield Wrong(module.name, f"line {node.lineno} reads {ast.unparse(node)}")


def private_reads_by_tests(root: Path) -> Iterator[Wrong]:
    """What a test reads of an object of ours that begins with an underscore; a rig may."""
    ours = private_names(root)
    for path in sorted(root.glob(TESTS)):
        if "rigs" not in path.parts:
            name = path.relative_to(root).as_posix()
            nodes = [*ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
            imports = (node for node in nodes if isinstance(node, ast.ImportFrom))
            imported = {alias.name for node in imports for alias in node.names}
            for node in reads_of(nodes, ours):
                of = ast.unparse(node.value)
                if not (of in imported and of.islower()):  # a module, which is no object of ours
                    yield Wrong(name, f"line {node.lineno} reads {of}.{node.attr}")


@cache
def private_names(root: Path) -> frozenset[str]:
    """Return the private attributes and methods of all classes."""
    ours = {name for _, node in classes(root) for name in attributes(node)}
    for _, node in classes(root):
        ours |= {n.name for n in node.body if isinstance(n, Function)}
    return frozenset(name for name in ours if name[0] == "_") - PUBLIC


def reads_of(nodes: Sequence[ast.AST], ours: frozenset[str]) -> Iterator[ast.Attribute]:
    """Yield where a file reads one of these attributes, and it is none of its own classes'."""
    others = ours - {n.name for n in nodes if isinstance(n, Function | ast.ClassDef)}
    for node in nodes:
        if isinstance(node, ast.ClassDef):
            others -= attributes(node)
    for node in nodes:
        if not isinstance(node, ast.Attribute) or node.attr.startswith("__"):
            continue
        if node.attr in others and ast.unparse(node.value) not in ("self", "cls", "os"):
            yield node


def lone_subclasses(root: Path) -> Iterator[Wrong]:
    """Base classes that only one class of ours extends, and of which there are no objects."""
    defined: dict[str, list[tuple[str, ast.ClassDef]]] = defaultdict(list)
    for module, node in classes(root):
        defined[node.name].append((module.name, node))
    extended: dict[str, list[str]] = defaultdict(list)
    for _, node in classes(root):
        for base in node.bases:
            extended[ast.unparse(base).split("[")[0].split(".")[-1]].append(node.name)
    calls = (n for m in modules(root) for n in m.nodes if isinstance(n, ast.Call))
    made = {ast.unparse(call.func).split("[")[0].split(".")[-1] for call in calls}
    for name, by in extended.items():
        if len(by) > 1 or len(defined[name]) != 1 or name in made:
            continue
        where, node = defined[name][0]
        kinds = {ast.unparse(base).split("[")[0] for base in node.bases}
        # An error is a kind for those who catch it; a Protocol is a port.
        if not kinds & {"Protocol"} and not is_error(name, defined):
            yield Wrong(f"{where}.{name}", f"only {by[0]} extends it: make them one")


def is_error(name: str, defined: Mapping[str, list[tuple[str, ast.ClassDef]]]) -> bool:
    """Whether a class is an exception, by its bases as far as they are ours."""
    if name not in defined:
        return name.endswith(("Error", "Exception"))
    bases = [ast.unparse(base).split(".")[-1] for _, node in defined[name] for base in node.bases]
    return any(is_error(base, defined) for base in bases if base != name)


def callbacks(root: Path) -> Iterator[Wrong]:
    """What objects of the broker keep that they call one day, without knowing whose it is."""
    kinds = {"Callable"}
    for module in modules(root):
        for statement in module.tree.body if module.name.startswith(BROKER) else ():
            if isinstance(statement, ast.Assign) and "Callable[" in ast.unparse(statement.value):
                kinds |= {ast.unparse(target) for target in statement.targets}
    for module, node in classes(root):
        if not module.name.startswith(BROKER):
            continue
        given = {
            argument.arg
            for method in node.body
            if isinstance(method, Function)
            for argument in (*method.args.args, *method.args.kwonlyargs)
            if argument.annotation is not None and names(argument.annotation) & kinds
        }
        for inside in ast.walk(node):
            if isinstance(inside, ast.AnnAssign):
                kept = names(inside.annotation) & kinds and is_kept(inside.target, node)
                if kept:
                    yield Wrong(f"{module.name}.{node.name}", ast.unparse(inside.target))
            elif isinstance(inside, ast.Assign) and ast.unparse(inside.value) in given:
                for target in inside.targets:
                    if is_kept(target, node):
                        yield Wrong(f"{module.name}.{node.name}", ast.unparse(target))


def names(annotation: ast.expr) -> set[str]:
    """Return the names in an annotation, those in its strings included."""
    text = ast.unparse(annotation).replace("'", "")
    return {n.id for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Name)}


def is_kept(target: ast.expr, node: ast.ClassDef) -> bool:
    """Whether an object of the class has it for longer than one call."""
    declared = any(isinstance(n, ast.AnnAssign) and n.target is target for n in node.body)
    return declared or ast.unparse(target).startswith("self.")


Check = Callable[[Path], Iterator[Wrong]]


def forget() -> None:
    """Read all anew: files have changed, or the syntax of all is no load for later tests."""
    for kept in (modules, classes, attributes, private_names):
        kept.cache_clear()


@pytest.fixture(scope="module", autouse=True)
def forgotten() -> Iterator[None]:
    """Leave nothing in memory."""
    yield
    forget()


def complaints(check: Check, excused: Mapping[str, str] | None = None, root: Path = ROOT) -> str:
    found = (one for one in check(root) if one.of not in (excused or {}))
    return "\n".join(f"{one.of}: {one.text}" for one in found)


@pytest.mark.parametrize("check", [long_files, crowded_packages, crowded_classes])
def test_nothing_is_crowded_without_a_reason(check: Check) -> None:
    assert not complaints(check, CROWDED)


def test_the_crowded_are_few_and_are_crowded() -> None:
    crowded = {w.of for c in (long_files, crowded_packages, crowded_classes) for w in c(ROOT)}
    assert len(CROWDED) <= EXCUSED_MAX
    assert CROWDED.keys() <= crowded


def test_records_of_weir_mq_are_structs() -> None:
    assert not complaints(dataclasses, DATACLASSES)
    assert DATACLASSES.keys() <= {wrong.of for wrong in dataclasses(ROOT)}


def test_no_module_is_a_fragment_without_a_reason() -> None:
    assert not complaints(fragments, FRAGMENTS)
    assert FRAGMENTS.keys() <= {wrong.of for wrong in fragments(ROOT)}


def test_no_module_reads_what_is_private_to_another() -> None:
    assert not complaints(private_reads)


def test_no_test_but_by_a_rig_reads_what_is_private() -> None:
    assert not complaints(private_reads_by_tests)


def test_a_base_class_has_more_than_one_subclass() -> None:
    assert not complaints(lone_subclasses, BASES)
    assert BASES.keys() <= {wrong.of for wrong in lone_subclasses(ROOT)}


def test_the_broker_keeps_few_callbacks() -> None:
    found = [*callbacks(ROOT)]
    assert len(found) <= CALLBACKS_MAX, "\n".join(f"{one.of}: {one.text}" for one in found)


METHODS = "".join(f"    def do_{n}(self): ...\n" for n in range(26))
FIELDS = "".join(f"        self.a{n} = n\n" for n in range(16))
A = "packages/weir-mq/src/weir/broker/a.py"
B = "packages/weir-mq/src/weir/broker/b.py"
T = "packages/weir-mq/tests/unit/test_a.py"

#: check -> (files, what the complaint must say)
PLANTED: dict[Check, tuple[dict[str, str], str]] = {
    long_files: ({A: "x = 1\n" * 701}, "weir.broker.a: 701 lines"),
    crowded_packages: (
        {f"packages/weir-mq/src/weir/broker/m{n}.py": "" for n in range(16)},
        "weir.broker: 16 modules",
    ),
    crowded_classes: (
        {A: f"class C:\n{METHODS}\n    def __init__(self, n):\n{FIELDS}"},
        "weir.broker.a.C: 16 attributes",
    ),
    dataclasses: (
        {A: "@dataclass(slots=True)\nclass C:\n    x: int\n"},
        "weir.broker.a.C: a dataclass",
    ),
    fragments: (
        {A: "x = 1\n", B: "from weir.broker import a\n" * 60},
        "weir.broker.a: 1 lines: it belongs in weir.broker.b",
    ),
    private_reads: (
        {A: "class C:\n    def __init__(self):\n        self._x = 1\n", B: "print(c._x)\n"},
        "weir.broker.b: line 1 reads c._x",
    ),
    private_reads_by_tests: (
        {A: "class C:\n    def _x(self): ...\n", T: "def test_c():\n    c._x()\n"},
        "packages/weir-mq/tests/unit/test_a.py: line 2 reads c._x",
    ),
    lone_subclasses: (
        {A: "class Base: ...\n", B: "class Only(Base): ...\n"},
        "weir.broker.a.Base: only Only extends it",
    ),
    callbacks: (
        {A: "class C:\n    def __init__(self, f: Callable[[], None]):\n        self._f = f\n"},
        "weir.broker.a.C: self._f",
    ),
}


@pytest.mark.parametrize("check", PLANTED, ids=lambda check: check.__name__)
def test_each_check_catches_a_planted_violation(check: Check, tmp_path: Path) -> None:
    files, expected = PLANTED[check]
    assert not complaints(check, root=tmp_path)
    forget()
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert expected in complaints(check, root=tmp_path)
