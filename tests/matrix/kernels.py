"""Finds, downloads and unpacks the newest Debian cloud kernel of each series, through a private apt.

The mirror is the one this machine's own apt uses; the lists and the packages live in one private directory.
Nothing is installed. apt checks the signatures with Debian's keyring as it always does.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
# Series -> how the version in its package names begins. 7: the newest that backports has.
SERIES = {
    "5.10": r"5\.10\.0-\d+",
    "6.1": r"6\.1\.0-\d+",
    "6.12": r"6\.12\.\d+\+deb13",
    "6.18": r"6\.18\.\d+\+deb13",
    "7": r"7\.\d+\.\d+\+deb13",
}
RELEASES = ("bullseye", "bookworm", "trixie")
EXTRA_SUITES = ("trixie-backports",)
REFRESH_AFTER_S = 12 * 3600


class KernelError(Exception):
    """No mirror, no such kernel, or a package that is not as expected."""


class Kernel(NamedTuple):
    """An unpacked kernel: `directory` holds boot/vmlinuz-`release` and lib/modules/`release`."""

    series: str
    release: str
    directory: Path
    note: str


class Source(NamedTuple):
    """One line of apt's sources: where, and which suite."""

    uri: str
    suite: str


def system_sources() -> list[Source]:
    """Read the binary sources that apt of this machine uses, in both of its formats."""
    found = []
    lists = [Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*"))]
    for path in lists:
        if path.suffix == ".sources":
            for stanza in re.split(r"\n\s*\n", path.read_text()):
                fields = dict(re.findall(r"^([A-Za-z-]+):[ \t]*(.*)$", stanza, re.MULTILINE))
                if fields.get("Enabled", "yes") != "no" and "deb" in fields.get("Types", "").split():
                    uris, suites = fields.get("URIs", "").split(), fields.get("Suites", "").split()
                    found += [Source(uri, suite) for uri in uris for suite in suites]
        elif path.suffix == ".list" and path.exists():
            lines = re.findall(r"^deb\s+(?:\[[^]]*\]\s+)?(\S+)\s+(\S+)", path.read_text(), re.MULTILINE)
            found += [Source(*line) for line in lines]
    return found


class Mirror:
    """A private apt: own lists, own state, this machine's mirror and transport settings."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._config = directory / "apt.conf"
        self._stamp = directory / "updated"

    def apt(self, *command: str, cwd: Path | None = None) -> str:
        """Run an apt program with the private configuration; return its output. Raises KernelError."""
        environment = os.environ | {"APT_CONFIG": str(self._config), "LC_ALL": "C.UTF-8"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=cwd, check=False)
        if done.returncode != 0:
            raise KernelError(
                f"{' '.join(command)}: ended with {done.returncode}\n{done.stdout}{done.stderr}"
            )
        return done.stdout

    def refresh(self) -> str:
        """Fetch the lists unless they are fresh. Return a note on what could not be had, or ''."""
        if self._stamp.exists() and time.time() - self._stamp.stat().st_mtime < REFRESH_AFTER_S:
            return ""
        for name in ("lists/partial", "cache/archives/partial", "state"):
            (self.directory / name).mkdir(parents=True, exist_ok=True)
        (self.directory / "state/status").touch()
        (self.directory / "sources.list").write_text("".join(self._source_lines()))
        self._config.write_text(self._configuration())
        try:
            self.apt("apt-get", "-qq", "update")
        except KernelError as problem:  # one suite that has gone must not hide the others
            return str(problem)
        self._stamp.touch()
        return ""

    def _source_lines(self) -> list[str]:
        system = system_sources()
        main = next((uri for uri, suite in system if suite in RELEASES), None)
        if main is None:
            raise KernelError(f"no source with one of the suites {', '.join(RELEASES)} in /etc/apt")
        suites = [(main, suite) for suite in (*RELEASES, *EXTRA_SUITES)]
        security = next((uri for uri, suite in system if suite.endswith("-security")), None)
        if security is not None:
            suites += [(security, f"{suite}-security") for suite in RELEASES]
        return [f"deb [arch=amd64 signed-by={KEYRING}] {uri} {suite} main\n" for uri, suite in suites]

    def _configuration(self) -> str:
        # Proxies and the like are kept; everything else of the system's configuration is left out, for
        # apt.conf.d is read after APT_CONFIG and would win.
        dump = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, check=True).stdout
        kept = [
            line for line in dump.splitlines() if line.startswith("Acquire::") and not line.endswith('"";')
        ]
        mine = self.directory
        return "\n".join(
            [
                *kept,
                f'Dir::Etc::sourcelist "{mine}/sources.list";',
                'Dir::Etc::sourceparts "/dev/null";',
                'Dir::Etc::preferencesparts "/dev/null";',
                'Dir::Etc::Parts "/dev/null";',
                f'Dir::State "{mine}/state";',
                f'Dir::State::lists "{mine}/lists";',
                f'Dir::State::status "{mine}/state/status";',
                f'Dir::Cache "{mine}/cache";',
                'APT::Sandbox::User "root";',
                'APT::Architecture "amd64";',
                'Acquire::Check-Valid-Until "false";',  # a release nobody signs any more is still wanted
                'Acquire::Languages "none";',
                "",
            ]
        )

    def newest(self, series: str) -> str | None:
        """Return the release (as `uname -r` says it) of the newest cloud kernel of a series, or None."""
        pattern = f"^linux-image-{SERIES[series]}-cloud-amd64$"
        names = self.apt("apt-cache", "pkgnames", "linux-image-").split()
        releases = [name.removeprefix("linux-image-") for name in names if re.fullmatch(pattern, name)]
        return max(releases, key=_numbers, default=None)

    def _candidate(self, package: str) -> str | None:
        policy = re.search(r"Candidate: (\S+)", self.apt("apt-cache", "policy", package))
        return policy[1] if policy and policy[1] != "(none)" else None

    def unpack(self, release: str, target: Path) -> None:
        """Download the packages of a kernel and unpack them below `target`.

        From 6.19 on Debian splits them: linux-binary (the image), linux-modules, linux-base (config).
        """
        image = f"linux-image-{release}"
        version = self._candidate(image)
        depends = re.search(
            r"^Depends: (.*)$", self.apt("apt-cache", "show", f"{image}={version}"), re.MULTILINE
        )
        parts = re.findall(r"linux-(?:binary|modules|base)-\d[^ ,]*", depends[1] if depends else "")
        wanted = [image, *(part for part in parts if self._candidate(part) == version)]
        fresh = Path(tempfile.mkdtemp(prefix=f".{release}.", dir=target.parent))
        try:
            with tempfile.TemporaryDirectory(dir=target.parent) as debs:
                self.apt(
                    "apt-get", "-qq", "download", *(f"{name}={version}" for name in wanted), cwd=Path(debs)
                )
                for deb in sorted(Path(debs).glob("*.deb")):
                    subprocess.run(["dpkg-deb", "-x", deb, fresh], check=True)
            _one_layout(fresh, release)
            subprocess.run(["depmod", "-b", fresh, release], check=True)
            shutil.rmtree(target, ignore_errors=True)
            fresh.chmod(0o755)
            fresh.rename(target)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)


def _numbers(release: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", release)]


def _one_layout(root: Path, release: str) -> None:
    """Give every kernel lib/modules/RELEASE, usr/lib/modules/RELEASE and boot/vmlinuz-RELEASE."""
    old, merged = root / "lib/modules", root / "usr/lib/modules"
    for there, missing, link in ((old, merged, "../../lib/modules"), (merged, old, "../usr/lib/modules")):
        if there.is_dir() and not missing.exists():
            missing.parent.mkdir(parents=True, exist_ok=True)
            missing.symlink_to(link)
    image = root / f"boot/vmlinuz-{release}"
    if not image.exists() and (old / release / "vmlinuz").exists():
        image.parent.mkdir(exist_ok=True)
        image.symlink_to(f"../lib/modules/{release}/vmlinuz")
    if not image.exists() or not (old / release).is_dir():
        raise KernelError(f"{release}: the packages hold no image or no modules")


def fetch(cache: Path, series: list[str]) -> tuple[list[Kernel], list[str]]:
    """Have the newest kernel of each series in `cache`; return them, and a line for each not to be had.

    When the mirror cannot be reached, the newest kernel of the series in the cache will do, and is noted.
    """
    cache = cache.resolve()
    cache.mkdir(parents=True, exist_ok=True)
    mirror = Mirror(cache / "apt")
    trouble = mirror.refresh()
    kernels, missing = [], []
    for name in series:
        try:
            release, note = mirror.newest(name), ""
        except (KernelError, OSError) as problem:
            release, note = None, str(problem)
        if release is None:
            cached = [path.name for path in cache.glob("*-cloud-amd64") if re.match(SERIES[name], path.name)]
            release = max(cached, key=_numbers, default=None)
            note = "from the cache: the mirror no longer serves this series, or was not reached"
        if release is None:
            missing.append(f"series {name}: the mirror serves no such kernel. {trouble}".strip())
            continue
        if not (cache / release).is_dir():
            print(f"matrix: fetching {release}", flush=True)
            try:
                mirror.unpack(release, cache / release)
            except KernelError as problem:
                missing.append(f"series {name}: {problem}")
                continue
        kernels.append(Kernel(name, release, cache / release, note))
    return kernels, missing
