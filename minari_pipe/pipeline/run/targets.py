"""Upload a published dataset to the targets that its config names, after a run.

The driver uploads, never a stage: ``dvc repro`` and ``dvc exp run`` change nothing outside the
workspace. ``.minari_pipe/published/<id>.json`` records the result of each target, so that a target
that has the dataset is not contacted again::

    {"s3://bucket": {"content_sha256": ..., "manifest_sha256": ..., "time": ..., "outcome": ...},
     "hf://org":    {"content_sha256": ..., "manifest_sha256": ..., "time": ..., "error": ...}}

``outcome`` is ``uploaded``, or ``present`` if the target already had the dataset.
"""

from __future__ import annotations

import datetime
import os
import traceback
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minari_pipe.core.files.atomic import MANIFEST, sha256_file
from minari_pipe.core.files.links import expand_user
from minari_pipe.core.files.manifest import identity_of
from minari_pipe.core.git import may_have_come_with_git
from minari_pipe.core.messages import message_of, print_line, without_credentials
from minari_pipe.core.trust import how_to_trust_address, is_trusted_address
from minari_pipe.errors import ConfigError, CorruptDatasetError, ReportedError, TrustError
from minari_pipe.pipeline.config.oc_env import holds_value, literal_texts, resolved, without_values
from minari_pipe.pipeline.config.schema import Config
from minari_pipe.pipeline.published import published_manifest, release_date, released_manifest
from minari_pipe.pipeline.signals import run_abandonable
from minari_pipe.pipeline.workspace import STATE, dump_json, read_json, write_atomic
from minari_pipe.pipeline.workspace_links import clone_of, refuse_links_of_clone
from minari_pipe.remotes import split_scheme

if TYPE_CHECKING:
    from minari_pipe.remotes.transfer.upload import Published


def upload_to_targets(
    name: str, params: Config, root: Path, overrides: list[str], *, draft: bool
) -> None:
    """Upload what pipeline ``name`` published to every target that does not have it.

    Args:
        name: name of the pipeline.
        params: its parameters.
        root: the workspace.
        overrides: overrides of this command line; the targets that they name are trusted.
        draft: also upload a version that is not released.

    Raises:
        ReportedError: a target failed and the error was printed; the other uploads succeeded.
        CorruptDatasetError: the workspace's copy is not what was published.
        Stopped: a signal arrived; the next run uploads what is missing.
    """
    dataset_id, targets = params.dataset.id, params.publish.targets
    if not targets:
        return
    folder = root / "datasets" / dataset_id
    content = published_manifest(folder)
    if content is None:
        raise CorruptDatasetError(
            f"{folder} has no {MANIFEST} of a published dataset; remove the folder and run the "
            f"pipeline again"
        )
    if not draft and released_manifest(dataset_id, root) != identity_of(content):
        print(
            f"{name}: not uploaded, because {dataset_id} is a draft; freeze it with `minari-pipe "
            f"release {dataset_id}`, or upload the draft with --draft",
            flush=True,
        )
        return
    named = _named(overrides)
    uploads = _Uploads(name, dataset_id, content["content_sha256"], root, named)
    uploads.run(targets, release_date(dataset_id, root, content))


def would_upload(
    params: Config, root: Path, overrides: list[str], changes: bool, *, draft: bool
) -> Iterator[str]:
    """Yield what :func:`upload_to_targets` would do for each target after a run; send nothing.

    Args:
        params: parameters of the pipeline.
        root: the workspace.
        overrides: overrides of this command line.
        changes: whether the run may publish content that differs from the current one.
        draft: also upload a version that is not released.
    """
    dataset_id = params.dataset.id
    named = _named(overrides)
    content = published_manifest(root / "datasets" / dataset_id)
    released = released_manifest(dataset_id, root)
    is_released = content is not None and released == identity_of(content)
    uploads = None
    if content is not None and not changes:
        uploads = _Uploads("", dataset_id, content["content_sha256"], root, set())
    for target in dict.fromkeys(params.publish.targets):
        if not (draft or is_released):
            yield f"would not be uploaded to {target}, because {dataset_id} is a draft"
        elif uploads is not None and uploads.has_it(target):
            yield f"published in {target}"
        elif target in named or is_trusted_address(_located(target, root)):
            yield f"would be uploaded to {target}"
        else:
            yield f"would not be uploaded to {target}, because a file names it, not you"


