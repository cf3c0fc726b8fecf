"""The command ``validate``: run every check on a dataset, print findings as a table or JSON."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from minari_pipe.checks import Finding, Options, Report, Subject, run
from minari_pipe.checks.base import shown
from minari_pipe.cli.datasets import Json, complete_id
from minari_pipe.cli.edits import Trusted
from minari_pipe.cli.tables import counted, print_json, print_table
from minari_pipe.core.datasets_root import data_in, root_of
from minari_pipe.core.files.atomic import MANIFEST
from minari_pipe.core.files.manifest import (
    FORMAT,
    ORDER_BLIND,
    card_faults,
    file_faults,
    is_foreign,
    is_order_blind,
    read_manifest,
)
from minari_pipe.core.files.manifest_update import upgrade as upgrade_manifest
from minari_pipe.core.git import refuse_tracked_links
from minari_pipe.core.messages import one_line
from minari_pipe.core.progress_bar import ProgressBar
from minari_pipe.datasets.identity import checked_content_sha256
from minari_pipe.errors import (
    ConfigError,
    CorruptDatasetError,
    DatasetNotFoundError,
    InvalidDatasetIdError,
    UnsupportedVersionError,
)
from minari_pipe.remotes.hosting import load_dataset
from minari_pipe.storage.base import MinariStorage, has_metadata_file, other_format

_COLORS = {"error": "bold red", "warning": "yellow", "note": "dim"}


def validate(
    dataset: Annotated[
        str, typer.Argument(autocompletion=complete_id, help="A dataset id, its folder or file.")
    ],
    replay: Annotated[
        bool, typer.Option("--replay/--no-replay", help="Simulate episodes again and compare.")
    ] = True,
    replay_steps: Annotated[
        int | None, typer.Option(help="Steps to simulate again; default: all.")
    ] = None,
    replay_tolerance: Annotated[
        float, typer.Option(help="Largest allowed difference of a replayed value.")
    ] = 0.0,
    require_scores: Annotated[
        bool,
        typer.Option("--require-scores", help="Fail if an environment has no reference scores."),
    ] = False,
    acknowledge: Annotated[
        list[str], typer.Option(metavar="ID", help="Id of a known warning.")
    ] = [],  # noqa: B006  (typer copies it)
    skip: Annotated[list[str], typer.Option(metavar="CHECK", help="Check to skip.")] = [],  # noqa: B006
    trust_module: Trusted = [],  # noqa: B006
    upgrade: Annotated[
        bool,
        typer.Option("--upgrade", help="Rewrite a manifest of an older format if no check fails."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Check a dataset: shapes, values, flags, metadata, files against the manifest, replay."""
    name, data_path = found_dataset(dataset)
    skipped = (*skip, *(() if replay else ("replay",)))
    options = Options(
        trusted_modules=tuple(trust_module),
        acknowledge=tuple(acknowledge),
        skip=skipped,
        require_scores=require_scores,
        replay_steps=replay_steps,
        replay_tolerance=replay_tolerance,
    )
    report = checked(data_path, options)
    if as_json:
        print_json(report.to_json())
    else:
        _show(name, report)
    if not report.ok:
        if upgrade:
            print(f"{one_line(name)}: {MANIFEST} stays as it is", file=sys.stderr)
        raise typer.Exit(1)
    if upgrade:
        print(
            f"{one_line(name)}: {_upgraded(data_path)}", file=sys.stderr if as_json else sys.stdout
        )


def checked(data_path: Path, options: Options) -> Report:
    """Run the checks of a dataset, with a progress bar.

    Args:
        data_path: the folder or file of its data.
        options: of the checks.
    """
    subject = Subject.open(data_path, options=options)
    with ProgressBar("validate", subject.total_episodes, "episode", leave=False) as bar:
        extra = _changed(data_path, getattr(subject.storage, "elsewhere", ()))
        extra += _misplaced(subject)
        return run(subject, extra=extra, on_episode=lambda n, _: bar.show(n))


def found_dataset(dataset: str) -> tuple[str, Path]:
    """Return the name of a dataset, and the folder or file of its data.

    Args:
        dataset: its id, its folder or its file.

    Raises:
        DatasetNotFoundError: there is none.
    """
    try:
        loaded = load_dataset(dataset)  # first: a folder of that name may be a stranger's
        return loaded.id, loaded.storage.data_path
    except (InvalidDatasetIdError, DatasetNotFoundError) as error:
        not_found = error
    path = Path(os.path.abspath(dataset))
    refuse_tracked_links(path)
    if path.name != "data" and os.path.basename(os.path.realpath(path)) == "data":
        path = Path(os.path.realpath(path))  # a link to the data folder, beside the manifest
    for place in (data_in(path), path):
        if has_metadata_file(place) or other_format(place) is not None:
            return dataset, place
    raise not_found


