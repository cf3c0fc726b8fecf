"""Processes know whether another still runs, and do not outlive those they work for."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from minari_pipe.errors import ConfigError
from minari_pipe.pipeline.processes import DRIVER_VARIABLE, exclusive, identity, is_alive
from tests.support.interruption import wait_until


def sleeping() -> subprocess.Popen:
    """A process that lives until it is killed, as each test does with it."""
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])


def test_a_process_is_alive_until_it_is_gone_even_if_nobody_reaped_it():
    process = sleeping()
    known = identity(psutil.Process(process.pid))
    assert is_alive(known)
    process.kill()
    wait_until(lambda: not is_alive(known), 5, lambda: "a zombie is alive")
    process.wait()
    assert not is_alive(known)


def test_another_process_with_the_same_pid_is_not_the_same():
    pid, _, started = identity(psutil.Process()).partition(":")
    assert is_alive(f"{pid}:{started}")
    assert not is_alive(f"{pid}:{started}1")
    for nonsense in ("", "x", f"{pid}", f"{pid}:", "0:0", "99999999999:1"):
        assert not is_alive(nonsense)


def test_setting_the_clock_does_not_make_a_process_another(monkeypatch):
    known = identity(psutil.Process())
    # What psutil adds to a process's start; it follows the wall clock.
    monkeypatch.setattr("psutil._pslinux.boot_time", lambda: 12345.0, raising=False)
    assert is_alive(known)


STAGE = """
import sys, time
from minari_pipe.pipeline.processes import stop_with_ancestors
stop_with_ancestors()
print("runs", flush=True)
time.sleep(60)
"""


def start(argv: list[str], driver: str | None = None, **kwargs: Any) -> subprocess.Popen:
    variables = {k: v for k, v in os.environ.items() if k != DRIVER_VARIABLE}
    if driver is not None:
        variables[DRIVER_VARIABLE] = driver
    return subprocess.Popen(argv, env=variables, stdout=subprocess.PIPE, text=True, **kwargs)


def gone(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def test_a_stage_ends_with_its_driver():
    driver = sleeping()
    stage = start([sys.executable, "-c", STAGE], identity(psutil.Process(driver.pid)))
    assert stage.stdout.readline() == "runs\n"
    driver.kill()
    assert stage.wait(timeout=5) == 143
    driver.wait()
    stage.stdout.close()


def test_a_stage_of_a_driver_that_is_gone_does_not_begin():
    stage = start([sys.executable, "-c", STAGE], "1:1")
    assert stage.communicate(timeout=30) == ("", None)
    assert stage.returncode == 143


@pytest.mark.parametrize("victim", ["shell", "parent of the shell"])
def test_a_stage_ends_with_its_shell_and_with_what_started_that(victim, tmp_path):
    script = tmp_path / "stage.py"
    script.write_text(STAGE)
    command = f'"{sys.executable}" "{script}"; exit $?'
    parent = f"import subprocess; subprocess.run(['/bin/sh', '-c', {command!r}])"
    above = start([sys.executable, "-c", parent])
    assert above.stdout.readline() == "runs\n"
    shell = psutil.Process(above.pid).children()[0]
    stage = shell.children()[0]
    (shell if victim == "shell" else above).kill()
    wait_until(lambda: gone(stage), 5, lambda: "the stage outlives its ancestors")
    above.wait()
    above.stdout.close()


NOTICING = """
import subprocess, sys
from minari_pipe.pipeline.processes import stop_with_ancestors
stop_with_ancestors()
children = [subprocess.Popen(["sleep", "60"], stdout=subprocess.DEVNULL) for _ in range(60)]
print("runs", flush=True)
children[0].wait()
while True:
    print("a child died", flush=True)
    print("a child died", file=sys.stderr, flush=True)
"""


def test_a_stage_that_ends_with_its_driver_tells_nothing_of_the_children_it_takes_along():
    driver = sleeping()
    known = identity(psutil.Process(driver.pid))
    stage = start([sys.executable, "-c", NOTICING], known, stderr=subprocess.PIPE)
    assert stage.stdout.readline() == "runs\n"
    driver.kill()
    assert stage.communicate(timeout=10) == ("", "")
    assert stage.returncode == 143
    driver.wait()


HOLD = """
import sys, time
from pathlib import Path
from minari_pipe.pipeline.processes import exclusive
with exclusive(Path(sys.argv[1]), wait_seconds=0, busy=""):
    print("holds", flush=True)
    time.sleep(60)
"""


FAILS = """
import os, signal
from minari_pipe.pipeline.processes import identity, is_alive
from minari_pipe.pipeline.execution.stage import run_stage
import psutil
shell = identity(psutil.Process().parent())

def body(run):
    os.kill(os.getppid(), signal.SIGKILL)
    while is_alive(shell):
        pass
    raise RuntimeError("its folder was cleared")

run_stage("collect", body)
"""


def test_a_stage_without_its_shell_tells_no_error_of_its_own(tmp_path):
    """What started the shell tells how it ended; it may clear away the stage's files meanwhile."""
    (tmp_path / "conf").mkdir()
    folder = tmp_path / "pipelines" / "x"
    folder.mkdir(parents=True)
    (folder / "params.yaml").write_text(
        "{env: {id: X-v0}, family: {}, policy: {_target_: x}, ref_scores: {}, packages: {}}\n"
    )
    entry = {"cmd": "", "params": [{"pipelines/x/params.yaml": ["env"]}]}
    (folder / "dvc.yaml").write_text(json.dumps({"stages": {"collect": entry}}))
    shell = start(
        ["sh", "-c", f"{shlex.quote(sys.executable)} -c '{FAILS}' x; :"],
        stderr=subprocess.PIPE,
        cwd=tmp_path,
    )
    out, err = shell.communicate(timeout=60)
    assert shell.returncode == -signal.SIGKILL, err
    assert (out, err) == ("", "")


def test_a_lock_is_held_by_one_and_freed_by_death(tmp_path):
    path = tmp_path / "a" / "lock"
    argv = [sys.executable, "-c", HOLD, str(path)]
    holder = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "holds\n"
    began = time.monotonic()
    with (
        pytest.raises(ConfigError, match="it is busy"),
        exclusive(path, wait_seconds=0.3, busy="it is busy"),
    ):
        pass
    assert time.monotonic() - began >= 0.3
    holder.send_signal(signal.SIGKILL)
    with exclusive(path, wait_seconds=5, busy="it is busy"):
        pass
    holder.wait()
    holder.stdout.close()


def test_a_lock_is_not_inherited(tmp_path):
    path = tmp_path / "lock"
    with exclusive(path, wait_seconds=0, busy=""):
        child = sleeping()
    with exclusive(path, wait_seconds=0, busy="the child holds it"):
        pass
    child.kill()
    child.wait()
    assert Path(path).exists()
