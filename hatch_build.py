"""The build hook: compiles the BPF objects and lays out what a wheel installs beside the Python code."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.config import BuilderConfig
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).resolve().parent / "scripts"))

import build_objects
import shared_data


class ObjectsHook(BuildHookInterface[BuilderConfig]):
    """Runs for wheels, editable installs included; a source distribution carries sources only."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, then add man pages, completions and units under the wheel's data directory."""
        if self.target_name != "wheel":
            return
        root = Path(self.root)
        try:
            build_objects.build(root)
        except build_objects.BuildError as problem:
            raise SystemExit(f"svcctl: {problem}") from None
        if version == "editable":
            return
        build_data["shared_data"].update(
            {str(source.relative_to(root)): target for source, target in shared_data.layout(root)}
        )
