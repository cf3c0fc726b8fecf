"""What a case is, how its sides are measured beside each other, and what follows for its goal."""

from __future__ import annotations

import gc
import resource
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any, Literal

import psutil

Unit = Literal["s", "µs/step", "steps/s", "MB/s", "MB", "%"]
#: of a rate, more is better
RATES: tuple[Unit, ...] = ("steps/s", "MB/s")
#: no times: a run returns them
_RETURNED: tuple[Unit, ...] = ("MB", "%")
Clock = Literal["cpu", "wall"]

#: a shorter run is repeated within one measurement, where it leaves nothing behind
_SHORTEST = 0.02
_MOST_CALLS = 1000
#: a first run that took longer counts: caches and memory that the system gives out for the first
#: time matter little in it
_WARM_UP = 1.0


class When(Enum):
    """Which runs a case belongs to."""

    FULL = "full"
    SMALL = "small"
    BOTH = "both"


@dataclass(frozen=True)
class Seconds:
    """Time that something took: of the processors, with that of child processes, and in all."""

    cpu: float
    wall: float

    @classmethod
    def now(cls) -> Seconds:
        """Return what the clocks show."""
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = time.process_time() + children.ru_utime + children.ru_stime
        return cls(cpu, time.perf_counter())


@dataclass(frozen=True)
class Side:
    """One of those that are compared.

    Attributes:
        run: what is measured. Of a case in MB or % it returns them; if it returns seconds, such as
            those of another process, these count.
        before: what goes before each run and does not count; without it a short run is repeated.
        after: what goes after each run and does not count.
        steps: of a case in steps/s, those of a run, where they are not as many as the case says.
    """

    run: Callable[[], Any]
    before: Callable[[], Any] | None = None
    after: Callable[[], Any] | None = None
    steps: int | None = None


@dataclass(frozen=True)
class Skipped:
    """A side that cannot run here.

    Attributes:
        reason: why.
    """

    reason: str


Sides = Mapping[str, Side | Skipped]


@dataclass(frozen=True)
class Goal:
    """What is to be reached; None where nothing is asked for.

    Attributes:
        ratio: this library takes so many times less than Minari.
        of_limit: share of the physical limit that it reaches.
        at_most: what it takes, in the unit of the case.
        beside_limit: ``at_most`` comes on top of what the limit takes.
        beside: it is so many times faster than what :attr:`Case.beside` names.
    """

    ratio: float | None = None
    of_limit: float | None = None
    at_most: float | None = None
    beside_limit: bool = False
    beside: float | None = None

    def text(self, unit: Unit, beside: str = "") -> str:
        """Return it for a table.

        Args:
            unit: of the case.
            beside: as the case names it.
        """
        parts = []
        if self.ratio is not None:
            parts.append(f"{self.ratio:g}×")
        if self.of_limit is not None:
            parts.append(f"{self.of_limit:.0%}")
        if self.at_most is not None:
            more = " + encoding" if self.beside_limit else ""
            parts.append(f"≤ {shown(self.at_most, unit)}{more}")
        if self.beside is not None:
            parts.append(f"{self.beside:g}× {beside}")
        return ", ".join(parts)


@dataclass(frozen=True)
class Case:
    """Something that both libraries do.

    Attributes:
        group: part of the table.
        name: what it is.
        size: of the data, or of the run.
        prepare: makes what the sides need and returns them: ``minari``, ``here``, and where there
            is one ``limit``, which does the same by the shortest way. Of a case in µs/step,
            ``bare`` is what the other sides stand on top of. ``beside`` is another way to do it.
        goal: what is to be reached.
        unit: of its figures.
        clock: of its times.
        beside: what the side of this name is.
        steps: of a run, of a case in µs/step or steps/s; of one in MB/s its megabytes.
        repeats: how often each side runs, if there is time.
        seconds: wall time after which a side is not run again; None leaves it to the run.
        when: the run that it belongs to.
    """

    group: str
    name: str
    size: str
    prepare: Callable[[], Sides]
    goal: Goal = field(default_factory=Goal)
    unit: Unit = "s"
    clock: Clock = "cpu"
    beside: str = ""
    steps: int = 1
    repeats: int = 9
    seconds: float | None = None
    when: When = When.BOTH

    @property
    def title(self) -> str:
        """Name, size, and the clock if it is not that of most cases."""
        return f"{self.name}, {self.size}{', wall time' if self.clock == 'wall' else ''}"


