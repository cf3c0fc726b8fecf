"""Stage ``validate``: check the assembled dataset; an error stops the pipeline before publish."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from minari_pipe.checks import Finding, Options, Subject, run
from minari_pipe.checks.base import counted
from minari_pipe.checks.demonstrations import gap_findings
from minari_pipe.core.progress_bar import ProgressBar
from minari_pipe.core.trust import trusted_modules
from minari_pipe.datasets.identity import content_sha256
from minari_pipe.errors import ConfigError
from minari_pipe.pipeline.config.schema import Config
from minari_pipe.pipeline.execution.stage import StageRun, run_stage
from minari_pipe.pipeline.stages.assemble import assemble, assembled_sha256, scores_folder
from minari_pipe.pipeline.stages.environments import allow_named
from minari_pipe.pipeline.workspace import dump_json, read_json, write_atomic


def validate(folder: Path, params: Config) -> dict[str, Any]:
    """Return the content of ``validation.json``: findings, replay results and the content hash.

    Args:
        folder: ``pipelines/NAME`` with the outputs of ``create`` and ``ref_scores``.
        params: the pipeline's parameters.
    """
    metadata = assemble(folder, params)
    data_path = folder / "dataset" / "data"
    options = params.validate
    subject = Subject.open(
        data_path,
        metadata,
        Options(
            is_own=True,
            trusted_modules=tuple(sorted(trusted_modules())),
            acknowledge=tuple(options.acknowledge),
            replay_steps=options.replay_steps,
            replay_tolerance=options.replay_tolerance,
        ),
    )
    with ProgressBar("validate", subject.total_episodes, "episode") as bar:
        extra = _reported(folder, params)
        found = run(subject, extra=extra, on_episode=lambda n, _: bar.show(n)).to_json()
    found["demonstrations"] = _gaps(folder)
    if subject.storage is not None:
        found["content_sha256"] = content_sha256(subject.storage, metadata)
    # As lists, since `dvc metrics show` makes a column of every other value.
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


def _reported(folder: Path, params: Config) -> list[Finding]:
    """Return the findings that earlier stages reported."""
    found = [
        Finding.from_json(finding, check="demonstrations")
        for report in _reports(folder)
        for finding in report.get("findings", [])
    ]
    found += gap_findings(_replayed(folder))
    warnings = read_json(scores_folder(folder, params) / "ref_scores.json")["warnings"]
    path = "metadata / eval_env_spec"
    found += [Finding("warning", "ref_scores", path, text) for text in warnings]
    made = _provenance(folder)
    if failed := made.get("failed_episodes"):
        path, first = "metadata / minari_pipe / failed_episodes", failed[0]
        text = (
            f"{len(failed)} of {made['n_collected']} episodes are left out "
            f"(collect.on_error=skip_episode), first episode {first['episode']}, "
            f"{first['reason']}"
        )
        found.append(Finding("warning", "collect", path, text))
    return found + [
        Finding(
            "warning",
            "collect",
            "metadata / minari_pipe / skipped_blocks",
            f"block {entry['block']} is left out (collect.on_error={params.collect.on_error}): "
            f"{entry['reason']}",
        )
        for entry in made["skipped"]
    ]


def _replayed(folder: Path) -> list[dict[str, Any]]:
    """Return the demonstration policy's reports on the episodes that it replayed."""
    return [report for report in _reports(folder) if "recorded_return" in report]


def _gaps(folder: Path) -> dict[str, float | None] | None:
    """Summarize the differences between replayed and recorded demonstrations over all episodes."""
    reports = _replayed(folder)
    if not reports:
        return None
    returns = [(r["recorded_return"], r["replayed_return"]) for r in reports]
    returns = [pair for pair in returns if None not in pair]  # a MuJoCo log has no rewards
    differences = [abs(replayed - recorded) for recorded, replayed in returns]
    largest = [g for r in reports if (g := r["observation_gap_max"]) is not None]
    medians = [g for r in reports if (g := r["observation_gap_median"]) is not None]
    return {
        "n": len(reports),
        "recorded_mean_return": _mean([recorded for recorded, _ in returns]),
        "replayed_mean_return": _mean([replayed for _, replayed in returns]),
        "return_gap_mean": _mean(differences),
        "return_gap_max": max(differences, default=None),
        "observation_gap_max": max(largest, default=None),
        "observation_gap_median": sorted(medians)[len(medians) // 2] if medians else None,
    }


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def main(run: StageRun) -> None:
    """Run the stage: read ``dataset/`` and ``ref_scores.json``, write ``validation.json``."""
    allow_named(run)
    found = validate(run.folder, run.config)
    write_atomic(run.folder / "validation.json", dump_json(found))
    for finding in found["findings"]:
        run.say(f"{finding['level']}: {finding['path']}: {finding['message']}{_id(finding)}")
    if not found["ok"]:
        raise ConfigError(
            f"{counted(found['errors'], 'error')} in {run.config.dataset.id}, nothing is "
            f"published; "
            f"all findings are in pipelines/{run.name}/validation.json"
        )
    if gaps := found["demonstrations"]:
        largest = gaps["observation_gap_max"]
        observed = "" if largest is None else f", in an observation {largest:.3f}"
        returned = "no recorded rewards to compare"
        if gaps["recorded_mean_return"] is not None:
            returned = (
                f"recorded mean return {gaps['recorded_mean_return']:.2f}, replayed "
                f"{gaps['replayed_mean_return']:.2f}; largest gap in an episode's return "
                f"{gaps['return_gap_max']:.2f}"
            )
        run.say(f"demonstrations: {returned}{observed}")
    replay = found["replay"]
    run.say(
        f"ok, {counted(found['warnings'], 'warning')}, "
        f"{counted(replay['replayed'], 'episode')} replayed"
    )


def _id(finding: dict[str, str]) -> str:
    """Return the name for ``validate.acknowledge``, unless the message contains it."""
    name = finding.get("id", "")
    return f" [{name}]" if name and name not in finding["message"] else ""


if __name__ == "__main__":
    run_stage("validate", main)
