"""Where the files beside the Python code go, relative to a prefix: one table for wheel, install and .deb."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

# (directory of the checkout, pattern, directory below the prefix)
_PLACES = (
    ("man", "*.[1-9]", "share/man/man{section}"),
    ("completions", "*.bash", "share/bash-completion/completions"),
    ("completions", "_*", "share/zsh/site-functions"),
    ("completions", "*.fish", "share/fish/vendor_completions.d"),
    ("completions/bash", "*", "share/bash-completion/completions"),
    ("completions/zsh", "_*", "share/zsh/site-functions"),
    ("completions/fish", "*.fish", "share/fish/vendor_completions.d"),
    ("deploy/systemd", "*.service", "lib/systemd/system"),
    ("deploy/systemd", "*.socket", "lib/systemd/system"),
    ("deploy/systemd", "*.timer", "lib/systemd/system"),
    ("deploy/systemd", "*.path", "lib/systemd/system"),
    ("deploy/systemd", "*.sysusers", "lib/sysusers.d"),
    ("deploy/systemd", "*.sysusers.conf", "lib/sysusers.d"),
    ("deploy/sysusers.d", "*.conf", "lib/sysusers.d"),
    ("deploy/udev", "*.rules", "lib/udev/rules.d"),
    ("deploy/cni", "svcctl-cni", "lib/cni"),
    *(
        (f"deploy/networkd-dispatcher/{state}.d", "[0-9]*-*", f"lib/networkd-dispatcher/{state}.d")
        for state in ("carrier", "degraded", "routable")
    ),
)


def is_program(source: Path) -> bool:
    """Whether a file is to be run, by its first two bytes: a checkout may have lost the modes."""
    with source.open("rb") as file:
        return file.read(2) == b"#!"


def layout(root: Path) -> Iterator[tuple[Path, str]]:
    """Yield (file, path below the prefix), sorted; what does not exist is left out.

    bash looks a completion up by the command's name, so `svcctl.bash` becomes `svcctl`; sysusers.d reads
    only names that end in `.conf`. Files named `example-*` are documentation, not units.
    """
    seen: dict[str, Path] = {}
    for directory, pattern, target in _PLACES:
        for source in sorted((root / directory).glob(pattern)):
            if not source.is_file() or source.name.startswith(("example-", ".")):
                continue
            name = source.name.removesuffix(".bash")
            if target.endswith("sysusers.d"):
                name = name.removesuffix(".conf").removesuffix(".sysusers") + ".conf"
            seen[f"{target.format(section=source.suffix[1:])}/{name}"] = source
    for target, source in sorted(seen.items()):
        yield source, target
