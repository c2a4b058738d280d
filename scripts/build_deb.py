"""`make deb`: one package for every architecture and for Debian 12 and 13, built by dpkg-deb alone.

The same bytes every time: fixed order, owners, modes and times (SOURCE_DATE_EPOCH, else the epoch hatchling uses).
"""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from email.utils import formatdate
from pathlib import Path

import stage

ROOT = Path(__file__).resolve().parent.parent
EPOCH = int(os.environ.get("SOURCE_DATE_EPOCH") or 1580601600)
_NAME, _MAIL = (
    os.environ.get("DEBFULLNAME", "svcctl maintainers"),
    os.environ.get("DEBEMAIL", "svcctl@packages.invalid"),
)
MAINTAINER = f"{_NAME} <{_MAIL}>"

CONTROL = """\
Package: svcctl
Version: {version}
Section: net
Priority: optional
Architecture: all
Maintainer: {maintainer}
Installed-Size: {size}
Depends: python3:any (>= 3.11~), python3-click (>= 8.1), libbpf1 (>= 1:1.1)
Recommends: python3-rich, python3-pyroute2, python3-yaml, netbase
Suggests: kubernetes-client
Description: steer connections on a Linux host with eBPF, without a daemon
 svcctl decides which socket gets an incoming connection, by label: any
 number of addresses, prefixes and ports, TCP and UDP, are bound to a label,
 and a listening socket of any process is registered under it. It balances
 the connections of a host's sockets, and packets that pass through, over the
 backends of services, by Kubernetes' rules too.
 .
 All state lives in the kernel. The programs keep running while svcctl is
 upgraded, and no process of svcctl has to run for them.
"""

POSTINST = """\
#!/bin/sh
set -e
if [ "$1" = configure ]; then
    if command -v py3compile >/dev/null; then
        py3compile -p svcctl
    fi
    if command -v systemd-sysusers >/dev/null; then
        systemd-sysusers svcctl.conf
    elif ! getent group svcctl >/dev/null; then
        groupadd --system svcctl
    fi
    if [ -d /run/systemd/system ]; then
        systemctl --system daemon-reload || true
    fi
fi
"""

PRERM = """\
#!/bin/sh
set -e
if [ "$1" = remove ]; then
    if [ -d /run/systemd/system ]; then
        deb-systemd-invoke stop {units} || true
    fi
    for state in /sys/fs/bpf/*_svcctl; do
        [ -d "$state" ] || continue
        echo "svcctl: $state stays in the kernel and at work until the next boot; 'svcctl unload' removes it"
    done
fi
if command -v py3clean >/dev/null; then
    py3clean -p svcctl
fi
"""

POSTRM = """\
#!/bin/sh
set -e
if [ -d /run/systemd/system ]; then
    systemctl --system daemon-reload || true
fi
"""

COPYRIGHT = """\
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: svcctl

Files: *
Copyright: 2026 the svcctl contributors
License: BSD-2-Clause

Files: bpf/*
Copyright: 2026 the svcctl contributors
License: GPL-2.0-only or BSD-2-Clause

License: GPL-2.0-only
 On Debian systems the text is in /usr/share/common-licenses/GPL-2.

License: BSD-2-Clause
{licence}
"""

OVERRIDES = """\
# BPF programs, for both byte orders: the kernel runs them, whatever its architecture.
svcctl: arch-independent-package-contains-binary-or-object *
"""


