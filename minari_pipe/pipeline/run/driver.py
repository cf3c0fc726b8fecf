"""Run a pipeline: write its parameters, let DVC reproduce it, install and upload the result."""

from __future__ import annotations

import math
import os
import re
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import psutil

from minari_pipe.core.dataset_id import namespace_hierarchy, parse_dataset_id
from minari_pipe.core.datasets_root import ROOT_VARIABLE
from minari_pipe.core.files.changes import write_new
from minari_pipe.core.files.fetch import CACHE_VARIABLE, MIRROR_VARIABLE
from minari_pipe.core.files.links import refuse_links
from minari_pipe.core.messages import one_line
from minari_pipe.core.trust import NAMED_ADDRESSES_VARIABLE, NAMED_FILES_VARIABLE, naming
from minari_pipe.errors import ConfigError, LinkError, MinariPipeError, ReportedError
from minari_pipe.pipeline.config import dvc_yaml
from minari_pipe.pipeline.config.conf_files import datasets
from minari_pipe.pipeline.config.families import check_family, family_files, is_synced, sync_family
from minari_pipe.pipeline.config.mixtures import completed, parents
from minari_pipe.pipeline.config.oc_env import is_set, literal_texts, resolved
from minari_pipe.pipeline.config.policy_refs import divided
from minari_pipe.pipeline.config.schema import Config, Engine, params_values
from minari_pipe.pipeline.config.validate_config import prepare
from minari_pipe.pipeline.execution.inputs import changed
from minari_pipe.pipeline.execution.stage import (
    RAN_VARIABLE,
    REPORTED,
    SAFE_PATH,
    reports_folder,
    stage_lock,
    typed_overrides,
)
from minari_pipe.pipeline.processes import DRIVER_VARIABLE, exclusive, identity
from minari_pipe.pipeline.published import released, released_manifest
from minari_pipe.pipeline.run import dvc_run_cache
from minari_pipe.pipeline.run.dry_run import DryRun
from minari_pipe.pipeline.run.dvc_ignore import refuse_hidden
from minari_pipe.pipeline.run.dvc_repair import mend, remove_wrong_entries
from minari_pipe.pipeline.run.dvc_settings import check_dvc, quiet_dvc, repository
from minari_pipe.pipeline.run.install import check_before, install, would_install
from minari_pipe.pipeline.run.pull import Pull
from minari_pipe.pipeline.run.targets import upload_to_targets, would_upload
from minari_pipe.pipeline.signals import run_stoppable
from minari_pipe.pipeline.workspace import (
    NOT_PARAMS,
    STATE,
    is_checkout,
    read_catalog_entry,
    read_json,
)
from minari_pipe.pipeline.workspace_links import open_root


