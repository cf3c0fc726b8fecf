"""Run the checks on a dataset, reading every episode once, and collect their findings."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from minari_pipe.checks.advisory import ADVISORIES, Advisories
from minari_pipe.checks.base import (
    LEVELS,
    Check,
    Episode,
    Finding,
    Subject,
    is_count,
    relative,
    shown,
)
from minari_pipe.checks.columns import Columns
from minari_pipe.checks.coverage import Coverage
from minari_pipe.checks.demonstrations import WARNINGS as OF_DEMONSTRATIONS
from minari_pipe.checks.duplicates import Duplicates
from minari_pipe.checks.environment import Environment
from minari_pipe.checks.flags import Flags, TimeLimit
from minari_pipe.checks.infos import InfoRows, Infos
from minari_pipe.checks.layout import Layout
from minari_pipe.checks.metadata import Metadata
from minari_pipe.checks.reference import Reference
from minari_pipe.checks.replay import Replay
from minari_pipe.checks.rules import Rules
from minari_pipe.checks.scores import Scores
from minari_pipe.checks.shapes import Shapes
from minari_pipe.checks.totals import Ids, Size, Statistics, Totals
from minari_pipe.checks.values import Finite, Membership
from minari_pipe.core.messages import hidden_stdout
from minari_pipe.core.plugins import entry_points
from minari_pipe.errors import ConfigError, did_you_mean
from minari_pipe.storage.base import MinariStorage

#: The report lists this many findings of a check and counts the rest.
MAX_FINDINGS = 10

#: Entry-point group for checks of other packages: subclasses of ``Check``, or functions from a
#: ``Subject`` to findings.
ENTRY_POINTS = "minari_pipe.checks"

#: Checks in the order in which they run. Replay comes late because it would find again what
#: another check found in an episode. After it come heuristic checks of episodes that it could not
#: verify, and checks of infos, because replay can say what an info should have been.
CHECKS: dict[str, type[Check]] = {
    check.name: check
    for check in (
        Metadata,
        Scores,
        Advisories,
        Environment,
        Layout,
        Ids,
        Shapes,
        Finite,
        Membership,
        Flags,
        Totals,
        Statistics,
        Size,
        Replay,
        Rules,
        TimeLimit,
        Columns,
        Duplicates,
        Infos,
        InfoRows,
        Reference,
    )
}


@dataclass
class Report:
    """The result of a run: findings, acknowledged findings, and the coverage of replay."""

    findings: list[Finding] = field(default_factory=list)
    """At most ``MAX_FINDINGS`` of each check; one more says how many are not listed."""
    acknowledged: list[Finding] = field(default_factory=list)
    replay: Coverage = field(default_factory=lambda: Coverage(applicable=False, reason="not run"))
    counts: dict[str, int] = field(default_factory=dict)
    """Number of findings of every check that ran, including those not listed."""
    n_errors: int = 0
    n_warnings: int = 0
    skipped: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether the dataset may be published, that is, has no errors."""
        return self.n_errors == 0

    def to_json(self) -> dict[str, Any]:
        """Return JSON values; ``errors`` and ``warnings`` include findings not listed."""
        return {
            "ok": self.ok,
            "errors": self.n_errors,
            "warnings": self.n_warnings,
            "findings": [finding.to_json() for finding in self.findings],
            "acknowledged": [finding.to_json() for finding in self.acknowledged],
            "replay": self.replay.to_json(),
            "checks": dict(self.counts),
            "skipped": list(self.skipped),
        }


@hidden_stdout()  # of environments that the replay steps
def run(
    subject: Subject,
    *,
    extra: Iterable[Finding] = (),
    on_episode: Callable[[int, int], None] | None = None,
) -> Report:
    """Run every check on a dataset.

    Args:
        subject: the dataset.
        extra: findings from elsewhere, such as the policy that made the data, to report as well.
        on_episode: called after each episode with the number checked so far and the total.

    Raises:
        ConfigError: ``options.skip`` names a check that does not exist.
    """
    known = CHECKS | _installed_checks()
    skip = set(subject.options.skip)
    for name in sorted(skip - set(known)):
        hint = did_you_mean(name, known) or f" Known: {', '.join(known)}"
        raise ConfigError(f"validate.skip: unknown check {name!r}.{hint}")
    checks = [check(subject) for name, check in known.items() if name not in skip]
    collected = _Collected(subject.options.acknowledge)
    if subject.storage is None and not subject.metadata:
        checks = []
        collected.take([_unreadable("metadata", subject.fault)])
    for check in checks:
        collected.take(_guarded(check, "dataset", check.begin))
    unusable = _unusable(subject) if checks else None
    if unusable is not None:
        if not collected.n_errors("metadata"):  # otherwise already reported
            collected.take([unusable])
    elif subject.storage is not None and _pass_over(
        subject, subject.storage, checks, collected, on_episode
    ):
        for check in checks:
            collected.take(_guarded(check, "dataset", check.finish))
    collected.take(extra)
    ids = {id for check in checks for id in check.warnings}
    collected.take(_unknown_acknowledgements(subject, collected.ids | ids))
    report = collected.report([check.name for check in checks])
    report.skipped = sorted(skip)
    for check in checks:
        if isinstance(check, Replay):
            report.replay = check.coverage
    return report


def _unusable(subject: Subject) -> Finding | None:
    """Return why no episode can be checked, or ``None`` if they can."""
    if subject.storage is None:
        return _unreadable("data", subject.fault)
    for name in ("observation_space", "action_space"):
        if getattr(subject, name) is None:
            return _unreadable(
                f"metadata / {name}", "is missing or not a space of the Minari standard"
            )
    return None


