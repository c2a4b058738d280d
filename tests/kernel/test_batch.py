"""batch: one process, one lock, one command a line."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from svcctl.errors import LockTimeout
from svcctl.state.place import Place
from svcctl.state.writer import lock_state
from tests.lib.run import ok, svcctl
from tests.lib.svc import process_env
from tests.lib.world import World


@pytest.fixture
def loaded(world: World) -> World:
    ok("load", "--max-bindings", "100", "--max-destinations", "20")
    return world


def labels() -> set[str]:
    return {row["label"] for row in ok("bindings", "-o", "json").json["bindings"]}


def test_lines_quotes_and_comments(loaded: World) -> None:
    done = ok(
        "batch",
        input="""
# a comment
bind web tcp 127.0.0.1 80     # and one behind a command
bind 'two words' tcp 127.0.0.1 81
bind back\\ slash tcp 127.0.0.1 82
   bind "sharp#label" tcp 127.0.0.1 83
svcctl bind pasted tcp 127.0.0.1 84

bindings tcp 127.0.0.1 80 --no-headers
""",
    )
    assert labels() == {"web", "two words", "back slash", "sharp#label", "pasted"}
    assert done.out.splitlines()[-1].split() == ["tcp", "127.0.0.1/32", "80", "web"]


def test_a_file(loaded: World, tmp_path: Path) -> None:
    path = tmp_path / "commands"
    path.write_text("bind web tcp 127.0.0.1 80\n")
    ok("batch", str(path))
    assert labels() == {"web"}
    assert svcctl("batch", str(tmp_path / "none")).code == 2


def test_the_first_error_ends_it_and_names_its_line(loaded: World) -> None:
    done = svcctl(
        "batch",
        input="bind web tcp 127.0.0.1 80\n\nbind other tcp 127.0.0.1 80\nbind last tcp 127.0.0.1 81\n",
    )
    assert done.code == 6
    assert "svcctl: error: batch: stdin:3: bind other#tcp:[127.0.0.1/32]:80: already bound" in done.err
    assert "hint:" in done.err
    assert labels() == {"web"}


def test_keep_going(loaded: World) -> None:
    lines = (
        "bind web tcp 127.0.0.1 80",
        "unbind web tcp 127.0.0.1 99",  # 5
        "bind web tcp nonsense 80",  # 2
        'bind "web',  # 2
        "metrics 127.0.0.1 9999",  # 2
        "batch",  # 2
        "nonsense",  # 2
        "bind last tcp 127.0.0.1 81",
    )
    done = svcctl("batch", "--keep-going", input="\n".join(lines))
    assert done.code == 5
    assert [line.split(": ")[3] for line in done.err.splitlines() if line.startswith("svcctl: error")] == [
        f"stdin:{number}" for number in (2, 3, 4, 5, 6, 7)
    ]
    assert labels() == {"web", "last"}


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("metrics 127.0.0.1 1", "stays in the foreground"),
        ("-o json metrics ::1 80", "stays in the foreground"),
        ("batch -", "a batch in a batch"),
        ('bind "web', "no closing quotation"),
        ("bind web tcp 127.0.0.1 80 --netns /proc/1/ns/net", "given to the batch"),
        ("--bpffs /tmp bind web tcp 127.0.0.1 80", "given to the batch"),
        ("bindigs", "did you mean 'bindings'?"),
        ("bind", "missing argument"),
        ("bind web tcp 1.2.3.4 5 --nonsense", "no such option"),
    ],
)
def test_refused_lines(loaded: World, line: str, says: str) -> None:
    done = svcctl("batch", input=f"bindings\n{line}\n")
    assert done.code == 2
    assert f"svcctl: error: batch: stdin:2: {says}" in done.err or says in done.err
    assert "stdin:2" in done.err
    assert labels() == set()


def test_errors_as_json(loaded: World) -> None:
    done = svcctl("batch", "-o", "json", input="unbind web tcp 127.0.0.1 80\n")
    assert done.error == {
        "code": "not_found",
        "message": "batch: stdin:1: unbind web#tcp:[127.0.0.1/32]:80: no such binding",
        "hint": "'svcctl bindings' lists them",
        "exit_code": 5,
    }


def test_a_command_that_ends_with_another_code(loaded: World) -> None:
    Path(loaded.state_dir, "sub").mkdir()
    done = svcctl("batch", input="check\nbind web tcp 127.0.0.1 80\n")
    assert done.code == 1
    assert "orphans" in done.out
    assert "batch: stdin:1: check: ended with 1" in done.err
    assert labels() == set()


def test_options_of_a_line_end_with_it(loaded: World) -> None:
    done = ok("batch", input="bind web tcp 127.0.0.1 80 -o json\nbind dns tcp 127.0.0.1 81\n")
    assert done.out.endswith("bound dns#tcp:[127.0.0.1/32]:81\n")
    assert ok("batch", "-q", input="bindings\n").err == ""


def test_dry_run_writes_nothing(loaded: World) -> None:
    done = ok("batch", "--dry-run", input="bind web tcp 127.0.0.1 80\nbind dns tcp 127.0.0.1 81\ngc\n")
    assert done.out.splitlines()[0] == "would bind web#tcp:[127.0.0.1/32]:80"
    assert labels() == set()
    done = ok("batch", input="bind web tcp 127.0.0.1 80 --dry-run\nbind dns tcp 127.0.0.1 81\n")
    assert labels() == {"dns"}


def test_a_whole_life(world: World) -> None:
    """Commands that take the locks by themselves have their place between others."""
    done = ok(
        "batch",
        input="""
