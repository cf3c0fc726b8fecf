"""Stage ``validate``: check the assembled dataset; an error stops the pipeline before publish."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from minari_pipe.checks import Finding, Options, Subject, run
from minari_pipe.errors import ConfigError
from minari_pipe.identity import content_sha256
from minari_pipe.pipeline.assemble import assemble, assembled_sha256, scores_folder
from minari_pipe.pipeline.stage import StageRun, run_stage
from minari_pipe.pipeline.workspace import dump_json, make_importable, read_json, write_atomic
from minari_pipe.trust import trusted_modules


def validate(folder: Path, params: dict[str, Any]) -> dict[str, Any]:
    """The content of ``validation.json``: findings, what was replayed, and the content's hash.

    Args:
        folder: ``pipelines/NAME`` with what ``create`` and ``ref_scores`` wrote.
        params: of the pipeline.
    """
    metadata = assemble(folder, params)
    data_path = folder / "dataset" / "data"
    options = params["validate"]
    subject = Subject.open(
        data_path,
        metadata,
        Options(
            trusted_modules=tuple(sorted(trusted_modules())),
            acknowledge=tuple(options["acknowledge"]),
            replay_steps=options["replay_steps"],
            replay_tolerance=options["replay_tolerance"],
        ),
    )
    found = run(subject, extra=_reported(folder, params)).to_json()
    found["demonstrations"] = _gaps(folder)
    if subject.storage is not None:
        found["content_sha256"] = content_sha256(subject.storage, metadata)
    # Lists, because `dvc metrics show` makes a column of everything else.
    found["checks"] = [{"check": name, "findings": n} for name, n in found["checks"].items()]
    found["assembled_sha256"] = [assembled_sha256(folder, metadata)]
    found["replay"] = {"replayed": found["replay"]["replayed"], "details": [found["replay"]]}
    return found


def _provenance(folder: Path) -> dict[str, Any]:
    found = read_json(folder / "dataset" / "provenance.json")
    assert isinstance(found, dict)
    return found


def _reports(folder: Path) -> list[dict[str, Any]]:
    reports = _provenance(folder)["reports"]
    assert isinstance(reports, list)
    return reports


def _reported(folder: Path, params: dict[str, Any]) -> list[Finding]:
    """What the policy and the measurement of the reference scores had to say."""
    found = [
        Finding.from_json(finding, check="demonstrations")
        for report in _reports(folder)
        for finding in report.get("findings", [])
    ]
    warnings = read_json(scores_folder(folder, params) / "ref_scores.json")["warnings"]
    path = "metadata / eval_env_spec"
    found += [Finding("warning", "ref_scores", path, text) for text in warnings]
    return found + [
        Finding(
            "warning",
            "collect",
            "metadata / minari_pipe / skipped_blocks",
            f"block {entry['block']} is left out (collect.on_error=skip): {entry['reason']}",
        )
        for entry in _provenance(folder)["skipped"]
    ]


def _gaps(folder: Path) -> dict[str, float] | None:
    """How far the replayed demonstrations are from the recorded ones, over all episodes."""
    reports = [r for r in _reports(folder) if "recorded_return" in r]
    if not reports:
        return None
    differences = [abs(r["replayed_return"] - r["recorded_return"]) for r in reports]
    n = len(reports)
    return {
        "n": n,
        "recorded_mean_return": sum(r["recorded_return"] for r in reports) / n,
        "replayed_mean_return": sum(r["replayed_return"] for r in reports) / n,
        "return_gap_mean": sum(differences) / n,
        "return_gap_max": max(differences),
        "observation_gap_max": max(r["observation_gap_max"] for r in reports),
        "observation_gap_median": sorted(r["observation_gap_median"] for r in reports)[n // 2],
    }


def main(run: StageRun) -> None:
    """The command: ``dataset/`` and ``ref_scores.json`` in, ``validation.json`` out."""
    make_importable(run.root)
    found = validate(run.folder, run.params)
    write_atomic(run.folder / "validation.json", dump_json(found))
    for finding in found["findings"]:
        run.say(f"{finding['level']}: {finding['path']}: {finding['message']}")
    if not found["ok"]:
        raise ConfigError(
            f"{found['errors']} errors in {run.params['dataset']['id']}, nothing is published; "
            f"all findings are in pipelines/{run.name}/validation.json"
        )
    if gaps := found["demonstrations"]:
        run.say(
            f"demonstrations: recorded mean return {gaps['recorded_mean_return']:.2f}, replayed "
            f"{gaps['replayed_mean_return']:.2f}; largest gap of an episode's return "
            f"{gaps['return_gap_max']:.2f}, of an observation {gaps['observation_gap_max']:.3f}"
        )
    replay = found["replay"]
    run.say(f"ok, {found['warnings']} warnings, {replay['replayed']} episodes replayed")


if __name__ == "__main__":
    run_stage("validate", main)
