"""The build: the same bytes wherever it runs, errors that name the package to install, packages that are whole."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import svcctl

ROOT = Path(__file__).resolve().parents[2]
PYTHON = sys.executable
# What a checkout has and a build needs; not .git, not what earlier builds left.
PARTS = ("svcctl", "bpf", "man", "completions", "deploy", "scripts", "tests/__init__.py", "tests/lib")
FILES = ("pyproject.toml", "hatch_build.py", "Makefile", "README.md", "CHANGELOG.md", "LICENSE", ".gitignore")


def copy(target: Path) -> Path:
    """Make a checkout without objects at `target`."""
    ignored = shutil.ignore_patterns("*.o", "__pycache__")
    for name in (*PARTS, *FILES):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=ignored)
        elif source.exists():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target / name)
    return target


def build(root: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=root, env=os.environ | environment, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two checkouts with everything built, at paths of different length, under different umasks."""
    base = tmp_path_factory.mktemp("build")
    roots = copy(base / "a"), copy(base / "some-where/else")
    for root, umask in zip(roots, (0o022, 0o077), strict=True):
        before = os.umask(umask)
        try:
            for command in (["hatchling", "build"], ["scripts/build_deb.py", "dist"]):
                arguments = ["-m", *command] if command[0] == "hatchling" else command
                done = build(root, PYTHON, *arguments)
                assert done.returncode == 0, done.stdout + done.stderr
        finally:
            os.umask(before)
    return roots


def contents(directory: Path, pattern: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.glob(pattern)}


@pytest.mark.parametrize("pattern", ["svcctl/objects/*.o", "dist/*.whl", "dist/*.tar.gz", "dist/*.deb"])
def test_same_bytes_in_another_directory(two: tuple[Path, Path], pattern: str) -> None:
    first, second = (contents(root, pattern) for root in two)
    assert first
    assert first == second


def test_wheel_is_whole_and_for_every_machine(two: tuple[Path, Path]) -> None:
    wheel = two[0] / f"dist/svcctl-{svcctl.__version__}-py3-none-any.whl"
    names = set(zipfile.ZipFile(wheel).namelist())
    programs = {path.name.removesuffix(".bpf.c") for path in (ROOT / "bpf").glob("*.bpf.c")}
    assert {f"svcctl/objects/{name}.bpf{order}.o" for name in programs for order in ("el", "eb")} <= names
    modules = {
        str(path.relative_to(ROOT))
        for kind in ("py", "json")
        for path in (ROOT / "svcctl").rglob(f"*.{kind}")
    }
    assert modules <= names
    data = f"svcctl-{svcctl.__version__}.data/data"
    pages = {f"{data}/share/man/man{page.suffix[1:]}/{page.name}" for page in (ROOT / "man").glob("*.[1-9]")}
    assert pages <= names
    for page in ("bash-completion/completions/svcctl", "zsh/site-functions/_svcctl"):
        assert f"{data}/share/{page}" in names
    units = {
        f"{data}/lib/systemd/system/{unit.name}" for unit in (ROOT / "deploy/systemd").glob("svcctl*.service")
    }
    assert units <= names
    assert not [name for name in names if name.startswith(("tests/", "scripts/", "bpf/"))]


def test_wheel_installs_without_a_compiler(two: tuple[Path, Path], tmp_path: Path) -> None:
    wheel = next((two[0] / "dist").glob("*.whl"))
    target = tmp_path / "site"
    options = ["--no-deps", "--no-index", "--quiet", "--disable-pip-version-check", "--target", str(target)]
    nothing = tmp_path / "bin"
    nothing.mkdir()
    done = build(tmp_path, PYTHON, "-m", "pip", "install", *options, str(wheel), PATH=str(nothing))
    assert done.returncode == 0, done.stderr
    code = "import svcctl, sys; print(svcctl.__file__); from svcctl.cli.main import main; sys.exit(main(['version']))"
    done = build(tmp_path, PYTHON, "-c", code, PATH=str(nothing), PYTHONPATH=str(target))
    assert done.stdout.startswith(str(target)), done.stderr
    assert svcctl.__version__ in done.stdout