def compressed(path: Path, text: bytes) -> None:
    """Write `text` gzipped, without name and time in the header."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text, 9, mtime=0))


def lay_out(tree: Path) -> None:
    """Write everything the package installs."""
    packages = tree / "usr/lib/python3/dist-packages"
    custom = {"share/zsh/site-functions": "share/zsh/vendor-completions"}
    written = stage.stage(ROOT, packages, tree / "usr", custom)
    stage.write_command(tree / "usr/bin/svcctl", "/usr/bin/python3", None)
    for page in written:
        if "/share/man/" in str(page):
            compressed(page.with_name(page.name + ".gz"), page.read_bytes())
            page.unlink()
    version = stage.version(ROOT)
    documents = tree / "usr/share/doc/svcctl"
    documents.mkdir(parents=True)
    entry = f"svcctl ({version}) unstable; urgency=medium\n\n  * See CHANGELOG.md.gz.\n\n"
    entry += f" -- {MAINTAINER}  {formatdate(EPOCH)}\n"
    compressed(documents / "changelog.gz", entry.encode())
    if (ROOT / "CHANGELOG.md").exists():
        compressed(documents / "CHANGELOG.md.gz", (ROOT / "CHANGELOG.md").read_bytes())
    if (ROOT / "README.md").exists():
        shutil.copyfile(ROOT / "README.md", documents / "README.md")
    licence = (ROOT / "LICENSE").read_text() if (ROOT / "LICENSE").exists() else ""
    lines = "\n".join(f" {line}" if line.strip() else " ." for line in licence.strip().splitlines())
    (documents / "copyright").write_text(COPYRIGHT.format(licence=lines))
    for example in sorted((ROOT / "deploy").rglob("example-*")):
        (documents / "examples").mkdir(exist_ok=True)
        shutil.copyfile(example, documents / "examples" / example.name)
    for directory in ("kubernetes", "etcd"):
        shutil.copytree(ROOT / "deploy" / directory, documents / "examples" / directory)
    overrides = tree / "usr/share/lintian/overrides/svcctl"
    overrides.parent.mkdir(parents=True)
    overrides.write_text(OVERRIDES)


def write_control(tree: Path) -> None:
    """Write the control directory: fields, checksums, and the scripts that dpkg runs."""
    control = tree / "DEBIAN"
    files = sorted(path for path in tree.rglob("*") if path.is_file())
    size = sum(-(-path.stat().st_size // 1024) for path in files) + len(list(tree.rglob("*")))
    units = sorted(path.name for path in files if "/systemd/system/" in str(path) and "@" not in path.name)
    control.mkdir()
    fields = CONTROL.format(version=stage.version(ROOT), maintainer=MAINTAINER, size=size)
    (control / "control").write_text(fields)
    sums = [f"{hashlib.md5(path.read_bytes()).hexdigest()}  {path.relative_to(tree)}\n" for path in files]
    (control / "md5sums").write_text("".join(sums))
    scripts = {"postinst": POSTINST, "prerm": PRERM, "postrm": POSTRM}
    for name, text in scripts.items():
        # Only what can be stopped without losing anything: the state itself stays on purpose.
        (control / name).write_text(text.replace("{units}", " ".join(units) or "svcctl-metrics.socket"))


PROGRAMS = ("cni", "carrier.d", "degraded.d", "routable.d")
"""Directories whose files are run."""


def settle(tree: Path) -> None:
    """Give every file its final mode and time."""
    executable = {"usr/bin/svcctl", "DEBIAN/postinst", "DEBIAN/prerm", "DEBIAN/postrm"}
    for path in [tree, *sorted(tree.rglob("*"))]:
        run = path.is_dir() or str(path.relative_to(tree)) in executable or path.parent.name in PROGRAMS
        path.chmod(0o755 if run else 0o644)
        os.utime(path, (EPOCH, EPOCH))


def main(arguments: list[str]) -> int:
    """Build into the directory named by the argument (default dist); print the path."""
    out = Path(arguments[0] if arguments else "dist").resolve()
    try:
        with tempfile.TemporaryDirectory(prefix="svcctl-deb-") as scratch:
            tree = Path(scratch, "tree")
            tree.mkdir()
            lay_out(tree)
            write_control(tree)
            settle(tree)
            out.mkdir(parents=True, exist_ok=True)
            made = out / f"svcctl_{stage.version(ROOT)}_all.deb"
            command = [
                "dpkg-deb",
                "--root-owner-group",
                "--threads-max=1",
                "-Zxz",
                "--build",
                str(tree),
                str(made),
            ]
            environment = os.environ | {"SOURCE_DATE_EPOCH": str(EPOCH)}
            subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    except (stage.StageError, OSError, subprocess.CalledProcessError) as problem:
        print(f"deb: error: {problem}", file=sys.stderr)
        return 1
    print(made)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
