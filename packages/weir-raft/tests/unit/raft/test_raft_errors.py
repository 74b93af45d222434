from __future__ import annotations

import inspect

from weir_raft import errors


def _classes() -> dict[str, type]:
    return {
        name: value
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, errors.RaftError)
    }


def test_the_tree_in_the_docstring_is_the_tree_of_the_classes() -> None:
    drawn: dict[str, str] = {}
    path: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines():
        if not line.startswith("    "):
            continue
        name = line.strip(" │├└─").split()[0]
        depth = line.index(name)
        path = [step for step in path if step[0] < depth]
        drawn[name] = path[-1][1] if path else "Exception"
        path.append((depth, name))
    assert drawn == {name: cls.__base__.__name__ for name, cls in _classes().items()}


def test_not_leader_carries_the_hint_and_says_what_to_do() -> None:
    assert errors.NotLeader(3).leader_hint == 3
    assert "propose to node 3" in str(errors.NotLeader(3))
    assert "try again" in str(errors.NotLeader(0))