def run_pipeline(
    name: str,
    config: Config,
    overrides: list[str],
    *,
    is_parent: bool = False,
    draft: bool = False,
    pull: Pull | None = None,
    dry_run: DryRun | None = None,
) -> None:
    """Reproduce pipeline ``name`` from ``config``, then install and upload what it published.

    Args:
        name: name of the pipeline.
        config: the composed config.
        overrides: the overrides that it was composed with.
        is_parent: another dataset is made from this one: it waits for another run instead of
            failing, it is not uploaded, and its overrides come from a file, so they allow
            nothing.
        draft: upload to the targets even if the dataset is not released.
        pull: first take what the DVC remote has.
        dry_run: only print what would be done; write and run nothing.

    Raises:
        MinariPipeError: one line that says what is wrong and what to do.
        Stopped: SIGINT, SIGTERM or SIGHUP arrived; the stage is stopped, DVC's locks are free.
    """
    keep_places()
    root = open_root()
    os.chdir(root)  # paths in the config are relative to it
    config = completed(config, root, seen=(name,))
    busy = (
        f"pipeline {name!r} is already running in this workspace; wait until it has finished, or "
        f"give this run another name and id with pipeline=NAME dataset.id=ID"
    )
    patience = math.inf if is_parent else 0.5
    waiting = f"waiting for another run of {name}" if is_parent else ""
    typed = [] if is_parent else overrides
    lock: AbstractContextManager[None] = nullcontext()
    if dry_run is None:
        lock = exclusive(driver_lock(name, root), wait_seconds=patience, busy=busy, waiting=waiting)
    with lock, ExitStack() as stack:
        recorded = dvc_yaml.read_params(name, root)
        previous = {k: v for k, v in (recorded or {}).items() if k not in NOT_PARAMS}
        _check_dataset_choice(name, recorded or {}, overrides)
        checked = previous if dvc_yaml.is_checked(name, root) else None
        given = None if is_parent else literal_texts(overrides, "env", "policy", "ref_scores")
        params, named = prepare(name, config, checked or None, root, given or ())
        stack.enter_context(naming(NAMED_FILES_VARIABLE, named))
        dataset_id, replace = params.dataset.id, _asks_to_replace(params, typed)
        own, shared = divided(overrides) if params.family_name else (overrides, [])
        check_family(name, params, shared, root)
        check_owner(name, dataset_id, root)
        check_release(name, params, root)
        check_before(name, params, root, replace=replace)
        for parent in parents(config, root):
            if extra := typed_overrides(parent.overrides):
                print(
                    one_line(f"{parent.name}: reapplying the recorded overrides {' '.join(extra)}")
                )
            try:
                run_pipeline(
                    parent.name,
                    parent.config,
                    parent.overrides,
                    is_parent=True,
                    pull=pull,
                    dry_run=dry_run,
                )
            except ConfigError as exc:  # its keys are not those of this dataset
                raise ConfigError(f"{parent.name}: {exc}") from exc
        print_versions(name, recorded or {}, params, root)
        if dry_run is not None:
            changes = _explain(dry_run, name, params, own, shared, root)
            print(f"{name}: {would_install(name, dataset_id, root, changes, replace=replace)}")
            if not is_parent:
                for line in would_upload(params, root, overrides, changes, draft=draft):
                    print(f"{name}: {line}", flush=True)
            return
        dvc_yaml.sync(name, params, own, root, given)
        addresses = _typed_addresses(params.engine, typed)
        stack.enter_context(naming(NAMED_ADDRESSES_VARIABLE, addresses))
        try:
            with _up_to_date_family(params, shared, root, pull):
                ran = _reproduce(name, root, pull)
        except MinariPipeError:
            if recorded is None:
                _forget(name, root)
            raise
        done = f"ran {', '.join(ran)}" if ran else "up to date"
        print(f"{name}: {done} -> datasets/{dataset_id}", flush=True)
        note = install(name, dataset_id, root, replace=replace)
        print(f"{name}: {note}", flush=True)
        if not is_parent:
            upload_to_targets(name, params, root, overrides, draft=draft)


@contextmanager
def _up_to_date_family(
    params: Config, shared: list[str], root: Path, pull: Pull | None
) -> Iterator[None]:
    """Bring the pipeline of a dataset's family up to date and lock it against changes.

    Several datasets may use it at once. A run that changes it waits for them, and they for it.
    """
    family = params.family_name
    if family is None:
        yield
        return
    lock = driver_lock(family, root)
    waiting = f"waiting for another run that uses the family {family!r}"
    while True:
        with exclusive(lock, waiting=waiting):
            is_new = dvc_yaml.read_params(family, root) is None
            sync_family(params, shared, root)
            try:
                ran = _reproduce(family, root, pull)
            except MinariPipeError:
                if is_new:
                    _forget(family, root)
                raise
            done = f"ran {', '.join(ran)}" if ran else "up to date"
            print(f"{family}: {done} -> pipelines/{family}", flush=True)
        with exclusive(lock, shared=True, waiting=waiting):
            # Another run may have changed it between the two locks.
            if is_synced(params, root):
                yield
                return


def _explain(
    dry_run: DryRun,
    name: str,
    params: Config,
    own: list[str],
    shared: list[str],
    root: Path,
) -> bool:
    """Print what each stage of a dataset and its family would do; return whether any may run."""
    from dvc.exceptions import DvcException

    quiet_dvc()
    check_dvc(root)
    try:
        if family := params.family_name:
            dry_run.explain(family, family_files(params, shared, root), root)
        return dry_run.explain(name, dvc_yaml.files(name, params, own, root), root)
    except DvcException as exc:
        raise _explained(exc, name, root, []) from exc