def _upgraded(data_path: Path) -> str:
    """Rewrite the manifest of a faultless dataset if its format is older; return what was done.

    Raises:
        ConfigError: there is no manifest.
        CorruptDatasetError: the content is not what the manifest says.
    """
    dataset = data_path.parent
    content = read_manifest(dataset) if data_path.name == "data" else None
    if content is None:
        raise ConfigError(
            f"{dataset} has no {MANIFEST} to upgrade; to get one, combine it into a new version"
        )
    metadata = MinariStorage.read_raw_metadata(data_path)
    checked = "its files were compared with it"
    if "content_sha256" in content:
        digest = checked_content_sha256(dataset, metadata, content)
        checked = f"content_sha256 {digest[:12]} and its files were compared with it"
    if content.get("format") == FORMAT:
        return f"its {MANIFEST} already has format {FORMAT}; {checked}"
    upgrade_manifest(dataset, content, metadata)
    if "content_sha256" not in content and is_order_blind(content):
        checked += "; its checksums could not tell whether parts of a file were exchanged"
    return f"its {MANIFEST} was rewritten in format {FORMAT}, after {checked}"


def _misplaced(subject: Subject) -> list[Finding]:
    """Return a finding if a dataset of the datasets root has another id than its place there."""
    own, data_path = subject.metadata.get("dataset_id"), subject.data_path
    root = root_of(data_path)
    if root is None or data_path.name != "data" or not isinstance(own, str):
        return []
    place = data_path.parent.relative_to(root).as_posix()
    if own == place:
        return []
    message = (
        f"is {shown(repr(own))}, but the dataset lies at {place!r} in the datasets root; change "
        "the id, or move the dataset"
    )
    return [Finding("error", "metadata", "metadata / dataset_id", message)]


def _changed(data_path: Path, elsewhere: Collection[str]) -> list[Finding]:
    """Return a finding for each file that differs from the manifest beside the data.

    If a program that keeps no manifest has changed the dataset, these are warnings.
    ``elsewhere`` are the files with episodes to which links of the dataset lead.
    """
    dataset = data_path.parent
    if data_path.name != "data":
        return []
    try:
        manifest = read_manifest(dataset)
    except (CorruptDatasetError, UnsupportedVersionError) as error:
        return [Finding("error", "manifest", MANIFEST, str(error))]
    if manifest is None:
        return [
            Finding("warning", "metadata", path, "has episodes to which the dataset links")
            for path in elsewhere
        ]
    faults = list(file_faults(dataset, manifest))
    if is_foreign(dataset, manifest):
        later = "; the dataset has changed since it was finished"
        found = [Finding("warning", "manifest", name, fault + later) for name, fault in faults]
    else:
        found = [Finding("error", "manifest", name, fault) for name, fault in faults]
    found += [
        Finding("warning", "card", name, fault) for name, fault in card_faults(dataset, manifest)
    ]
    for path in elsewhere:
        found.append(Finding("error", "manifest", path, "has episodes, but is not in the manifest"))
    if is_order_blind(manifest):
        found.append(Finding("warning", "manifest", MANIFEST, ORDER_BLIND))
    return found


def _show(dataset: str, report: Report) -> None:
    if report.findings:
        print_table(
            f"Findings in {dataset}",
            {"Level": "left", "Check": "left", "Where": "left", "What": "left"},
            (
                (Text(f.level, style=_COLORS[f.level]), f.check, f.path, _what(f))
                for f in report.findings
            ),
        )
        print()
    replay = report.replay
    ran = f"{counted(len(report.counts), 'check')}, {counted(replay.replayed, 'episode')} replayed"
    if not replay.applicable:
        ran += f" ({one_line(replay.reason)})"
    elif replay.not_selected:
        ran += f" of {replay.replayed + replay.not_selected}"
    state = "ok" if report.ok else counted(report.n_errors, "error")
    print(f"{one_line(dataset)}: {state}, {counted(report.n_warnings, 'warning')}; {ran}")


def _what(finding: Finding) -> str:
    """Return the message, with the id that ``--acknowledge`` takes unless the message has it."""
    shows_id = finding.id and finding.id not in finding.message
    return f"{finding.message} [{finding.id}]" if shows_id else finding.message
