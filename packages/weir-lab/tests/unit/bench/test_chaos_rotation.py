"""In which order secrets of a set are rotated: no node is ever without what another one uses."""

from __future__ import annotations

import pytest

from weir_lab.bench.faults.chaos.rotation import NODES, step_of

CYCLE = 9


def test_each_round_is_another_node_and_nine_rotate_all() -> None:
    steps = [step_of(number) for number in range(CYCLE)]
    assert [step.node for step in steps] == [1, 2, 3] * 3
    assert [step.begins for step in steps] == [1, 0, 0, 2, 0, 0, 3, 0, 0]
    words = [" ".join(command) for step in steps for command in step.commands]
    assert words == [
        "access mode open", "access mode watch", "cert rotate-ca prepare",
        "cert rotate-ca switch", "access mode closed",
        "cert rotate-ca finish", "access rewrap",
    ]  # fmt: skip


@pytest.mark.parametrize("cycles", [1, 3])
def test_each_node_opens_what_any_other_wraps(cycles: int) -> None:
    files = dict.fromkeys(range(1, NODES + 1), (0,))
    wrapped: set[int] = set()
    for number in range(cycles * CYCLE):
        step = step_of(number)
        wrapped |= {keys[0] for keys in files.values()}
        if ("access", "rewrap") in step.commands:
            (current,) = {keys[0] for keys in files.values()}
            wrapped = {current}
        files[step.node] = step.keys
        for keys in files.values():
            assert wrapped | {other[0] for other in files.values()} <= {*keys}
    assert {*files.values()} == {(cycles,)}


def test_the_old_ca_goes_only_behind_new_certificates_of_all_nodes() -> None:
    signer, signed = 1, dict.fromkeys(range(1, NODES + 1), 1)
    for number in range(2 * CYCLE):
        step = step_of(number)
        signer += ("cert", "rotate-ca", "switch") in step.commands
        if ("cert", "rotate-ca", "finish") in step.commands:
            assert {*signed.values()} == {signer}
        signed[step.node] = signer
    assert signer == 3