def driver_lock(name: str, root: Path) -> Path:
    """Return the lock file that a run of pipeline ``name`` holds; see :func:`exclusive`."""
    return root / STATE / "locks" / f"{name}.driver"


def _check_dataset_choice(name: str, recorded: dict[str, Any], overrides: list[str]) -> None:
    """Raise if ``name`` is the pipeline of another config, e.g. with ``+dataset=a pipeline=b``."""
    before, now = (chosen_dataset(words) for words in (recorded.get("overrides", []), overrides))
    if before and now and before != now and before in datasets():
        raise ConfigError(
            f"pipeline {name!r} belongs to +dataset={before}, but this command has "
            f"+dataset={now}; choose another name with pipeline=..., or remove pipelines/{name}"
        )


def chosen_dataset(overrides: list[str]) -> str | None:
    """Return the dataset that recorded overrides choose, or ``None``."""
    names = [o.removeprefix("+dataset=") for o in overrides if o.startswith("+dataset=")]
    return names[0] if names else None


def _forget(name: str, root: Path) -> None:
    """Remove the generated files of a pipeline whose first run failed without any result."""
    folder = root / "pipelines" / name
    work = root / STATE / "work" / name
    made = [folder / "dvc.lock", *work.rglob("*.record"), *work.rglob("*.done")]
    if not any(path.exists() for path in made):
        for file in ("params.yaml", "dvc.yaml", ".gitignore"):
            (folder / file).unlink(missing_ok=True)
        with suppress(OSError):  # the folder holds other files
            folder.rmdir()


def _asks_to_replace(params: Config, overrides: list[str]) -> bool:
    """Return whether this command line itself asks to install over another dataset.

    A config may come from a stranger and must not remove the user's data.
    """
    return is_set(overrides, "publish", "replace") and bool(params.publish.replace)


def _typed_addresses(engine: Engine, overrides: list[str]) -> list[str]:
    """Return the addresses of the engine that this command line itself names, with their keys."""
    addresses = (("address", engine.address), ("storage", engine.storage))
    named = [(key, place) for key, place in addresses if place is not None]
    return [
        f"engine.{key}={resolved(place)}"
        for key, place in named
        if is_set(overrides, "engine", key)
    ]


def keep_places() -> None:
    """Make relative paths in environment variables absolute.

    The stages and the rest of this run work at the root of the workspace.
    """
    for variable in (ROOT_VARIABLE, MIRROR_VARIABLE, CACHE_VARIABLE):
        place = os.environ.get(variable)
        if place and "://" not in place:
            os.environ[variable] = os.path.abspath(os.path.expanduser(place))


def check_owner(name: str, dataset_id: str, root: Path) -> None:
    """Raise if another pipeline of the workspace declares or has published ``dataset_id``."""
    marker = f"id: {dataset_id}\n".encode()
    for path in sorted((root / "pipelines").glob("*/params.yaml")):
        # Searching the bytes before parsing YAML keeps a workspace of 100 pipelines fast.
        if path.parent.name != name and marker in path.read_bytes():
            other = dvc_yaml.read_params(path.parent.name, root)
            if other and other.get("dataset", {}).get("id") == dataset_id:
                raise ConfigError(
                    f"dataset id {dataset_id!r} belongs to pipeline {path.parent.name!r}; choose "
                    f"another id with dataset.id=..."
                )
    entry = read_catalog_entry(root, dataset_id)
    if entry and entry["pipeline"] != name:
        raise ConfigError(
            f"dataset id {dataset_id!r} was already published by pipeline {entry['pipeline']!r}; "
            f"choose another id with dataset.id=..., or remove "
            f"{root / 'catalog' / dataset_id}.json if you no longer need that dataset"
        )
    # Publishing replaces a whole folder, so no dataset may lie inside another.
    catalog = root / "catalog"
    parents = namespace_hierarchy(parse_dataset_id(dataset_id)[0])
    nested = [p for p in parents if (catalog / f"{p}.json").is_file()]
    nested += [f"{dataset_id}/..."] if (catalog / dataset_id).is_dir() else []
    if nested:
        raise ConfigError(
            f"dataset id {dataset_id!r} conflicts with the published {nested[0]!r}: one would lie "
            f"inside the other; choose another id with dataset.id=..."
        )


