"""The guard at the end of a test session: what it must not take for its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from svcctl.host import cgroup
from tests.lib.guard import cgroup_name

ROOT = Path(__file__).parents[2]
# Imported while the inner session collects, after it began: what another process of the outer session does meanwhile.
MEANWHILE = """
import os
os.mkdir({path!r})
def test_nothing():
    pass
"""


def test_collecting_beside_a_session_at_work(tmp_path: Path) -> None:
    """A session that only collects, started by a test, has nothing to say about what the others make meanwhile."""
    made = f"{cgroup.mount_point()}/{cgroup_name('test')}"
    (tmp_path / "test_meanwhile.py").write_text(MEANWHILE.format(path=made))
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "-p", "tests.conftest", "--rootdir", tmp_path, tmp_path],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    os.rmdir(made)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "test_meanwhile.py::test_nothing" in done.stdout