def _named(overrides: list[str]) -> set[str]:
    """Return the targets that a command line names."""
    return {text for _, text in literal_texts(overrides, "publish")}


class _Uploads:
    """The uploads of one dataset, and the record of their results."""

    def __init__(
        self, name: str, dataset_id: str, content_sha256: str, root: Path, named: set[str]
    ) -> None:
        self._name, self._dataset_id, self._root, self._named = name, dataset_id, root, named
        self._folder = root / "datasets" / dataset_id
        # The content hash does not cover all metadata: if they changed, ask the target once more.
        manifest = sha256_file(self._folder / MANIFEST)
        self._version = {"content_sha256": content_sha256, "manifest_sha256": manifest}
        self._path = root / STATE / "published" / f"{dataset_id}.json"
        # A clone may bring a record, which says nothing about what this user has uploaded.
        is_own = self._path.is_file() and not may_have_come_with_git(self._path)
        self._record = _read(self._path) if is_own else {}

    def run(self, targets: list[str], date: str | None) -> None:
        """Upload to the ``targets`` that do not have the dataset, with the date of its release."""
        targets = list(dict.fromkeys(targets))
        if present := [target for target in targets if self.has_it(target)]:
            print(f"{self._name}: published in {', '.join(present)}", flush=True)
        failures = []
        for target in targets:
            if target not in present and (failure := self._upload(target, date)):
                failures.append(f"{self._name}: not uploaded to {target}: {failure}")
        for failure in failures:
            print_line("error", failure)
        if failures:
            raise ReportedError(f"{len(failures)} of {len(targets)} targets failed")

    def has_it(self, target: str) -> bool:
        """Return whether the record says that ``target`` has the dataset."""
        entry = self._record.get(target)
        if resolved(target) != target:  # environment variables may name another place by now
            return False
        if not isinstance(entry, dict) or "outcome" not in entry:
            return False
        return self._version.items() <= entry.items()

    def _upload(self, target: str, date: str | None) -> str | None:
        """Upload to one target and return the error message, or ``None``."""
        try:
            address = _located(resolved(target), self._root)
            if target not in self._named:
                _check_trusted(target, address)
            if os.path.isabs(address):
                refuse_links_of_clone(address, clone_of(self._root, self._root))
            done = self._transferred(address, date)
        except Exception as exc:  # go on with the other targets
            if os.environ.get("HYDRA_FULL_ERROR") == "1":
                traceback.print_exc()
            failure = without_values(" ".join(without_credentials(message_of(exc)).split()))
            self._keep(target, {"error": failure})
            return failure
        self._keep(target, {"outcome": done.outcome})
        verb = "uploaded to" if done.outcome == "uploaded" else "published in"
        print(f"{self._name}: {verb} {target}", flush=True)
        for note in done.notes:
            print(f"{self._name}: {without_values(note)}", flush=True)
        return None

    def _transferred(self, address: str, date: str | None) -> Published:
        from minari_pipe.remotes.hosting import (
            publish_dataset,  # slow to import; not needed if there is nothing to upload
        )

        found: list[Published] = []
        publish = partial(publish_dataset, folder=self._folder, published=date)
        run_abandonable(lambda: found.append(publish(self._dataset_id, address)))
        return found[0]

    def _keep(self, target: str, result: dict[str, str]) -> None:
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        self._record[target] = {**self._version, "time": now, **result}
        write_atomic(self._path, dump_json(self._record))


def _read(path: Path) -> dict[str, Any]:
    """Return the record at ``path``; ``{}`` if it is damaged, as the targets can be asked again."""
    try:
        found = read_json(path)
    except (OSError, ConfigError):
        return {}
    return found if isinstance(found, dict) else {}


def _located(target: str, root: Path) -> str:
    """Return ``target``, made absolute if it is a directory."""
    scheme, place = split_scheme(target)
    if scheme != "file":
        return target
    return str(root / expand_user(place))


def _check_trusted(target: str, address: str) -> None:
    """Raise ``TrustError`` for a target that only a file names."""
    # An address may hold a secret: below a trusted prefix its name would show up in listings.
    is_trusted = is_trusted_address(address, exactly=holds_value(address))
    if not (is_trusted or is_trusted_address(target, exactly=True)):
        ways = how_to_trust_address(address, word=f"publish.targets=[{target}]")
        raise TrustError(f"a file names it, not you; {ways}")