def check_release(name: str, params: Config, root: Path) -> None:
    """Raise, before any work, if a released version would be made from a different config.

    Args:
        name: name of the pipeline.
        params: its parameters.
        root: the workspace.

    Raises:
        DatasetExistsError: names the keys that changed.
        ConfigError: the record of the release cannot be read.
    """
    dataset_id = params.dataset.id
    if released_manifest(dataset_id, root) is None:
        return
    # Most runs do not need these imports.
    from minari_pipe.pipeline.published import differing, flat
    from minari_pipe.pipeline.stages.assemble import NOT_CONTENT

    now = params_values(params)
    then = read_json(root / "releases" / f"{dataset_id}.json").get("params") or now
    contents = [{k: v for k, v in p.items() if k not in NOT_CONTENT} for p in (then, now)]
    if changed := differing(*map(flat, contents)):
        keys = ", ".join(f"{k}: {old!r}, now {new!r}" for k, (old, new) in changed.items())
        raise released(root, name, dataset_id, f"config changed ({keys})")


def print_versions(name: str, recorded: dict[str, Any], params: Config, root: Path) -> None:
    """Print in one line which versions differ from those in ``params.yaml``, if any."""
    old = {n: v for s in recorded.get("packages", {}).values() for n, v in s.items()}
    new = {n: v for s in params.packages.values() for n, v in s.items()}
    for versions, stages in (
        (old, recorded.get("code", {})),
        (new, dvc_yaml.output_versions(name, params, root)),
    ):
        versions |= {f"minari_pipe's {stage}": f"output {n}" for stage, n in stages.items()}
    changed = [f"{n} {old[n]} -> {v}" for n, v in sorted(new.items()) if old.get(n, v) != v]
    if changed:
        print(f"versions changed, so stages run again: {', '.join(changed)}", flush=True)


def _reproduce(name: str, root: Path, pull: Pull | None = None) -> list[str]:
    """Let DVC run what changed and return the names of the stages that ran.

    Args:
        name: name of the pipeline.
        root: the workspace.
        pull: what the command line asked to pull from the DVC remote first.
    """
    from dvc.exceptions import DvcException

    quiet_dvc()
    check_dvc(root)
    os.environ[DRIVER_VARIABLE] = identity(psutil.Process())
    if not is_checkout(root):
        # The stages are `python -m`, which would import modules from the workspace first.
        os.environ["PYTHONSAFEPATH"] = os.environ.get("PYTHONSAFEPATH") or SAFE_PATH
    # A virtual environment need not be activated: the stages are `python -m ...`.
    # An empty path would mean the current folder, the workspace.
    own = [str(Path(sys.executable).parent)] * bool(sys.executable)
    os.environ["PATH"] = os.pathsep.join([*own, os.environ.get("PATH") or os.defpath])
    # A stage whose driver was killed a moment ago may still be about to write.
    with exclusive(stage_lock(name, root), wait_seconds=30, busy=_orphan(name)):
        mend(name, root)
    if pull is not None:
        pull.outputs(name, root)

    def work() -> None:
        declared = f"pipelines/{name}/dvc.yaml"
        with pull.repository(name, root) if pull else repository(root, [declared]) as repo:
            dvc_run_cache.remove_broken(repo)
            refuse_hidden(repo.index.stages)
            refuse_hidden(repo.reproduce([declared], single_item=True))  # what they have written

    def repair() -> None:
        _await_stage(name, root)
        mend(name, root, wait=False)

    reports = reports_folder(name, root)
    shutil.rmtree(reports, ignore_errors=True)  # left by stages that ran under plain `dvc repro`
    ran = root / STATE / "locks" / f"{name}.ran"
    write_new(ran, b"")
    os.environ[RAN_VARIABLE] = str(ran)
    try:
        run_stoppable(work, repair=repair)
    except DvcException as exc:
        _await_stage(name, root)
        remove_wrong_entries(name, root)
        raise _explained(exc, name, root, ran.read_text(encoding="utf-8").split()) from exc
    except (OSError, MinariPipeError):
        raise
    except Exception as exc:  # e.g. from sqlite, if the disk is full
        raise MinariPipeError(f"DVC: {type(exc).__name__}: {exc}; --debug shows where") from exc
    if wrong := remove_wrong_entries(name, root):
        raise changed(*wrong)
    _remove_scratch(name, root)
    return ran.read_text(encoding="utf-8").split()


