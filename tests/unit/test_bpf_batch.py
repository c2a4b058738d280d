"""How a long write goes on after refusals, against a kernel made of a list."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svcctl.bpf.batch import PAUSES, write
from svcctl.bpf.errors import ENOTSUPP


class Kernel:
    """Writes entry numbers into `written`; `refuse(index, alone)` gives the errno of an entry, 0: taken."""

    def __init__(self, refuse: Callable[[int, bool], int] = lambda index, alone: 0, whole: int = 0) -> None:
        self.refuse = refuse
        self.whole = whole  # errno for every batch, its count left as it was
        self.written: list[int] = []
        self.batches: list[tuple[int, int]] = []
        self.singles = 0
        self.slept: list[float] = []

    def batch(self, start: int, count: int) -> tuple[int, int]:
        self.batches.append((start, count))
        if self.whole:
            return self.whole, count
        for done in range(count):
            refused = self.refuse(start + done, False)
            if refused:
                return refused, done
            self.written.append(start + done)
        return 0, count

    def single(self, index: int) -> int:
        self.singles += 1
        refused = self.refuse(index, True)
        if not refused:
            self.written.append(index)
        return refused

    def write(self, count: int, *, skip: int = 0, chunk: int = 1000) -> tuple[int, int, int]:
        return write(count, self.batch, self.single, skip=skip, chunk=chunk, sleep=self.slept.append)


def test_one_call_when_it_fits() -> None:
    kernel = Kernel()
    assert kernel.write(1000) == (0, 1000, 0)
    assert kernel.batches == [(0, 1000)]
    assert kernel.singles == 0


def test_pieces() -> None:
    kernel = Kernel()
    assert kernel.write(2500) == (0, 2500, 0)
    assert kernel.batches == [(0, 1000), (1000, 1000), (2000, 500)]


@pytest.mark.parametrize("refusal", [errno.EINVAL, ENOTSUPP])
def test_no_batches(refusal: int) -> None:
    kernel = Kernel(whole=refusal)
    assert kernel.write(2500) == (0, 2500, 0)
    assert kernel.written == list(range(2500))
    assert len(kernel.batches) == 1


def test_bad_entry() -> None:
    kernel = Kernel(lambda index, alone: errno.EINVAL if index == 50 else 0)
    assert kernel.write(100) == (errno.EINVAL, 50, 0)
    assert kernel.written == list(range(50))


def test_full() -> None:
    kernel = Kernel(lambda index, alone: errno.E2BIG if index >= 1234 else 0)
    assert kernel.write(5000) == (errno.E2BIG, 1234, 0)
    assert kernel.slept == []


def test_memory_comes_back_after_a_pause() -> None:
    """As in a memory cgroup: the batch dies at 76 % of a piece, what follows goes in slower."""
    hungry = {760, 761, 1500}
    kernel = Kernel(
        lambda index, alone: errno.ENOMEM if index in hungry and not (alone and kernel.slept) else 0
    )
    assert kernel.write(3000) == (0, 3000, 0)
    assert kernel.written == list(range(3000))
    assert kernel.singles >= 3
    assert sum(kernel.slept) < 1


def test_memory_never_comes_back() -> None:
    kernel = Kernel(lambda index, alone: errno.ENOMEM if index >= 76 else 0)
    assert kernel.write(3000) == (errno.ENOMEM, 76, 0)
    assert kernel.written == list(range(76))
    assert kernel.slept == list(PAUSES)
    assert kernel.singles == len(PAUSES) - 1  # two batches fail before it goes one by one


def test_only_single_writes_get_memory() -> None:
    kernel = Kernel(lambda index, alone: errno.ENOMEM if index >= 760 and not alone else 0)
    assert kernel.write(800) == (0, 800, 0)
    assert kernel.written == list(range(800))


def test_memory_out_before_the_count_was_set() -> None:
    """The kernel could not even have its own buffers: the count is the one passed in, nothing is done."""
    kernel = Kernel(whole=errno.ENOMEM)
    assert kernel.write(3000, chunk=8) == (0, 3000, 0)
    assert kernel.written == list(range(3000))


def test_skipping() -> None:
    kernel = Kernel(lambda index, alone: errno.ENOENT if index % 10 == 0 else 0)
    assert kernel.write(100, skip=errno.ENOENT) == (0, 100, 10)
    assert len(kernel.written) == 90
    kernel = Kernel(lambda index, alone: errno.ENOENT, whole=ENOTSUPP)
    assert kernel.write(100, skip=errno.ENOENT) == (0, 100, 100)


def test_missing_is_an_error_unless_skipped() -> None:
    kernel = Kernel(lambda index, alone: errno.ENOENT if index == 3 else 0)
    assert kernel.write(10) == (errno.ENOENT, 3, 0)


@given(
    count=st.integers(0, 200),
    chunk=st.integers(1, 64),
    missing=st.sets(st.integers(0, 199)),
    stingy=st.dictionaries(st.integers(0, 199), st.integers(1, 4), max_size=8),
    whole=st.sampled_from([0, 0, errno.EINVAL, ENOTSUPP]),
)
def test_every_entry_once_and_in_order(
    count: int, chunk: int, missing: set[int], stingy: dict[int, int], whole: int
) -> None:
    left = dict(stingy)

    def refuse(index: int, alone: bool) -> int:
        if left.get(index, 0):
            left[index] -= 1
            return errno.ENOMEM
        return errno.ENOENT if index in missing else 0

    kernel = Kernel(refuse, whole)
    absent = sum(1 for index in missing if index < count)
    assert kernel.write(count, skip=errno.ENOENT, chunk=chunk) == (0, count, absent)
    assert kernel.written == [index for index in range(count) if index not in missing]