@dataclass
class Result:
    """What came of a case; :meth:`record` is what ``results.json`` has of it."""

    case: Case
    repeats: dict[str, list[Any]]
    skipped: dict[str, str]
    steps: dict[str, int] = field(default_factory=dict)
    """Of the sides that make another number of them than the case says."""

    def value(self, side: str) -> float | None:
        """Return the median of a side in the unit of the case, None if it did not run."""
        repeats = self.repeats.get(side)
        if not repeats:
            return None
        case = self.case
        if case.unit in _RETURNED:
            return statistics.median(repeats)
        seconds = self._seconds(side)
        if case.unit == "s":
            return statistics.median(seconds)
        if case.unit in RATES:
            return self.steps.get(side, case.steps) / statistics.median(seconds)
        # each run stands beside the bare one of its round: what slows the machine slows both
        rounds = zip(seconds, self._seconds("bare"), strict=False)
        return 1e6 * statistics.median(own - base for own, base in rounds) / case.steps

    def _seconds(self, side: str) -> list[float]:
        return [getattr(repeat, self.case.clock) for repeat in self.repeats[side]]

    def _times_better(self, side: str) -> float | None:
        """How many times less this library takes than a side; None if it cannot be said."""
        there, here = self.value(side), self.value("here")
        if there is None or here is None or here < _LEAST.get(self.case.unit, 0.0):
            return None
        return here / there if self.case.unit in RATES else there / here

    @property
    def ratio(self) -> float | None:
        """How many times less this library takes than Minari; None if it cannot be said."""
        return self._times_better("minari")

    @property
    def of_beside(self) -> float | None:
        """How many times less it takes than what it stands beside; None if it cannot be said."""
        return self._times_better("beside")

    @property
    def of_limit(self) -> float | None:
        """Share of the physical limit that this library reaches."""
        if self.case.unit != "s" and self.case.unit not in RATES:
            return None
        return self._times_better("limit")

    @property
    def reached(self) -> bool | None:
        """Whether the goal is reached; None if there is none or it cannot be said."""
        goal, here = self.case.goal, self.value("here")
        judged: list[bool] = []
        for wanted, found in (
            (goal.ratio, self.ratio),
            (goal.of_limit, self.of_limit),
            (goal.beside, self.of_beside),
        ):
            if wanted is not None and found is not None:
                judged.append(found >= wanted)
        if goal.at_most is not None and here is not None:
            allowance = (self.value("limit") or 0.0) if goal.beside_limit else 0.0
            judged.append(here <= goal.at_most + allowance)
        return all(judged) if judged else None

    @property
    def goal_ratio(self) -> float | None:
        """The ratio to Minari with which the goal would just be reached."""
        goal, minari, beside = self.case.goal, self.value("minari"), self.value("beside")
        if goal.beside is not None and minari is not None and beside is not None:
            return goal.beside * beside / minari  # of rates
        if goal.ratio is not None or goal.at_most is None or minari is None:
            return goal.ratio
        if self.case.unit == "MB":
            return None  # a bound for every length, no matter what Minari needs for this one
        allowance = (self.value("limit") or 0.0) if goal.beside_limit else 0.0
        return minari / (goal.at_most + allowance)

    def record(self) -> dict[str, Any]:
        """Return everything as plain values."""
        case = self.case
        return {
            "group": case.group,
            "case": case.name,
            "size": case.size,
            "unit": case.unit,
            "clock": case.clock,
            "minari": self.value("minari"),
            "here": self.value("here"),
            "limit": self.value("limit"),
            "ratio": self.ratio,
            "of_limit": self.of_limit,
            "beside": case.beside,
            "beside_value": self.value("beside"),
            "of_beside": self.of_beside,
            "goal_beside": case.goal.beside,
            "goal": case.goal.text(case.unit, case.beside),
            "goal_ratio": self.goal_ratio,
            "reached": self.reached,
            "skipped": self.skipped,
            "steps": case.steps,
            "steps_of_sides": self.steps,
            "repeats": {
                name: [
                    asdict(repeat) if isinstance(repeat, Seconds) else repeat for repeat in repeats
                ]
                for name, repeats in self.repeats.items()
            },
        }