def test_source_archive_builds_the_same_wheel(two: tuple[Path, Path], tmp_path: Path) -> None:
    archive = next((two[0] / "dist").glob("*.tar.gz"))
    assert build(tmp_path, "tar", "-xzf", str(archive)).returncode == 0
    root = tmp_path / archive.name.removesuffix(".tar.gz")
    done = build(root, PYTHON, "-m", "hatchling", "build", "-t", "wheel")
    assert done.returncode == 0, done.stderr
    assert contents(root / "dist", "*.whl") == contents(two[0] / "dist", "*.whl")


def test_deb_has_the_command_and_its_pages(two: tuple[Path, Path]) -> None:
    deb = next((two[0] / "dist").glob("*.deb"))
    listing = build(two[0], "dpkg-deb", "-c", str(deb)).stdout
    for wanted in (
        "-rwxr-xr-x root/root",
        "./usr/bin/svcctl",
        "./usr/lib/python3/dist-packages/svcctl/objects/dispatch.bpfeb.o",
        "./usr/lib/python3/dist-packages/svcctl/schema/native.json",
        "./usr/share/man/man8/svcctl.8.gz",
        "./usr/share/bash-completion/completions/svcctl",
        "./usr/share/doc/svcctl/copyright",
    ):
        assert wanted in listing
    fields = build(two[0], "dpkg-deb", "-f", str(deb)).stdout
    assert "Architecture: all" in fields
    assert "python3-click" in fields


def test_no_compiler_names_the_package(tmp_path: Path) -> None:
    nothing = tmp_path / "bin"
    nothing.mkdir()
    root = copy(tmp_path / "checkout")
    for command in (["scripts/build_objects.py"], ["-m", "hatchling", "build", "-t", "wheel"]):
        done = build(root, PYTHON, *command, PATH=str(nothing), CLANG="")
        assert done.returncode != 0
        assert "no clang found: install the package 'clang'" in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("header", "package"), [("bpf/bpf_helpers.h", "libbpf-dev"), ("linux/bpf.h", "linux-libc-dev")]
)
def test_missing_header_names_the_package(tmp_path: Path, header: str, package: str) -> None:
    """A compiler that does not look into the system's directories, and finds all headers but one elsewhere."""
    code = "import build_objects; print(build_objects.find_clang())"
    found = build(ROOT / "scripts", PYTHON, "-c", code).stdout.strip()
    headers = tmp_path / "include"
    for directory in ("linux", "bpf", "asm-generic"):
        shutil.copytree(f"/usr/include/{directory}", headers / directory)
    (headers / header).unlink()
    clang = tmp_path / "clang"
    clang.write_text(f'#!/bin/sh\nexec {found} -nostdlibinc -isystem {headers} "$@"\n')
    clang.chmod(0o755)
    done = build(copy(tmp_path / "checkout"), PYTHON, "scripts/build_objects.py", CLANG=str(clang))
    assert done.returncode != 0
    assert f"<{header}> not found: install the package '{package}'" in done.stderr


def test_install_and_uninstall(tmp_path: Path) -> None:
    root = tmp_path / "root"
    arguments = ["scripts/install.py", "--prefix", "/opt/svc", "--destdir", str(root)]
    done = build(ROOT, PYTHON, *arguments)
    assert done.returncode == 0, done.stderr
    command = root / "opt/svc/bin/svcctl"
    assert command.read_text().startswith("#!/usr/bin/python3 -I\n")
    assert os.access(command, os.X_OK)
    assert (root / "opt/svc/share/man/man8/svcctl.8").exists()
    for unit in root.rglob("*.service"):
        assert "/usr/bin/svcctl" not in unit.read_text()
    done = build(ROOT, PYTHON, *arguments, "--uninstall")
    assert done.returncode == 0, done.stderr
    assert [path for path in root.rglob("*") if not path.is_dir()] == []


def test_bootstrap_names_what_a_bare_machine_lacks(tmp_path: Path) -> None:
    """With nothing but a shell on PATH: every program it looks for is missing."""
    script = str(ROOT / "scripts/bootstrap")
    done = build(tmp_path, "/bin/sh", script, "--list", "build", "bench", "matrix", PATH="/nonexistent")
    assert done.returncode == 0, done.stderr
    assert {"clang", "llvm", "strace", "wrk", "qemu-system-x86"} <= set(done.stdout.split())
