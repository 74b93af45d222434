"""Rules of the program are taken away one at a time: the comparison with Python shows each."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from random import Random

import pytest

from rigs.xdp_path import Twins, for_tests, needs_bpf
from rigs.xdp_world import START, TREE, T, World, beacon, same_registers
from weir_toc.node import SILENT_INTERVALS, SwitchConfig
from weir_toc.topology import switch_id
from weir_toc.xdp import kernel

SOURCE = kernel.OBJECT.with_name("switch.c")

#: What is taken away, the text of it, and what stands there instead.
MUTANTS = [
    ("a register by assignment", "slot->barrier = max(slot->barrier, barrier);",
     "slot->barrier = barrier;"),
    ("the minimum is over dead inputs, too",
     "if (slot->flags & LIVE && slot->barrier < half->barrier)",
     "if (slot->barrier < half->barrier)"),
    ("a frozen register follows", "if (!(flags & FROZEN))", "if (1)"),
    ("a removed register counts", "if (!(slot->flags & REMOVED) && slot->commit",
     "if (slot->commit"),
    ("a packet is stamped before the register is raised", "\tif (plan.minima)\n",
     "\tif (plan.minima && plan.action != SEND)\n"),
    ("dead inputs are heard", "if (!(slot->flags & LIVE) || slot->ifindex != ifindex",
     "if (slot->ifindex != ifindex"),
    ("any epoch of a process is heard", "return same_epoch && (is_switch ||",
     "return (is_switch && same_epoch) || (!is_switch &&"),
    ("beacons of any epoch of a switch are heard",
     "if (is_switch && frame->toc.opcode != BEACON &&", "if (is_switch &&"),
    ("a switch may speak to this one in any epoch",
     "frame->toc.opcode != BEACON && get32(frame->toc.to) != NEIGHBOUR)",
     "frame->toc.opcode != BEACON)"),
    ("any address is heard", "return IP(frame)->saddr == (__u32)slot->ip && UDP(frame)",
     "return UDP(frame)"),
    ("any UDP port is heard", "(__u32)slot->ip && UDP(frame)->source == (__u16)slot->udp_port;",
     "(__u32)slot->ip;"),
    ("the virtual link is left out", "if (state->up.barrier < down->barrier)", "if (0)"),
    ("minima go back", "state->down.barrier = max(state->down.barrier, down->barrier);",
     "state->down.barrier = down->barrier;"),
    ("both barriers are the same", "put48(frame->toc.commit, half->commit);",
     "put48(frame->toc.commit, half->barrier);"),
    ("packets go to dead ports", "if (hops & state->live)", "if (0)"),
    ("what comes down goes up again", "if (!hops && may_rise)", "if (!hops)"),
    ("times do not wrap", "return near + ((low - near + HALF) & LOW) - HALF;", "return low;"),
    ("the phantom queue never drains",
     "left = slot->queue_bytes > drained ? slot->queue_bytes - drained : 0;",
     "left = slot->queue_bytes;"),
    ("joins are not limited", "if (asked_at && now", "if (0 && now"),
    ("beacons of the up half have the minima of the down half", "if (!(slot->flags & LOWER))\n",
     "if (0)\n"),
    ("a beacon that is turned keeps its source",
     "*(__u32 *)frame->toc.source = (__u32)state->source;", ""),
    ("a beacon that is turned keeps its epoch", "*(__u64 *)frame->toc.epoch = slot->beacon;", ""),
    ("what a half without inputs promises is not said", "if (state->is_own)", "if (0)"),
    ("a command is obeyed twice", "if (number != state->command + 1)", "if (0)"),
]  # fmt: skip


@pytest.mark.parametrize("name", [name for name, _, _ in MUTANTS])
def test_each_rule_is_written_once(name: str) -> None:
    ((old, new),) = ((old, new) for one, old, new in MUTANTS if one == name)
    assert SOURCE.read_text().count(old) == 1
    assert old != new


@needs_bpf
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("clang-14") is None, reason="clang-14 is missing: make xdp")
@pytest.mark.parametrize("name", [name for name, _, _ in MUTANTS])
def test_each_rule_that_is_taken_away_is_missed(tmp_path: Path, name: str) -> None:
    ((old, new),) = ((old, new) for one, old, new in MUTANTS if one == name)
    source = tmp_path / "switch.c"
    source.write_text(SOURCE.read_text().replace(old, new))
    headers = next(Path("/usr/include").glob("*-linux-gnu"))
    subprocess.run(
        ["clang-14", "-O2", "-target", "bpf", "-mcpu=v3", f"-I{headers}", "-c", source,
         "-o", tmp_path / "switch.o"], check=True,
    )  # fmt: skip
    spoiled = kernel.read_object((tmp_path / "switch.o").read_bytes())
    with pytest.raises(AssertionError):
        play(spoiled)


@needs_bpf
@pytest.mark.slow
def test_nothing_is_missed_while_all_rules_are_there() -> None:
    play(kernel.read_object(kernel.OBJECT.read_bytes()))


def return_frozen(program: kernel.ObjectFile) -> None:
    """Let a switch come back after silence: its commit register stands until that is removed."""
    with kernel.Loaded(for_tests(program), for_tests=True) as loaded:
        both = Twins(loaded, TREE, switch_id("spine-1"), START, SwitchConfig(interval=T))
        silent, *others = (*both.switch.lower, *both.switch.upper)
        now = START
        for _ in range(SILENT_INTERVALS + 2):
            now += T
            for neighbour in others:
                both.receive(now, neighbour, beacon(neighbour, now))
            both.tick(now)
        for later in (now + T, now + 2 * T):
            both.receive(later, silent, beacon(silent, later, epoch=2))
        back = both.xdp.registers()[silent]
        assert (back.live, back.frozen) == (True, True), "the world shows nothing"
        same_registers(both, later)


def play(program: kernel.ObjectFile) -> None:
    """Play worlds at switches of each tier."""
    return_frozen(program)
    for name in ("rack-0", "spine-1", "core-0"):
        for seed in (0, 1, 2, 6):
            with kernel.Loaded(for_tests(program), for_tests=True) as loaded:
                config = SwitchConfig(interval=T, drain_rate=1_000, mark_above=3_000)
                both = Twins(loaded, TREE, switch_id(name), START, config)
                World(both, Random(f"{name} {seed}")).play(400)
                both.path.repeat()
                both.path.ask_twice()
