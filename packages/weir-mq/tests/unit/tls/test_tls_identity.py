"""Who a certificate speaks for: what is written is read, and nothing else is."""

from __future__ import annotations

import pytest

from weir.tls.identity import BadIdentity, Role, node, parse_identity


@pytest.mark.parametrize(
    ("uri", "role", "names"),
    [
        ("weir://abc/0/node/3", Role.NODE, ("3",)),
        ("weir://abc/0/user/default/anna", Role.USER, ("default", "anna")),
        ("weir://abc/2/device/18446744073709551615/1", Role.DEVICE, ("18446744073709551615", "1")),
    ],
)
def test_what_is_written_is_read(uri: str, role: Role, names: tuple[str, ...]) -> None:
    found = parse_identity(uri)
    assert (found.system, found.role, found.names) == (0xABC, role, names)
    assert str(found) == uri


@pytest.mark.parametrize(
    "uri",
    [
        "", "weir://", "http://abc/0/node/3", "weir://abc/0/node", "weir://abc/0/node/0",
        "weir://abc/0/node/03", "weir://abc/0/node/3/4", "weir://0abc/0/node/3",
        "weir://ABC/0/node/3", "weir://abc/x/node/3", "weir://abc/0/king/3",
        "weir://abc/0/user/default", "weir://abc/0/user/default/..", "weir://abc/0/user//anna",
        "weir://abc/0/user/default/a b", "weir://abc/0/user/default/a/b",
        "weir://abc/0/device/7", "weir://abc/0/device/-7/0", "weir://abc/0/device/7/x",
        "weir://abc/0/device/18446744073709551616/0", "weir://abc/0/node/\u0663",
    ],
)  # fmt: skip
def test_anything_else_is_nobody(uri: str) -> None:
    with pytest.raises(BadIdentity):
        parse_identity(uri)


def test_only_a_node_has_a_number() -> None:
    assert node(0xABC, 3).node == 3
    assert parse_identity("weir://abc/0/device/3/0").node == 0
