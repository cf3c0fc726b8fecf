"""The command ``validate``: every check on a dataset, findings as a table or as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from minari_pipe.checks import Finding, Options, Report, Subject, run
from minari_pipe.cli.datasets import Json, complete_id
from minari_pipe.cli.edits import Trusted
from minari_pipe.cli.tables import counted, one_line, print_json, print_table
from minari_pipe.files import MANIFEST
from minari_pipe.library import load_dataset
from minari_pipe.manifest import file_faults, read_manifest, totals_agree
from minari_pipe.storage.base import has_metadata_file, other_format

_COLORS = {"error": "bold red", "warning": "yellow", "note": "dim"}


def validate(
    dataset: Annotated[
        str, typer.Argument(autocompletion=complete_id, help="A dataset id, its folder or file.")
    ],
    replay: Annotated[
        bool, typer.Option("--replay/--no-replay", help="Simulate episodes again and compare.")
    ] = True,
    replay_steps: Annotated[
        int | None, typer.Option(help="Steps to simulate again; all without this option.")
    ] = None,
    replay_tolerance: Annotated[
        float, typer.Option(help="Largest difference of a replayed value.")
    ] = 0.0,
    require_scores: Annotated[
        bool,
        typer.Option(
            "--require-scores", help="An environment without reference scores is an error."
        ),
    ] = False,
    acknowledge: Annotated[
        list[str], typer.Option(metavar="ADVISORY", help="Id of an advisory that is known.")
    ] = [],  # noqa: B006  (typer copies it)
    skip: Annotated[list[str], typer.Option(metavar="CHECK", help="Check that is not run.")] = [],  # noqa: B006
    trust_module: Trusted = [],  # noqa: B006
    as_json: Json = False,
) -> None:
    """Check a dataset: shapes, values, flags, metadata, files against the manifest, replay."""
    name, data_path = _found(dataset)
    skipped = (*skip, *(() if replay else ("replay",)))
    options = Options(
        trusted_modules=tuple(trust_module),
        acknowledge=tuple(acknowledge),
        skip=skipped,
        require_scores=require_scores,
        replay_steps=replay_steps,
        replay_tolerance=replay_tolerance,
    )
    report = run(Subject.open(data_path, options=options), extra=_changed(data_path))
    if as_json:
        print_json(report.to_json())
    else:
        _show(name, report)
    if not report.ok:
        raise typer.Exit(1)


def _found(dataset: str) -> tuple[str, Path]:
    """Return what the dataset is called, and where its data is."""
    path = Path(dataset)
    for place in (path / "data", path):
        if has_metadata_file(place) or other_format(place) is not None:
            return dataset, place
    loaded = load_dataset(dataset)
    return loaded.id, loaded.storage.data_path


def _changed(data_path: Path) -> list[Finding]:
    """Files that are not what the manifest beside the data names.

    Where the totals are others too, a program that keeps no manifest has changed the dataset.
    """
    dataset = data_path.parent
    if data_path.name != "data" or not (dataset / MANIFEST).exists():
        return []
    manifest = read_manifest(dataset)
    if manifest is None:
        return [Finding("error", "manifest", MANIFEST, "is no manifest")]
    faults = list(file_faults(dataset, manifest))
    if totals_agree(data_path, manifest):
        return [Finding("error", "manifest", name, fault) for name, fault in faults]
    later = "; the dataset was changed since it was finished"
    return [Finding("warning", "manifest", name, fault + later) for name, fault in faults]


def _show(dataset: str, report: Report) -> None:
    if report.findings:
        print_table(
            f"Findings in {dataset}",
            {"Level": "left", "Check": "left", "Where": "left", "What": "left"},
            (
                (Text(f.level, style=_COLORS[f.level]), f.check, f.path, f.message)
                for f in report.findings
            ),
        )
        print()
    ran = (
        f"{counted(len(report.counts), 'check')}, "
        f"{counted(report.replay.replayed, 'episode')} replayed"
    )
    state = "ok" if report.ok else counted(report.n_errors, "error")
    print(f"{one_line(dataset)}: {state}, {counted(report.n_warnings, 'warning')}; {ran}")
