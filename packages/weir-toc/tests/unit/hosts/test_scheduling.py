"""Priorities of the threads of a program that sends beacons."""

import contextlib
import os
import threading
from collections.abc import Iterator

import pytest

from weir_toc.hosts.scheduling import NICE, OTHERS_NICE, nice_of, promptly

_MAY = os.geteuid() == 0


class Waiting(threading.Thread):
    """A thread that does nothing until it is let go."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._may_end = threading.Event()

    def run(self) -> None:
        self._may_end.wait(60)

    def end(self) -> None:
        self._may_end.set()
        self.join(60)

    @property
    def nice(self) -> int:
        assert self.native_id is not None
        return nice_of(self.native_id)


@contextlib.contextmanager
def waiting() -> Iterator[Waiting]:
    thread = Waiting()
    thread.start()
    try:
        yield thread
    finally:
        thread.end()


def own_nice() -> int:
    return nice_of(threading.get_native_id())


def test_threads_that_may_hold_the_lock_go_before_those_of_other_programs() -> None:
    usual = own_nice()
    with waiting() as other:
        with promptly():
            assert own_nice() == (NICE if _MAY else usual)
            assert other.nice == (OTHERS_NICE if _MAY else usual)
        assert (own_nice(), other.nice) == (usual, usual)
    assert NICE < OTHERS_NICE < 0


@pytest.mark.skipif(not _MAY, reason="only root raises priorities")
@pytest.mark.parametrize("usual", [0, 4])
def test_threads_that_are_started_meanwhile_have_the_usual_priority_behind_it(usual: int) -> None:
    own, thread = own_nice(), threading.get_native_id()
    with contextlib.ExitStack() as stack:
        stack.callback(os.setpriority, os.PRIO_PROCESS, thread, own)
        os.setpriority(os.PRIO_PROCESS, thread, usual)
        with promptly():
            first = stack.enter_context(waiting())
            assert first.nice == NICE  # a thread begins with the value of its starter
            os.setpriority(os.PRIO_PROCESS, thread, OTHERS_NICE)
            second = stack.enter_context(waiting())
            assert second.nice == OTHERS_NICE
        assert [own_nice(), first.nice, second.nice] == [usual] * 3


def test_threads_keep_their_priority_until_the_last_block_ends() -> None:
    usual = own_nice()
    with waiting() as other:
        with promptly():
            with promptly():
                pass
            assert own_nice() == (NICE if _MAY else usual)
            assert other.nice == (OTHERS_NICE if _MAY else usual)
        with promptly():
            assert other.nice == (OTHERS_NICE if _MAY else usual)
        assert other.nice == usual


@pytest.mark.skipif(not _MAY, reason="only root raises priorities")
@pytest.mark.parametrize("nice", [OTHERS_NICE, OTHERS_NICE - 2, NICE - 2, 3])
def test_a_priority_that_a_thread_was_given_before_is_its_own_again(nice: int) -> None:
    with waiting() as other:
        assert other.native_id is not None
        for given in (nice, nice + 1):
            os.setpriority(os.PRIO_PROCESS, other.native_id, given)
            with promptly():
                assert other.nice == min(given, OTHERS_NICE)
            assert other.nice == given


@pytest.mark.skipif(not _MAY, reason="only root raises priorities")
def test_a_priority_that_a_thread_is_given_meanwhile_stays() -> None:
    with waiting() as other, promptly():
        assert other.native_id is not None
        os.setpriority(os.PRIO_PROCESS, other.native_id, 7)
        with promptly():
            assert other.nice == OTHERS_NICE
            os.setpriority(os.PRIO_PROCESS, other.native_id, 7)
    with waiting() as other:
        with promptly():
            assert other.native_id is not None
            os.setpriority(os.PRIO_PROCESS, other.native_id, 7)
        assert other.nice == 7


def test_an_error_ends_the_block_as_well() -> None:
    usual = own_nice()
    with waiting() as other:
        with pytest.raises(KeyError), promptly():
            raise KeyError
        assert (own_nice(), other.nice) == (usual, usual)
