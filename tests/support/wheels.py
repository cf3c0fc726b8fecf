"""The wheel, built once, and a virtual environment that has it."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import CHECKOUT
from tests.support.repositories import Workspace

PATH = os.pathsep.join(["/usr/local/bin", "/usr/bin", "/bin"])
"""Where a user's shell looks for commands; the virtual environment is never activated."""


@functools.cache
def built_wheel(folder: Path) -> Path:
    """The wheel of this checkout, in ``folder``."""
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder)]
    done = subprocess.run(
        [*command, str(CHECKOUT)], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = folder.glob("*.whl")
    return found


@dataclass(frozen=True)
class Installed:
    """The wheel in a virtual environment of its own."""

    bin: Path

    @property
    def python(self) -> str:
        return str(self.bin / "python")

    def run(self, workspace: Workspace, *command: str, folder: str = ".") -> str:
        """Run a command of the virtual environment in a workspace."""
        program, *arguments = command
        return workspace.run(str(self.bin / program), *arguments, folder=folder, PATH=PATH)


@functools.cache
def installed_wheel(folder: Path) -> Installed:
    """Install the wheel below ``folder``, far from the checkout."""
    wheel, place = built_wheel(folder / "wheel"), folder / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    python = str(place / "bin" / "python")
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    found = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    # The dependencies without the network; a plain path does not activate the editable install.
    dependencies = Path(found.stdout.strip()) / "dependencies.pth"
    dependencies.write_text(sysconfig.get_path("purelib") + "\n")
    pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check"]
    install = ["install", "--quiet", "--no-index", "--no-deps", "--ignore-installed", str(wheel)]
    subprocess.run([*pip, *install], check=True, timeout=600)
    return Installed(place / "bin")