#: below which a difference of two measurements has vanished in their noise
_LEAST: dict[Unit, float] = {"s": 1e-9, "µs/step": 0.05, "MB": 1e-3}


def measure(case: Case, *, seconds: float) -> Result:
    """Run the sides of a case by turns.

    Args:
        case: what to run.
        seconds: wall time after which a side is not run again; once it always is.
    """
    skipped: dict[str, str] = {}
    sides: dict[str, Side] = {}
    for name, side in case.prepare().items():
        if isinstance(side, Skipped):
            skipped[name] = side.reason
        else:
            sides[name] = side
    gc.collect()
    gc.freeze()  # the data of a case are nothing to look through again and again
    try:
        repeats = _by_turns(case, sides, skipped, seconds)
    finally:
        gc.unfreeze()
    steps = {name: side.steps for name, side in sides.items() if side.steps is not None}
    return Result(case, repeats, skipped, steps)


def _by_turns(
    case: Case, sides: dict[str, Side], skipped: dict[str, str], seconds: float
) -> dict[str, list[Any]]:
    repeats: dict[str, list[Any]] = {}
    used = dict.fromkeys(sides, 0.0)
    calls: dict[str, int] = {}
    for _ in range(case.repeats):
        turn = [name for name in sides if used[name] <= seconds and name != "bare"]
        if turn and "bare" in sides:
            turn.insert(0, "bare")  # each side is compared with the bare run of its round
        for name in turn:
            began = time.perf_counter()
            try:
                if name not in calls:
                    first = _run(case, sides[name], 1)
                    taken = first.wall if isinstance(first, Seconds) else _WARM_UP
                    if taken >= _WARM_UP:  # else it was one
                        calls[name] = 1
                        repeats[name] = [first]
                        used[name] += time.perf_counter() - began
                        continue
                    calls[name] = _calls(case, sides[name])
                repeats.setdefault(name, []).append(_run(case, sides[name], calls[name]))
            except Exception as error:
                if name != "minari":
                    raise
                skipped[name] = f"raises {type(error).__name__}: {str(error).splitlines()[0]}"
                repeats.pop(name, None)
                del sides[name]
                continue
            used[name] += time.perf_counter() - began
    return repeats


def _calls(case: Case, side: Side) -> int:
    """How many calls a measurement needs to be longer than the clock's noise."""
    if case.unit in _RETURNED or side.before is not None or side.after is not None:
        return 1
    # not those of the first run, which opened files and imported modules
    taken = _run(case, side, 1).wall
    return max(1, min(_MOST_CALLS, int(_SHORTEST / max(taken, 1e-7))))


def _run(case: Case, side: Side, calls: int) -> Any:
    """One measurement: seconds of a call, or what it returned if that is the case's figure."""
    if side.before is not None:
        side.before()
    gc.collect()
    beside = _of_living_children()
    began = Seconds.now()
    for _ in range(calls):
        returned = side.run()
    ended = Seconds.now()
    beside = _of_living_children() - beside
    if side.after is not None:
        side.after()
    if case.unit in _RETURNED:
        return float(returned)
    if isinstance(returned, Seconds):
        return returned
    return Seconds((ended.cpu - began.cpu + beside) / calls, (ended.wall - began.wall) / calls)


def _of_living_children() -> float:
    """CPU seconds of processes that were started here, or by those, and still run."""
    seconds = 0.0
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # it ended meanwhile
            seconds += sum(child.cpu_times()[:4])
    return seconds


def shown(value: float, unit: Unit) -> str:
    """Return a figure with three digits and its unit.

    Example:
        >>> shown(0.0123, "s"), shown(1.5, "µs/step"), shown(240.0, "MB")
        ('12.3 ms', '1.5 µs/step', '240 MB')
    """
    if unit != "s":
        return f"{_three(value)} {unit}"
    for name, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= size or name == "µs":
            return f"{_three(value / size)} {name}"
    raise AssertionError(value)


def _three(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
