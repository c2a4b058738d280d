"""The man pages as readers get them: every tool that shows them is content, and the usual sections are there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.lib.cli import ROOT

if TYPE_CHECKING:
    from pathlib import Path

PAGES = sorted((ROOT / "man").glob("*.[1-9]"))
COMMAND_PAGES = [page for page in PAGES if page.suffix == ".8"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_mandoc_warns_of_nothing(page: Path) -> None:
    if shutil.which("mandoc") is None:
        pytest.skip("mandoc is not installed")
    done = subprocess.run(
        ["mandoc", "-T", "lint", "-W", "warning", str(page)], text=True, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_man_shows_it(page: Path) -> None:
    if shutil.which("man") is None:
        pytest.skip("man is not installed")
    done = subprocess.run(
        ["man", "--warnings", "-l", str(page)],
        text=True,
        capture_output=True,
        check=False,
        env={**os.environ, "LC_ALL": "C.UTF-8", "MANWIDTH": "80", "MANPAGER": "cat", "PAGER": "cat"},
    )
    assert (done.returncode, done.stderr) == (0, "")
    if "minimized" in done.stdout:  # what a stripped-down system has in place of man
        pytest.skip("man is not installed")
    assert page.stem in done.stdout
    assert "\\" not in done.stdout.replace("\\\\", "").replace('\\"', "")


@pytest.mark.parametrize("page", COMMAND_PAGES, ids=lambda page: page.name)
def test_sections(page: Path) -> None:
    sections = re.findall(r"^\.SH (.+)$", page.read_text(), re.M)
    wanted = ["NAME", "SYNOPSIS", "DESCRIPTION", "EXIT STATUS", "ENVIRONMENT", "EXAMPLES", "SEE ALSO"]
    assert [name for name in sections if name in wanted] == wanted
    assert sections[-1] == "SEE ALSO"


def test_every_page_can_be_found_from_the_first() -> None:
    first = (ROOT / "man" / "svcctl.8").read_text().replace("\\-", "-")
    for page in PAGES:
        if page.stem != "svcctl":
            assert f".BR {page.stem} ({page.suffix[1:]})" in first