def _pass_over(
    subject: Subject,
    storage: MinariStorage,
    checks: list[Check],
    collected: _Collected,
    on_episode: Callable[[int, int], None] | None,
) -> bool:
    """Read every episode once and pass it to every check; return False if that failed."""
    try:
        list(storage.get_episode_metadata([]))
    except Exception as exc:
        collected.take([_unreadable("data", relative(str(exc), subject.data_path))])
        return False
    expected = subject.metadata.get("total_episodes")
    for episode in _episodes(storage, expected):
        if episode.unreadable:
            # The storage counted a stray name as an episode; the layout check reports it.
            if collected.n_errors("layout") and is_count(expected) and episode.index >= expected:
                break
            message = relative(episode.unreadable, subject.data_path)
            collected.take([_unreadable(episode.path(), message)])
            episode.faults.add("readable")
        for check in checks:
            found = list(_guarded(check, episode.path(), check.episode, episode))
            episode.reported.update(finding.path for finding in found)
            if collected.take(found):
                episode.faults.add(check.name)
        if on_episode is not None and is_count(expected):
            on_episode(episode.index + 1, expected)
    return True


def _episodes(storage: MinariStorage, expected: Any) -> Iterator[Episode]:
    """Yield every episode in order; reopen the files only after one that cannot be read."""
    index = 0
    while True:
        try:
            pairs = zip(
                storage.get_unchecked_episodes(itertools.count(index)),
                storage.get_episode_metadata(itertools.count(index)),
                strict=False,
            )
            for columns, attributes in pairs:
                yield _episode(index, columns, attributes)
                index += 1
        except IndexError:  # there are no more
            return
        except Exception as exc:  # a damaged file may raise anything
            episode = _episode(index, {}, {})
            episode.unreadable = str(exc)
            yield episode
            index += 1
            if not isinstance(expected, int) or index >= expected:
                return


def _episode(index: int, columns: Mapping[str, Any], metadata: Mapping[str, Any]) -> Episode:
    return Episode(
        index,
        observations=columns.get("observations"),
        actions=columns.get("actions"),
        rewards=columns.get("rewards"),
        terminations=columns.get("terminations"),
        truncations=columns.get("truncations"),
        infos=columns.get("infos"),
        extras=columns.get("extras"),
        metadata=metadata,
    )


def _unreadable(path: str, message: str) -> Finding:
    return Finding("error", "readable", path, message)


def _unknown_acknowledgements(subject: Subject, seen: set[str]) -> Iterator[Finding]:
    known = seen | {entry.id for entry in ADVISORIES} | set(OF_DEMONSTRATIONS)
    for name in subject.options.acknowledge:
        if name not in known:
            hint = did_you_mean(name, known - {""})
            yield Finding(
                "warning", "advisory", "options / acknowledge", f"unknown warning {name!r}.{hint}"
            )


def _installed_checks() -> dict[str, type[Check]]:
    """Return the checks of other installed packages, which cannot replace built-in ones."""
    found: dict[str, type[Check]] = {}
    for point in entry_points(ENTRY_POINTS):
        if point.name not in CHECKS:
            found[point.name] = _as_check(point.name, point.load())
    return found


def _as_check(name: str, loaded: Any) -> type[Check]:
    if isinstance(loaded, type) and issubclass(loaded, Check):
        return loaded

    class FunctionCheck(Check):
        def begin(self) -> Iterable[Finding]:
            return loaded(self.subject)

    FunctionCheck.name = name
    return FunctionCheck


def _guarded(
    check: Check, path: str, hook: Callable[..., Iterable[Finding]], *args: Any
) -> Iterator[Finding]:
    """Yield the findings of a hook; if it raises, yield that as a finding."""
    try:
        yield from hook(*args)
    except Exception as exc:  # a failing check must not hide the findings of others
        what = f"{type(exc).__name__}: {shown(exc, 300)}"
        yield Finding("error", check.name, path, f"the check itself failed with {what}")


class _Collected:
    """Sorts findings into listed ones, acknowledged ones, and ones that are only counted."""

    def __init__(self, acknowledge: Iterable[str]) -> None:
        self._acknowledge = frozenset(acknowledge)
        self._findings: dict[str, list[Finding]] = {}
        self._acknowledged: list[Finding] = []
        self.counts: dict[str, Counter[str]] = {}
        self.ids: set[str] = set()

    def take(self, findings: Iterable[Finding]) -> bool:
        """Add findings; return whether any of them is an error."""
        any_error = False
        for finding in findings:
            self.ids.add(finding.id)
            if finding.level != "error" and finding.id and finding.id in self._acknowledge:
                self._acknowledged.append(finding)
                continue
            self.counts.setdefault(finding.check, Counter())[finding.level] += 1
            listed = self._findings.setdefault(finding.check, [])
            if len(listed) < MAX_FINDINGS:
                listed.append(finding)
            any_error |= finding.level == "error"
        return any_error

    def n_errors(self, check: str) -> int:
        """Return how many errors one check has reported so far."""
        return self.counts.get(check, Counter())["error"]

    def report(self, names: Iterable[str]) -> Report:
        report = Report(acknowledged=self._acknowledged)
        report.counts = dict.fromkeys(names, 0)
        for name, counts in self.counts.items():
            listed = self._findings[name]
            report.findings += listed
            report.counts[name] = counts.total()
            report.n_errors += counts["error"]
            report.n_warnings += counts["warning"]
            more = counts.total() - len(listed)
            if more:
                level = next(level for level in LEVELS if counts[level])
                report.findings.append(Finding(level, name, "dataset", f"and {more} more"))
        return report
