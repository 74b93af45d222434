"""A chaos run in words and blocks: a line a round with the gap drawn, then what came of it. Pure.

Each column is a slot of time and as high as the confirms that came in it; a dot is a slot without
any. The load itself is five eighths high: what is above is catching up.
"""

from __future__ import annotations

from weir_lab.bench.faults.chaos.rounds import COLUMNS, Result, Round

NOTHING = "·"
_BLOCKS = "▁▂▃▄▅▆▇█"
_USUAL = 5
STRUCK = "✗"


def heading(fault: str, nodes: int, rate: float, slot_ms: float) -> list[str]:
    """Return what stands above the rounds."""
    return [
        f"weir chaos {fault}: {nodes} nodes, one producer at {rate:,.0f} messages/s that waits for "
        "nothing",
        f"confirms around each strike, {slot_ms:.0f} ms a column; {NOTHING} is a column without "
        "any",
        "",
    ]


def drawn(one: Round, rate: float) -> str:
    """Return the confirms around a strike, with a mark where it fell."""
    usual = rate * one.slot_ms / 1e3
    columns = [_block(count, usual) for count in one.slots]
    return "".join(columns[: one.before]) + STRUCK + "".join(columns[one.before :])


def line(one: Round, rate: float) -> str:
    """Return a round as one line."""
    who = f"node {one.struck}" if one.struck else "      "
    leads = f"{one.led}→{one.leads}" if one.led != one.leads else f"{one.leads}"
    wider = f"  {one.slot_ms:,.0f} ms a column" if one.wider > 1 else ""
    said = f"  asked {one.asked}, refused {one.refused}, stale {one.stale}" if one.asked else ""
    gap, picture = f"{one.gap_ms:,.0f} ms", drawn(one, rate).ljust(COLUMNS + len(STRUCK))
    read = f"  read {one.reader_lag_ms:,.0f} ms later"
    return f"{one.number:4}  {who}  leads {leads:<3}  {picture}  {gap:>9}{read}{wider}{said}"


def summary(result: Result) -> list[str]:
    """Return what came of it all."""
    wrong = {
        "lost": result.lost,
        "repeated": result.repeated,
        "reordered": result.reordered,
        "misplaced": result.misplaced,
        "strange": result.strange,
        "stale": result.stale,
    }
    rounds = "round" if result.rounds == 1 else "rounds"
    done = [f"{name.replace('_', ' ')} {count:,}" for name, count in result.done.items()]
    others = f"without a kill before: {result.longest_gap_ms:,.0f} ms at most; {', '.join(done)}"
    return [
        "",
        f"without confirms: {result.rto_median_ms:,.0f} ms median, {result.rto_max_ms:,.0f} ms at "
        f"most, in {result.rounds} {rounds} ({result.seconds:,.0f} s)",
        *([others] if done else []),
        "a reader in total order got each message at most "
        f"{result.reader_lag_max_ms:,.0f} ms after its confirm",
        f"{result.sent:,} messages sent, {result.confirmed:,} confirmed; read {result.read:,} in "
        f"the end, {result.read_live:,} while it went on",
        ", ".join(f"{name} {count:,}" for name, count in wrong.items()),
        "Every confirmed message is there once, in order, where its confirm said."
        if result.clean
        else "THIS MUST NOT HAPPEN: keep what the nodes wrote (--data), and tell us.",
    ]


def _block(count: int, usual: float) -> str:
    if not count:
        return NOTHING
    return _BLOCKS[min(len(_BLOCKS), max(1, round(_USUAL * count / usual))) - 1]
