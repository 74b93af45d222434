"""Verbs that started processes are ended by signals in a way that lets them stop these."""

from __future__ import annotations

import os
import signal
import time

import pytest

from weir_lab.cli.bench_runs import stop_as_by_ctrl_c


def _be_terminated() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)  # the interrupt ends it


@pytest.mark.parametrize("ignored", [False, True], ids=["in front", "in the background"])
def test_sigterm_ends_the_block_as_ctrl_c_does(ignored: bool) -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    if ignored:  # as a shell does for what it runs in the background
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    during = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(KeyboardInterrupt), stop_as_by_ctrl_c():
            _be_terminated()
        assert signal.getsignal(signal.SIGINT) is during
        assert signal.getsignal(signal.SIGTERM) is before[1]
    finally:
        signal.signal(signal.SIGINT, before[0])
