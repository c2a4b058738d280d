"""`svcctl batch`: many lines, one process, one lock; what fails is named by its line."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from svcctl.maps import layouts
from svcctl.maps.layouts import U32
from svcctl.state.place import Place
from svcctl.state.session import open_reader
from tests.lib.servers import Server, ask
from tests.lib.svc import Ran, installed, process_env, svc, svc_process
from tests.lib.world import World


def batch(path: Path, *lines: str, options: tuple[str, ...] = (), code: int = 0) -> Ran:
    file = path / "lines"
    file.write_text("\n".join(lines))
    return svc("batch", file, *options, code=code)


def labels() -> list[str]:
    return sorted(row["label"] for row in svc("bindings", "-o", "json").json["bindings"])


def writers() -> list[str]:
    """The commands among the last ten, oldest first, as far as they were written."""
    with open_reader(Place()) as reader:
        following = reader.meta().next_writer
        rows = [
            layouts.WRITER.unpack(reader.map("writers").lookup(U32.pack((following + n) % 10)) or b"")
            for n in range(10)
        ]
    return [layouts.text(row.command) for row in rows if row.time_ns]


def generation() -> int:
    with open_reader(Place()) as reader:
        return reader.generation()


def test_lines_in_order_and_one_answer_a_line(loaded: World, server: Server, tmp_path: Path) -> None:
    port = server.open("web", "tcp").port
    ran = batch(
        tmp_path,
        "# a comment",
        "",
        "bind web tcp 127.7.0.0/16 80   # with a comment",
        'bind "web two#1" udp 2001:db8::1 53',
        f"register-pid {server.pid} web tcp 127.0.0.1 {port}",
        "unbind 'web two#1' udp 2001:db8::1 53",
        "bindings --no-headers",
    )
    lines = ran.out.splitlines()
    assert lines[0] == "bound web#tcp:[127.7.0.0/16]:80"
    assert lines[1] == "bound web two#1#udp:[2001:db8::1/128]:53"
    assert lines[2].startswith("registered web#tcp:ipv4 sk:")
    assert lines[3] == "unbound web two#1#udp:[2001:db8::1/128]:53"
    assert lines[4].split() == ["tcp", "127.7.0.0/16", "80", "web"]
    assert len(lines) == 5
    assert ask("tcp", "127.7.1.2", 80) == "web"
    assert writers()[-4:] == [
        "bind web tcp 127.7.0.0/16 80",
        "bind web two#1 udp 2001:db8::1 53",
        f"register-pid {server.pid} web tcp 127.0.0.1 {port}",
        "unbind web two#1 udp 2001:db8::1 53",
    ]


def test_stops_at_the_first_error_with_its_code(loaded: World, tmp_path: Path) -> None:
    ran = batch(tmp_path, "bind a tcp ::1 1", "unbind b tcp ::1 2", "bind c tcp ::1 3", code=5)
    assert ran.err.startswith("svcctl: error: line 2: unbind b#tcp:[::1/128]:2: no such binding\n")
    assert labels() == ["a"]


def test_keep_going_ends_with_the_first_code(loaded: World, tmp_path: Path) -> None:
    lines = (
        "bind a tcp ::1 1",
        "unbind b tcp ::1 2",
        "bind 'c",
        "bind c tcp nowhere 3",
        "bind other tcp ::1 1",
        "nonsense",
        "bind d tcp ::1 4",
    )
    ran = batch(tmp_path, *lines, options=("--keep-going",), code=5)
    assert [line.split(": ")[2] for line in ran.err.splitlines() if "error: " in line] == [
        f"line {n}" for n in (2, 3, 4, 5, 6)
    ]
    assert "5 lines failed" in ran.err
    assert labels() == ["a", "d"]
    assert svc("check").out == "no problems found\n"


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("load", "load"),
        ("unload --yes", "unload"),
        ("upgrade --max-bindings 100", "upgrade"),
        ("check --repair", "check"),
        ("gc", "gc"),
        ("batch -", "batch"),
        ("metrics 127.0.0.1 0", "metrics"),
        ("top", "top"),
        ("--bpffs /tmp bind x tcp ::1 1", "--bpffs"),
        ("bind x tcp ::1 1 --netns /proc/self/ns/net2", "--netns"),
    ],
)
@pytest.mark.parametrize("options", [(), ("--dry-run",)])
def test_refused_by_name(
    loaded: World, tmp_path: Path, line: str, word: str, options: tuple[str, ...]
) -> None:
    before = generation()
    ran = batch(tmp_path, line, options=options, code=2)
    assert ran.err.startswith("svcctl: error: line 1: ")
    assert word in ran.err
    assert "batch" in ran.err
    assert generation() == before


def test_dry_run_reaches_the_lines_and_needs_no_lock(loaded: World, tmp_path: Path) -> None:
    before = generation()
    ran = batch(tmp_path, "bind a tcp ::1 1", "bindings", options=("--dry-run",))
    assert ran.out == "would bind a#tcp:[::1/128]:1\n"
    ran = batch(tmp_path, "bind a tcp ::1 1 --dry-run", "bind b tcp ::1 1")
    assert ran.out == "would bind a#tcp:[::1/128]:1\nbound b#tcp:[::1/128]:1\n"
    assert generation() == before + 2


def test_json_is_one_document_a_line_and_errors_have_the_number(loaded: World, tmp_path: Path) -> None:
    ran = batch(
        tmp_path, "bind a tcp ::1 1", "bindings", "unbind b tcp ::1 2", options=("-o", "json"), code=5
    )
    decoder, at, documents = json.JSONDecoder(), 0, []
    while at < len(ran.out):
        document, at = decoder.raw_decode(ran.out, at)
        documents.append(document)
        at += 1
    assert [sorted(one) for one in documents] == [["changes", "schema"], ["bindings", "schema"]]
    error = json.loads(ran.err)["error"]
    assert (error["line"], error["exit_code"], error["code"]) == (3, 5, "not_found")


def test_yaml_is_a_stream_of_documents(loaded: World, tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    ran = batch(tmp_path, "bind a tcp ::1 1", "bindings", options=("-o", "yaml"))
    assert [sorted(one) for one in yaml.safe_load_all(ran.out)] == [
        ["changes", "schema"],
        ["bindings", "schema"],
    ]


def test_standard_input_and_what_may_not_read_it_again(loaded: World) -> None:
    ran = svc_process("batch", input="bind a tcp ::1 1\nload-bindings -\n", code=2)
    assert "line 2: read standard input: the batch itself" in ran.err
    assert labels() == ["a"]
    ran = svc_process("batch", "-", input="bind b tcp ::1 2")
    assert labels() == ["a", "b"]
    assert svc_process("batch", input="").out == ""


def test_a_bulk_change_between_lines(loaded: World, tmp_path: Path) -> None:
    """load-bindings swaps the maps under the batch: the next line writes to the new ones."""
    wanted = [
        {"label": "many", "protocol": "tcp", "prefix": f"10.{n >> 8}.{n & 255}.1", "port": 80}
        for n in range(10_001)
    ]
    many = tmp_path / "many.json"
    many.write_text(json.dumps({"bindings": wanted[:9_900]}))
    few = tmp_path / "few.json"
    few.write_text(json.dumps({"bindings": []}))
    svc("upgrade", "--max-bindings", 30_000)
    many.write_text(json.dumps({"bindings": wanted}))
    batch(
        tmp_path,
        "bind a tcp 10.255.0.1 1",
        f"load-bindings {many}",
        "bind b tcp 10.255.0.2 2",
        "unbind many tcp 10.0.0.1 80",
    )
    found = labels()
    assert len(found) == 10_001
    assert "b" in found
    assert "a" not in found
    batch(tmp_path, f"load-bindings {few}", "bind c tcp ::1 3")
    assert labels() == ["c"]
    assert svc("check").out == "no problems found\n"


def test_detach_and_attach_between_lines(loaded: World, server: Server, tmp_path: Path) -> None:
    port = server.open("web", "tcp").port
    batch(
        tmp_path,
        "bind web tcp 127.7.0.1 80",
        "detach netns",
        "attach netns",
        f"register-pid {server.pid} web tcp 127.0.0.1 {port}",
    )
    assert ask("tcp", "127.7.0.1", 80) == "web"


def test_one_lock_for_all_lines(loaded: World) -> None:
    with (
        Server() as server,
        subprocess.Popen(
            [*installed(), "batch"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=process_env(),
        ) as running,
    ):
        assert running.stdin is not None
        assert running.stdout is not None
        running.stdin.write(
            f"bind a tcp ::1 1\nregister-pid {server.pid} a tcp ::1 9 --wait 60\nbind c tcp ::1 3\n"
        )
        running.stdin.close()
        assert running.stdout.readline() == "bound a#tcp:[::1/128]:1\n"  # said at once, not at the end
        ran = svc("--lock-timeout", "0.1", "bind", "b", "tcp", "::1", 2, code=9)
        assert str(running.pid) in ran.err
        assert labels() == ["a"]  # a reader does not wait
        server.kill()  # and so the second line has nothing to wait for any more
        assert running.wait(60) == 5
        assert running.stderr is not None
        assert "line 2: " in running.stderr.read()
    svc("bind", "b", "tcp", "::1", 2)


def test_nothing_loaded_and_no_such_file(world: World, tmp_path: Path) -> None:
    assert batch(tmp_path, "bind a tcp ::1 1", code=3).err.startswith("svcctl: error: batch: no state")
    assert "line 1: bind: no state" in batch(tmp_path, "bind a tcp ::1 1", options=("--dry-run",), code=3).err
    svc("batch", tmp_path / "missing", code=2)


def test_help_in_a_line_is_no_error(loaded: World, tmp_path: Path) -> None:
    ran = batch(tmp_path, "bind --help", "bind a tcp ::1 1")
    assert ran.out.startswith("Usage: svcctl bind")
    assert ran.out.endswith("bound a#tcp:[::1/128]:1\n")


def test_every_noun_answers_within_the_lock(loaded: World, tmp_path: Path) -> None:
    """None of them waits for the lock that the batch itself has."""
    nouns = (
        "status",
        "status --all",
        "doctor",
        "attachments",
        "bindings",
        "destinations",
        "metrics",
        "export",
    )
    lines = (*nouns, "explain 127.0.0.1:80/tcp", f"save {tmp_path}/state.json", "version", "help bind")
    ran = batch(tmp_path, *lines, options=("--keep-going", "--lock-timeout", "0"), code=0)
    assert "lock" not in ran.err