def _orphan(name: str) -> str:
    return (
        f"a stage of pipeline {name!r} from another command is still running; wait until it has "
        f"finished, or stop it"
    )


def _await_stage(name: str, root: Path) -> None:
    """Wait for a stage that outlives its shell, so that nothing writes after this command."""
    with (
        suppress(ConfigError),
        exclusive(stage_lock(name, root), wait_seconds=5, busy=_orphan(name)),
    ):
        pass


def _remove_scratch(name: str, root: Path) -> None:
    """Remove finished blocks, once ``dvc.lock`` records the outputs that they went into."""
    shutil.rmtree(root / STATE / "work" / name, ignore_errors=True)


def _explained(exc: BaseException, name: str, root: Path, ran: list[str]) -> MinariPipeError:
    from dvc.stage.exceptions import StageCmdFailedError

    cause: BaseException = exc
    while cause.__cause__ is not None:
        cause = cause.__cause__
    command = re.search(r"stages\.([a-z_]+) [^\s,]+(?: (train_expert))?", str(cause))
    if command and isinstance(cause, StageCmdFailedError):
        stage = command[2] or re.sub("_(family|bc)$", "", command[1])  # the name that README uses
        ended = _ended(str(cause))
        is_reported = ended.startswith("ended with") and (not ran or ran[-1] == REPORTED)
        ended += _in_block(stage, name, root)
        text = f"stage {stage} of {name} {ended}; nothing is lost; run the same command to continue"
        return ReportedError(text) if is_reported else MinariPipeError(text)
    if lost := re.search(r"dvc\.yaml:(\w+)': output '([^']+)' does not exist", f"{exc}: {cause}"):
        where = _in_block(lost[1], name, root)
        return MinariPipeError(
            f"stage {lost[1]} of {name} ended with exit code 0{where}, but did not write {lost[2]} "
            f"(does it call os._exit?); nothing is lost; run the same command to continue"
        )
    text = " ".join(f"{exc}: {cause}".split() if cause is not exc else str(exc).split())
    if "No space left" in text or "quota exceeded" in text:
        return MinariPipeError(
            f"the disk is full: {text}; nothing is lost; make room and run the same command to "
            f"continue"
        )
    # DVC's own message asks the user to remove its locks by hand.
    if busy := re.search(r"'([^']+)' is busy, it is being blocked by: (.+?) If there are", text):
        return MinariPipeError(
            f"another run uses {busy[1]}: {busy[2]}; wait until it has finished and run the same "
            f"command to continue"
        )
    return MinariPipeError(f"DVC: {text}")


def _in_block(stage: str, name: str, root: Path) -> str:
    """Return where a stage that runs blocks in its own process was when it died, or ``""``."""
    from minari_pipe.pipeline.execution.block_task import Tally

    folder = root / STATE / "work" / name / f"{stage}.new" / "tmp"
    for path in sorted(folder.glob("tally-*")):
        try:
            refuse_links(path, root)  # if the stage never began, a stranger may have left the file
        except LinkError:
            return ""
        return (
            f" in {Tally.read(path).where(0)} or one running alongside it (with engine=processes "
            f"each block has its own process and is retried)"
        )
    return ""


def _ended(text: str) -> str:
    """Return how a failed stage ended: its exit code or its signal."""
    found = re.search(r"exited with (-?\d+)", text)
    code = int(found[1]) if found else 1
    try:
        name = signal.Signals(-code if code < 0 else code - 128).name
    except ValueError:
        return f"ended with exit code {code}"
    memory = " (out of memory?)" if name == "SIGKILL" else ""
    return f"was killed by {name}{memory}"
