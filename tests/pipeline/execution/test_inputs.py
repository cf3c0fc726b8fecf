"""What a stage records is what it used: an edit while it runs makes it fail, even if undone."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from minari_pipe.core.files.atomic import sha256_file
from minari_pipe.errors import ConfigError
from minari_pipe.pipeline.execution.engines.local import LocalEngine
from minari_pipe.pipeline.execution.inputs import Inputs
from minari_pipe.pipeline.execution.progress import Progress
from minari_pipe.pipeline.execution.scheduler import make_scheduler
from minari_pipe.pipeline.execution.stage import StageRun
from tests.conftest import CHECKOUT, FULL
from tests.pipeline.run.test_stages_rerun import MINE
from tests.support import forks
from tests.support.interruption import BARRIER
from tests.support.repositories import Workspace, dvc_workspace

MY_POLICY = """\
import os
from pathlib import Path

HERE = Path(__file__).parent


def balance(observation, gain):
    try:
        os.rename(HERE / "edit", HERE / "edited")  # by one worker
        exec((HERE / "edited").read_text(), globals())
    except FileNotFoundError:
        pass
    from my_package.rules import side

    return side(gain * observation[2])
"""

RULES = """\
def side(angle):
    return int(angle > 0.0)
"""

TRUSTED = {"MINARI_PIPE_TRUSTED_MODULES": "my_policy"}


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Workspace:
    workspace = dvc_workspace(tmp_path_factory.mktemp("inputs"), mine=MINE)
    (workspace.root / "my_package").mkdir()
    (workspace.root / "my_package" / "rules.py").write_text(RULES)
    (workspace.root / "my_policy.py").write_text(MY_POLICY)
    (workspace.root / "demos").mkdir()
    (workspace.root / "demos" / "one.npz").touch()
    workspace.pipe("+dataset=mine", **TRUSTED)
    return workspace


@pytest.fixture
def workspace(made: Workspace, tmp_path: Path) -> Workspace:
    return made.copy(tmp_path)


def stage(workspace: Workspace, name: str, **environment: str) -> tuple[int, str]:
    """Run a stage as DVC does; its exit code and what it said."""
    command = (sys.executable, "-m", f"minari_pipe.pipeline.stages.{name}", "mine")
    done = workspace.call(*command, **TRUSTED, **environment)
    return done.returncode, done.stdout


def append(file: Path) -> None:
    with file.open("a") as opened:
        opened.write("\n")


def refused(workspace: Workspace, name: str, what: str, **environment: str) -> None:
    code, output = stage(workspace, name, **environment)
    assert code == 1
    assert output.endswith(f"error: {name}: {what} changed while {name} ran; run again\n")


EDITS = {
    "the module itself": ("my_policy.py", "open(HERE / 'my_policy.py', 'a').write('# new')"),
    "a module of a package that is imported later": (
        "my_package/rules.py",
        "open(HERE / 'my_package/rules.py', 'a').write('# new')",
    ),
    "taken back": (
        "my_package/rules.py",
        "path = HERE / 'my_package/rules.py'; old, times = path.read_text(), os.stat(path)\n"
        "path.write_text(old.replace('>', '<'))\n"
        "import my_package.rules\n"
        "path.write_text(old); os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))",
    ),
    "a file that is there for a while": (
        "demos",
        "(HERE / 'demos' / 'two.npz').touch(); (HERE / 'demos' / 'two.npz').unlink()",
    ),
    "a folder that is another for a while": (
        "demos",
        "os.rename(HERE / 'demos', HERE / 'aside'); (HERE / 'demos').mkdir()\n"
        "(HERE / 'demos').rmdir(); os.rename(HERE / 'aside', HERE / 'demos')",
    ),
    "a folder above, another for a while": (
        "above",
        "above = HERE / 'above'; os.rename(above, HERE / 'aside'); above.mkdir()\n"
        "above.rmdir(); os.rename(HERE / 'aside', above)",
    ),
    "a file of a folder": (
        "demos/one.npz",
        "open(HERE / 'demos/one.npz', 'a').write('more')",
    ),
    "the parameters": (
        "pipelines/mine/params.yaml",
        "open(HERE / 'pipelines/mine/params.yaml', 'a').write('# new')",
    ),
}


@pytest.mark.parametrize(
    ("engine", "kind"), [*(("local", kind) for kind in EDITS), ("processes", "taken back")]
)
def test_an_edit_while_collect_runs_makes_it_fail(engine, kind, workspace):
    what, edit = EDITS[kind]
    if engine != "local":
        workspace.replace("pipelines/mine/params.yaml", "name: local", f"name: {engine}")
        workspace.replace("pipelines/mine/params.yaml", "n_workers: null", "n_workers: 2")
    workspace.replace(
        "pipelines/mine/dvc.yaml",
        "- my_policy.py\n",
        "- my_policy.py\n    - demos\n    - above/inner/table.txt\n",
    )
    (workspace.root / "above" / "inner").mkdir(parents=True)
    (workspace.root / "above" / "inner" / "table.txt").touch()
    (workspace.root / "edit").write_text(edit)
    refused(workspace, "collect", what)


def paused(
    workspace: Workspace, folder: Path, barrier: dict, edit: Callable[[], object], *command: str
) -> tuple[int, str]:
    """Run a command, and edit something once its process comes to ``barrier``."""
    folder.mkdir()
    spec = {"folder": str(folder), "do": "pause", **barrier}
    environment = workspace.environment(
        **TRUSTED, PYTHONPATH=str(BARRIER), MINARI_PIPE_TEST_BARRIER=json.dumps(spec)
    )
    process = forks.start(command, workspace.root, environment, stderr=subprocess.STDOUT)
    deadline = time.monotonic() + 120
    while not (folder / "reached").exists() and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    edit()
    (folder / "go").touch()
    output, _ = process.communicate(timeout=120)
    return process.returncode, output


READ = {
    "create": (
        "episodes/episodes.json",
        "minari_pipe.storage.hdf5.storage:HDF5Storage.update_episodes",
    ),
    "ref_scores": ("params.yaml", "minari_pipe.pipeline.execution.measurement:measured"),
    "validate": ("ref_scores.json", "minari_pipe.datasets.identity:content_sha256"),
    "publish": ("validation.json", "minari_pipe.datasets.identity:manifest"),
}


@pytest.mark.parametrize("name", READ)
def test_an_edit_of_what_a_stage_reads_makes_it_fail(name, workspace, tmp_path):
    what, target = READ[name]
    file = workspace.root / "pipelines" / "mine" / what
    command = (sys.executable, "-m", f"minari_pipe.pipeline.stages.{name}", "mine")
    barrier = {"role": name, "target": target}
    code, output = paused(workspace, tmp_path / "talk", barrier, lambda: append(file), *command)
    assert (code, output.splitlines()[-1]) == (
        1,
        f"error: {name}: pipelines/mine/{what} changed while {name} ran; run again",
    )


def test_an_edit_after_a_stage_and_before_dvc_hashes_is_not_recorded(workspace, tmp_path):
    policy = workspace.root / "my_policy.py"
    workspace.replace("my_policy.py", "import os", "import os  # edited")

    command = (sys.executable, "-m", "minari_pipe", "+dataset=mine")
    barrier = {"role": "driver", "target": "dvc.stage:Stage.save"}
    code, output = paused(workspace, tmp_path / "talk", barrier, lambda: append(policy), *command)
    assert code == 1
    assert "error: my_policy.py changed while collect ran; run again\n" in output
    assert "collect" in workspace.pipe("+dataset=mine", **TRUSTED)
    assert workspace.pipe("+dataset=mine", **TRUSTED) == []


def test_what_dvc_does_to_an_object_of_its_cache_is_no_edit(tmp_path):
    told, folder = tmp_path / "object", tmp_path / "episodes"
    told.write_text("0")
    folder.mkdir()
    (folder / "block").symlink_to(told)
    inputs = Inputs("create", tmp_path, ["episodes"])
    told.chmod(0o444)
    (tmp_path / "another name").hardlink_to(told)
    inputs.check_files()
    told.chmod(0o644)
    append(told)
    with pytest.raises(ConfigError, match="episodes/block changed while create ran"):
        inputs.check_files()


@pytest.mark.usefixtures("real_processes")
def test_bytecode_beside_a_source_is_not_run(workspace):
    source = workspace.root / "my_package" / "rules.py"
    stat = source.stat()
    source.write_text(RULES.replace("0.0", "9.9"))  # never to the right
    os.utime(source, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    script = f"import py_compile; py_compile.compile({str(source)!r})"
    subprocess.run([sys.executable, "-c", script], check=True)
    source.write_text(RULES)
    os.utime(source, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert Path(importlib.util.cache_from_source(str(source))).is_file()
    before = (workspace.root / "pipelines/mine/returns.csv").read_bytes()
    for name in ("collect", "create"):
        code, output = stage(workspace, name)
        assert code == 0, output
    assert (workspace.root / "pipelines/mine/returns.csv").read_bytes() == before


def test_a_module_that_nothing_names_is_refused_and_one_that_a_text_names_is_read(workspace):
    (workspace.root / "other.py").write_text(RULES)
    late = "import importlib; side = importlib.import_module('oth' + 'er').side"
    workspace.replace("my_policy.py", "from my_package.rules import side", late)
    assert "No module named 'other'" in workspace.refused("+dataset=mine", **TRUSTED)
    trusted = {"MINARI_PIPE_TRUSTED_MODULES": "my_policy,other"}
    told = workspace.refused("+dataset=mine", **trusted)
    assert "other.py, which no import statement names" in told
    workspace.replace("my_policy.py", "'oth' + 'er'", "'other'")
    assert "collect" in workspace.pipe("+dataset=mine", **TRUSTED)
    append(workspace.root / "other.py")
    assert "collect" in workspace.pipe("+dataset=mine", **TRUSTED)


def test_an_edit_in_another_folder_of_the_import_path_or_in_a_named_place_is_seen(
    workspace, tmp_path
):
    rules = tmp_path / "lib" / "rules_of_lib.py"
    rules.parent.mkdir()
    rules.write_text(RULES)
    environment = {**TRUSTED, "PYTHONPATH": os.pathsep.join([str(rules.parent), str(CHECKOUT)])}
    workspace.replace("my_policy.py", "my_package.rules", "rules_of_lib")
    assert "collect" in workspace.pipe("+dataset=mine", **environment)
    append(rules)
    assert "collect" in workspace.pipe("+dataset=mine", **environment)

    workspace.replace("my_policy.py", "gain):", "gain, tables, table):")
    tables = workspace.root / "tables" / "inner"
    tables.mkdir(parents=True)
    (tables / "a.txt").write_text("1")
    (workspace.root / "table.txt").write_text("1")
    named = ("+policy.controller.tables=tables", "+policy.controller.table=./table.txt")
    assert "collect" in workspace.pipe("+dataset=mine", *named, **environment)
    for place in (tables / "a.txt", workspace.root / "table.txt"):
        place.write_text("2")
        assert "collect" in workspace.pipe("+dataset=mine", *named, **environment)
    assert workspace.pipe("+dataset=mine", *named, **environment) == []


def test_a_module_of_a_workspace_on_the_import_path_is_refused_if_nothing_names_it(workspace):
    (workspace.root / "other.py").write_text(RULES)
    late = "import importlib; side = importlib.import_module('oth' + 'er').side"
    workspace.replace("my_policy.py", "from my_package.rules import side", late)
    environment = {**TRUSTED, "PYTHONPATH": os.pathsep.join([str(workspace.root), str(CHECKOUT)])}
    told = workspace.refused("+dataset=mine", **environment)
    assert "other.py, which no import statement names" in told


def rewrite(file: Path, text: str) -> None:
    """Change the first bytes of a file, but not its inode, size and modification time."""
    before = file.stat()
    with file.open("r+") as opened:
        opened.write(text)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = file.stat()
    assert (before.st_ino, before.st_size) == (after.st_ino, after.st_size)


def test_an_edit_that_keeps_size_and_time_is_seen(workspace):
    named = ("+policy.controller.tables=tables", "+policy.controller.table=table.txt")
    workspace.replace("my_policy.py", "gain):", "gain, tables, table):")
    rules, table = workspace.root / "my_package" / "rules.py", workspace.root / "table.txt"
    large = workspace.root / "tables" / "inner" / "large.bin"
    large.parent.mkdir(parents=True)
    large.write_bytes(bytes(2**24 + 1))
    table.write_text("1")
    os.utime(rules, (2**32, 2**32))  # in the future
    os.utime(table, (1, 1))
    assert "collect" in workspace.pipe("+dataset=mine", *named, **TRUSTED)
    for edited, text in ((rules, "def  side("), (table, "2"), (large, "2")):
        before = edited.read_text()[: len(text)]
        rewrite(edited, text)
        told = workspace.dry_run("+dataset=mine", *named, **TRUSTED)
        name = "tables" if edited == large else edited.name
        assert any("collect" in line and name in line for line in told), told
        rewrite(edited, before)
    told = workspace.dry_run("+dataset=mine", *named, **TRUSTED)
    assert "mine: collect is up to date" in told
    rewrite(large, "2")
    assert "collect" in workspace.pipe("+dataset=mine", *named, **TRUSTED)


def test_a_node_of_a_cluster_must_have_the_files_that_arguments_name(workspace):
    named = ("+policy.controller.tables=tables", "+policy.controller.table=table.txt")
    workspace.replace("my_policy.py", "gain):", "gain, tables, table):")
    files = [workspace.root / "table.txt", workspace.root / "tables" / "inner" / "one"]
    files[1].parent.mkdir(parents=True)
    for file in files:
        file.write_text(file.name)
    workspace.pipe("+dataset=mine", *named, **TRUSTED)
    run = StageRun(
        "collect",
        "mine",
        workspace.root,
        yaml.safe_load((workspace.root / "pipelines" / "mine" / "params.yaml").read_text()),
    )
    for storage in (None, "s3://blocks/ray"):
        run.values["engine"] |= {"name": "ray", "address": "10.0.0.1:6379", "storage": storage}
        made = make_scheduler(
            run, LocalEngine(run.params.engine), "blocks", ".x", "", [], Progress("", print)
        )
        expected = made.place.expected
        assert expected is not None
        assert expected.files == {str(file): sha256_file(file) for file in files}
        expected.check()
        other = {str(workspace.root / "other"): expected.files[str(files[0])]}
        with pytest.raises(ConfigError, match="other differs between .*; copy the same file to bo"):
            replace(expected, files=other, node="another").check()


def test_a_flipped_bit_of_a_published_file_is_seen_and_mended(workspace):
    data = next((workspace.root / "datasets").rglob("main_data.hdf5"))
    good = data.read_bytes()
    rewrite(data, "?")
    assert "publish" in workspace.pipe("+dataset=mine", **TRUSTED)
    assert data.read_bytes() == good


def test_a_named_folder_is_a_dependency_wherever_it_lies(workspace):
    places = (".hidden", "conf", "pipelines/tables")
    files = [workspace.root / place / "a.txt" for place in places]
    for file in files:
        file.parent.mkdir(exist_ok=True)
        file.touch()
    workspace.replace("my_policy.py", "gain):", "gain, tables):")
    named = f"tables: {json.dumps(dict.fromkeys(places, 1))}, gain"  # keys name them
    workspace.replace("conf/dataset/mine.yaml", "gain", named)
    assert "collect" in workspace.pipe("+dataset=mine", **TRUSTED)
    for file in files:
        append(file)
        assert "collect" in workspace.pipe("+dataset=mine", **TRUSTED)
    assert workspace.pipe("+dataset=mine", **TRUSTED) == []


def ignoring(pattern: str) -> Callable[[Path], object]:
    return lambda tables: (tables / ".dvcignore").write_text(pattern)


def make_git_repository(root: Path) -> None:
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    config = root / ".dvc" / "config"
    config.write_text(config.read_text().replace("no_scm = true", ""))


def ignoring_in_git(file: str) -> Callable[[Path], object]:
    def plant(tables: Path) -> None:
        make_git_repository(tables.parent)
        (tables.parent / file).write_text("*a" * 25 + "b")

    return plant


def subrepository(tables: Path) -> None:
    (tables / "inner" / ".dvc").mkdir(parents=True)
    (tables / "inner" / "a.txt").touch()


def mercurial(tables: Path) -> None:
    (tables / ".hg").mkdir()
    (tables / ".hg" / "a.txt").touch()


HIDDEN = {
    "a link to a file": (lambda t: (t / "link").symlink_to(__file__), "link is a symlink to"),
    "a link to a folder": (lambda t: (t / "link").symlink_to("/"), "link is a symlink to"),
    "a broken link": (lambda t: (t / "link").symlink_to("nowhere"), "link is a symlink to"),
    "a pipe": (lambda t: os.mkfifo(t / "pipe"), "tables/pipe is not a regular file"),
    "by its own rules": (ignoring("a.txt"), "tables/a.txt is hidden from DVC"),
    "by rules above": (
        lambda t: (t.parent / ".dvcignore").write_text("*.txt"),
        "tables/a.txt is hidden from DVC",
    ),
    "by rules that are no text": (
        lambda t: (t.parent / ".dvcignore").write_bytes(b"\xff"),
        "work/.dvcignore is no UTF-8 text",
    ),
    "by own rules that are no text": (
        lambda t: (t / ".dvcignore").mkdir(),
        "a .dvcignore in tables is no UTF-8 text",
    ),
    "by rules that take hours": (
        lambda t: (t.parent / ".dvcignore").write_text("*a" * 25 + "b"),
        "work/.dvcignore: the pattern '*a*a*a*",
    ),
    "by own rules that take hours": (
        ignoring("*a" * 25 + "b"),
        "tables/.dvcignore: the pattern '*a*a*a*",
    ),
    "by git's rules that take hours": (
        ignoring_in_git("pipelines/.gitignore"),
        "work/pipelines/.gitignore: the pattern '*a*a*a*",
    ),
    "by git's rules for one clone that take hours": (
        ignoring_in_git(".git/info/exclude"),
        "work/.git/info/exclude: the pattern '*a*a*a*",
    ),
    "by rules behind a link": (
        lambda t: (t.parent / "models" / ".dvcignore").symlink_to(__file__),
        "models/.dvcignore is a symlink to",
    ),
    "by rules in a pipe": (
        lambda t: os.mkfifo(t.parent / "models" / ".dvcignore"),
        "models/.dvcignore is not a regular file; remove it",
    ),
    "in .hg": (mercurial, "tables/.hg/a.txt is hidden from DVC"),
    "an empty folder": (lambda t: (t / "inner").mkdir(), "tables/inner is an empty folder"),
    "in a repository": (subrepository, "tables/inner/a.txt is hidden from DVC"),
    "a name that is no text": (
        lambda t: Path(os.fsdecode(os.fsencode(t) + b"/\xff")).touch(),
        r"'tables/\udcff': DVC reads no name that",
    ),
}


@pytest.mark.parametrize(("plant", "told"), HIDDEN.values(), ids=HIDDEN)
def test_what_dvc_would_not_see_of_a_named_folder_is_refused(plant, told, workspace):
    tables = workspace.root / "tables"
    tables.mkdir()
    (tables / "a.txt").touch()
    (workspace.root / "models" / "arm").mkdir(parents=True)
    (workspace.root / "models" / "arm" / "arm.bin").touch()
    plant(tables)
    workspace.replace("my_policy.py", "gain):", "gain, tables, models):")
    kinds = [(), ("--dry-run",)] if FULL or "pipe" in told else [()]
    for kind in kinds:
        said = workspace.refused(
            "+dataset=mine",
            "+policy.controller.tables=tables",
            "+policy.controller.models=models/arm",
            *kind,
            **TRUSTED,
        )
        assert told in said
        assert len(said.splitlines()) == 1, said


def test_the_users_own_rules_of_git_may_have_any_asterisks(workspace, tmp_path):
    make_git_repository(workspace.root)
    (tmp_path / "settings" / "git").mkdir(parents=True)
    (tmp_path / "settings" / "git" / "ignore").write_text("*a*b*c*d*e")
    own = {"XDG_CONFIG_HOME": str(tmp_path / "settings")}
    assert workspace.pipe("+dataset=mine", **TRUSTED, **own) == []


def test_a_git_repository_may_be_named(workspace):
    tables = workspace.root / "tables"
    subprocess.run(["git", "init", "-q", str(tables)], check=True)
    (tables / "a.txt").touch()
    workspace.replace("my_policy.py", "gain):", "gain, tables):")
    named = "+policy.controller.tables=tables"
    assert "collect" in workspace.pipe("+dataset=mine", named, **TRUSTED)


@pytest.mark.parametrize(
    ("place", "told"),
    [
        ("datasets/tests", "holds"),
        ("datasets/tests/mine-v0/data/main_data.hdf5", "is in"),
        ("pipelines/mine", "is in"),
        ("./pipelines/mine/dataset/data", "is in"),
        ("pipelines/mine/dvc.lock", "is in"),
        ("catalog/tests/mine-v0.json", "is in"),
        ("./datasets", "holds"),
    ],
)
def test_a_pipeline_does_not_read_what_it_overwrites(place, told, workspace):
    workspace.replace("my_policy.py", "gain):", "gain, tables):")
    said = workspace.refused("+dataset=mine", f"+policy.controller.tables={place}", **TRUSTED)
    assert f"error: policy.controller.tables: '{place}' {told} {workspace.root}" in said
    assert "which this pipeline overwrites" in said


def test_a_file_that_is_gone_is_no_longer_a_dependency_and_its_stage_runs(workspace):
    (workspace.root / "tables").mkdir()
    (workspace.root / "tables" / "a.txt").touch()
    (workspace.root / "optional.py").touch()
    workspace.replace("my_policy.py", "gain):", "gain, tables, table):")
    with (workspace.root / "my_policy.py").open("a") as file:
        file.write("\ntry:\n    import optional\nexcept ImportError:\n    pass\n")
    (workspace.root / "table.txt").touch()
    named = ("+policy.controller.tables=tables", "+policy.controller.table=table.txt")
    assert "collect" in workspace.pipe("+dataset=mine", *named, **TRUSTED)
    gone = ("optional.py", "table.txt", "tables")
    for name in gone:
        (workspace.root / name).rename(workspace.home / name)
    told = workspace.dry_run("+dataset=mine", *named, **TRUSTED)
    reasons = ", ".join(f"{name} is no longer used" for name in gone)
    assert f"mine: collect would run: {reasons}" in told
    assert "collect" in workspace.pipe("+dataset=mine", *named, **TRUSTED)
    assert workspace.pipe("+dataset=mine", *named, **TRUSTED) == []


def test_an_edit_while_outputs_come_from_the_cache_is_seen_by_the_next_run(workspace):
    table = workspace.root / "table.txt"
    table.write_text("1")
    workspace.replace("my_policy.py", "gain):", "gain, table):")
    named = "+policy.controller.table=table.txt"
    assert "collect" in workspace.pipe("+dataset=mine", named, **TRUSTED)
    table.write_text("2")
    assert "collect" in workspace.pipe("+dataset=mine", named, **TRUSTED)
    table.write_text("1")
    edit = "import dvc.stage.cache as c, pathlib\n"
    edit += "restore = c.StageCache.restore\n"
    edit += "def edited(*a, **k):\n    restore(*a, **k)\n"
    edit += f"    pathlib.Path({str(table)!r}).write_text('2')\nc.StageCache.restore = edited\n"
    (workspace.home / "sitecustomize.py").write_text(edit)
    path = os.pathsep.join([str(workspace.home), str(CHECKOUT)])
    ran = workspace.pipe("+dataset=mine", named, **TRUSTED, PYTHONPATH=path)
    assert "collect" not in ran
    told = workspace.dry_run("+dataset=mine", named, **TRUSTED)
    assert "mine: collect is up to date" not in told


def test_a_module_of_a_subfolder_that_nothing_names_is_refused(workspace):
    (workspace.root / "lib").mkdir()
    (workspace.root / "lib" / "other.py").write_text(RULES)
    late = "import sys; sys.path.insert(0, 'lib'); from other import side"
    workspace.replace("my_policy.py", "from my_package.rules import side", late)
    told = workspace.refused("+dataset=mine", **TRUSTED)
    assert "lib/other.py, which no import statement names" in told


def test_a_link_to_itself_is_no_file(workspace):
    (workspace.home / "loop").symlink_to(workspace.home / "loop")
    workspace.replace("my_policy.py", "gain):", "gain, table):")
    named = f"+policy.controller.table={workspace.home / 'loop'}"
    assert "collect" in workspace.pipe("+dataset=mine", named, **TRUSTED)


def test_another_version_of_a_package_that_a_module_imports_is_seen(workspace):
    installed = workspace.home / "site-packages"
    (installed / "angles").mkdir(parents=True)

    def install(version: str) -> None:
        information = installed / f"angles-{version}.dist-info" / "METADATA"
        information.parent.mkdir()
        information.write_text(f"Metadata-Version: 2.1\nName: angles\nVersion: {version}\n")
        (installed / "angles" / "__init__.py").write_text(RULES)

    install("1.0")
    environment = {**TRUSTED, "PYTHONPATH": os.pathsep.join([str(installed), str(CHECKOUT)])}
    workspace.replace("my_package/rules.py", "def side", "import angles\n\n\ndef side")
    assert "collect" in workspace.pipe("+dataset=mine", **environment)
    params = workspace.root / "pipelines/mine/params.yaml"
    assert yaml.safe_load(params.read_text())["packages"]["collect"]["angles"] == "1.0"
    (installed / "angles-1.0.dist-info").rename(workspace.home / "old")
    install("2.0")
    output = workspace.run(sys.executable, "-m", "minari_pipe", "+dataset=mine", **environment)
    assert "angles 1.0 -> 2.0" in output
    assert "mine: ran collect" in output
    assert workspace.pipe("+dataset=mine", **environment) == []
