"""Write the completion scripts for bash, zsh and fish into completions/ (`make completions`)."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from svcctl.cli.shell import write  # noqa: E402

if __name__ == "__main__":
    write(str(ROOT / "completions"))
