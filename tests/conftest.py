"""What every test gets: a marker from its directory, a check for leaked descriptors, a world to live in.

`SVCCTL_REQUIRE=kernel,matrix` (a list of markers, or `all`) turns a skip of such a test into a failure: a run
that was meant to have root, or qemu, does not pass because it lacked them. A reason that begins with
"this kernel" stays a skip: what the running kernel has not, no installation mends.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lib import guard
from tests.lib.servers import SLOWNESS
from tests.lib.world import World
from tests.lib.world import world as new_world

# A user's shell has not got it, and what is written late or twice shows only without.
os.environ.pop("PYTHONUNBUFFERED", None)

TESTS = Path(__file__).parent
ROOMS = ("unit", "abi", "cli", "kernel", "matrix", "bench")
REQUIRED = frozenset(filter(None, os.environ.get("SVCCTL_REQUIRE", "").split(",")))

if SLOWNESS == 1:  # no quick test needs it, and an emulated machine takes ten seconds to import it
    import hypothesis

    # How long an example takes says nothing on a shared machine, and how many a strategy filters out nothing about
    # svcctl. The same examples every time, so that a run says something about the change it is for; SVCCTL_RANDOM=1:
    # others.
    hypothesis.settings.register_profile(
        "svcctl",
        deadline=None,
        derandomize=os.environ.get("SVCCTL_RANDOM") != "1",
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    hypothesis.settings.load_profile("svcctl")


def _first_process(config: pytest.Config) -> bool:
    """False in xdist's workers."""
    return not hasattr(config, "workerinput")


def pytest_cmdline_main(config: pytest.Config) -> None:
    """Put the whole session under a watcher that inherits orphans (not for `--collect-only` and the like).

    xdist's workers come through here too: they are children of the session that is under it already.
    """
    if _first_process(config) and not (
        config.option.collectonly or config.option.help or config.option.version
    ):
        guard.adopt_orphans()


def pytest_sessionstart(session: pytest.Session) -> None:
    """Remember what was there before, in the process that started first.

    Not when it only collects: it leaves nothing behind, and may run beside a session that makes things meanwhile.
    """
    if _first_process(session.config) and not session.config.option.collectonly:
        session.config.stash[_before] = guard.leavings()


_before: pytest.StashKey[frozenset[str]] = pytest.StashKey()
_left: pytest.StashKey[list[str]] = pytest.StashKey()


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    """Fail the session for every mount, pin, namespace and process that it leaves behind.

    Around the other hooks, in which xdist ends its workers, and within the terminal's, which tells of it.
    """
    yield
    before = session.config.stash.get(_before, None)
    if before is None:
        return
    left = sorted(guard.leavings() - before) + guard.processes()
    session.config.stash[_left] = left
    if left and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Name what was left behind, as an error that the last line counts."""
    left = config.stash.get(_left, [])
    if left:
        terminalreporter.section("left behind by the session")
        terminalreporter.write_line("\n".join(left))
        report = pytest.TestReport(
            nodeid="left behind by the session",
            location=("tests/conftest.py", None, "left behind by the session"),
            keywords={},
            outcome="failed",
            longrepr="\n".join(left),
            when="teardown",
        )
        terminalreporter.stats.setdefault("error", []).append(report)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test with the directory it lives in. Those of whole minutes come first: the others fill the gaps."""
    for item in items:
        room = item.path.relative_to(TESTS).parts[0] if item.path.is_relative_to(TESTS) else ""
        if room in ROOMS:
            item.add_marker(room)
    items.sort(key=lambda item: item.get_closest_marker("matrix") is None)


def _required(markers: set[str]) -> bool:
    return bool(REQUIRED) and ("all" in REQUIRED or bool(REQUIRED & markers))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Remember how a test went for its fixtures, and turn a skip of what is required into a failure."""
    report: pytest.TestReport = yield
    if report.failed:
        item.stash[_failed] = True
    if (
        report.skipped
        and not hasattr(report, "wasxfail")
        and _required({mark.name for mark in item.iter_markers()})
        and not _of_this_kernel(report)
    ):
        report.outcome = "failed"
        report.longrepr = (
            f"skipped, but SVCCTL_REQUIRE={','.join(sorted(REQUIRED))}: {_reason(report.longrepr)}"
        )
    return report  # type: ignore[return-value]


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """The same for a whole module that skips itself while it is collected."""
    report: pytest.CollectReport = yield
    path = getattr(collector, "path", TESTS)
    room = path.relative_to(TESTS).parts[:1] if path.is_relative_to(TESTS) else ()
    if report.outcome == "skipped" and _required(set(room)) and not _of_this_kernel(report):
        report.outcome = "failed"
        report.longrepr = f"module skipped, but SVCCTL_REQUIRE is set: {_reason(report.longrepr)}"
    return report  # type: ignore[return-value]


def _reason(longrepr: object) -> str:
    return str(longrepr[2]) if isinstance(longrepr, tuple) else str(longrepr)


def _of_this_kernel(report: pytest.TestReport | pytest.CollectReport) -> bool:
    return _reason(report.longrepr).removeprefix("Skipped: ").startswith("this kernel")


_failed: pytest.StashKey[bool] = pytest.StashKey()


@pytest.fixture(autouse=True)
def _no_leaked_descriptors(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that ends with more or other descriptors open than it began with.

    Not after a failure: the traceback then holds the frames that own them.
    """
    before = _descriptors()
    yield
    if not request.node.stash.get(_failed, False):
        after = _descriptors()
        leaked = {fd: what for fd, what in after.items() if before.get(fd) != what}
        gone = {fd: what for fd, what in before.items() if fd not in after}
        assert not leaked, f"descriptors left open: {leaked}"
        assert not gone, f"descriptors closed that the test did not open: {gone}"


def _descriptors() -> dict[int, str]:
    found = {}
    with os.scandir("/proc/self/fd") as entries:
        for entry in entries:
            try:
                found[int(entry.name)] = os.readlink(entry.path)
            except FileNotFoundError:  # the descriptor of this very listing, or a thread's
                continue
    return {fd: what for fd, what in found.items() if not what.startswith(f"/proc/{os.getpid()}/fd")}


@pytest.fixture
def world() -> Iterator[World]:
    """Own network and mount namespace with an own bpffs on /sys/fs/bpf, for one test. Needs root."""
    if os.geteuid() != 0:
        pytest.skip("needs root: run `make test`, which uses sudo")
    with new_world() as made:
        yield made