load --max-bindings 10
bind web tcp 127.0.0.1 80
check
upgrade
bind dns udp 127.0.0.1 53
gc
detach netns
attach netns
bindings --no-headers
unload --yes
""",
    )
    assert "no problems found" in done.out
    assert [line.split()[-1] for line in done.out.splitlines() if "127.0.0.1/32  " in line] == ["web", "dns"]
    assert svcctl("bindings").code == 3


def test_writers_are_the_lines(loaded: World) -> None:
    ok("batch", input="bind web tcp 127.0.0.1 80\nunbind web tcp 127.0.0.1 80\ncheck\n")
    (status,) = ok("status", "-o", "json").json["status"]
    assert [row["command"] for row in status["writes"]][:2] == [
        "unbind web tcp 127.0.0.1 80",
        "bind web tcp 127.0.0.1 80",
    ]


def test_one_lock_from_the_first_change_to_the_end(loaded: World) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "svcctl", "batch"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
        env=process_env() | {"PYTHONUNBUFFERED": "1"},
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"bindings\nbind web tcp 127.0.0.1 80\n")
        wait(lambda: labels() == {"web"})
        with pytest.raises(LockTimeout):
            lock_state(Place(lock_timeout=0), "test")
        assert "web" in ok("bindings").out  # readers do not wait
        process.stdin.write(b"bind dns tcp 127.0.0.1 81\n")
        process.stdin.close()
        assert process.wait(20) == 0
    lock_state(Place(lock_timeout=0), "test").close()
    assert labels() == {"web", "dns"}


def wait(until: Callable[[], bool]) -> None:
    import time

    for _ in range(200):
        if until():
            return
        time.sleep(0.05)
    raise AssertionError("waited in vain")


def test_help_in_a_line_is_no_error(loaded: World) -> None:
    done = ok("batch", input="bind --help\n--version\nbind web tcp 127.0.0.1 80\n")
    assert "Usage: svcctl bind" in done.out
    assert labels() == {"web"}


def test_many_lines(loaded: World) -> None:
    lines = "".join(f"bind l{n % 10} tcp 10.0.0.{n} 80\n" for n in range(100))
    ok("batch", input=lines)
    assert len(ok("bindings", "-o", "json").json["bindings"]) == 100
    done = svcctl("batch", input="bind l1 tcp 10.0.0.200 80\n")
    assert done.code == 8
    ok("check")


def test_not_loaded(world: World) -> None:
    done = svcctl("batch", input="version\nbind web tcp 127.0.0.1 80\n")
    assert done.code == 3
    assert "stdin:2" in done.err


def test_bytes_that_are_no_text(loaded: World) -> None:
    with tempfile.TemporaryDirectory(prefix="svcctl-test-") as directory:
        path = Path(directory, "commands")
        path.write_bytes(b"bindings\nbind \xff\xfe tcp 127.0.0.1 80\n")
        done = svcctl("batch", str(path))
        assert done.code == 2
        assert f"batch: {path}:2: not UTF-8" in done.err
        assert svcctl("batch", directory).code == 2
