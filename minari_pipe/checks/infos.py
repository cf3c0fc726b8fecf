"""Infos of the episodes: against each other, for missing values, and for rows out of step."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator

import numpy as np

from minari_pipe.checks.base import Check, Episode, Finding, Subject
from minari_pipe.core.tree import Path, join_path, leaves

Form = tuple[str, tuple[int, ...]]
"""Kind of dtype and shape of a row; a collector may widen integers to floats, so both are one."""


class Infos(Check):
    """Warns of info keys that only some episodes have, or that have another form in some.

    A key that an environment gives at some steps only, such as at the last one, is legitimately
    in some episodes only: an episode that has it says in ``infos_filled`` which rows lack it.
    A key that is on every row (or on all but the reset's) is expected in every episode. What
    replay said about an info is not said again.
    """

    name = "infos"

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        self._n_episodes = 0
        self._first: tuple[int, frozenset[Path]] = (0, frozenset())
        """Number of the first episode that was looked at, and its keys."""
        self._having: Counter[Path] = Counter()
        self._first_having: dict[Path, int] = {}
        self._first_lacking: dict[Path, tuple[int, frozenset[Path]]] = {}
        """Number and keys of the first episode without a key that others have."""
        self._occasional: set[str] = set()
        """Keys that an environment gives at some steps only."""
        self._forms: defaultdict[Path, Counter[Form]] = defaultdict(Counter)
        self._first_of_form: dict[tuple[Path, Form], tuple[int, str]] = {}

    def episode(self, episode: Episode) -> Iterable[Finding]:
        if not episode.is_sound or episode.n_steps is None:
            return ()
        columns = dict(leaves(episode.infos or {}))
        here = (episode.index, frozenset(columns))
        if self._n_episodes == 0:
            self._first = here
        self._n_episodes += 1
        for name, ranges in episode.infos_filled.items():
            # After a single step nobody can tell "at every step" from "at the end".
            if ranges != [[0, 1]] or episode.n_steps == 1:
                self._occasional.add(name)
        for path in columns.keys() - self._having.keys():
            self._first_having[path] = episode.index
            if self._n_episodes > 1:
                self._first_lacking[path] = self._first
        for path in self._having.keys() - columns.keys():
            self._first_lacking.setdefault(path, here)
        self._having.update(columns.keys())
        for path, column in columns.items():
            if episode.path(_joined(path)) not in episode.reported:
                dtype = getattr(column, "dtype", None)  # another storage may have lists
                form = ("O", ()) if dtype is None else (_kind(dtype.kind), column.shape[1:])
                name = "text" if form[0] == "O" else str(dtype)
                described = f"{name} rows of shape {form[1]}"
                self._forms[path][form] += 1
                self._first_of_form.setdefault((path, form), (episode.index, described))
        return ()

    def finish(self) -> Iterator[Finding]:
        yield from self._uneven()
        for path, forms in self._forms.items():
            # Counter.most_common lists equal counts in the order they came in.
            (usual, n_usual), *others = forms.most_common()
            if others:
                index, odd = min(self._first_of_form[path, form] for form, _ in others)
                yield self.warning(
                    f"episode {index} / {_joined(path)}",
                    f"{odd}, {n_usual} of {forms.total()} episodes have "
                    f"{self._first_of_form[path, usual][1]}",
                )

    def _uneven(self) -> Iterator[Finding]:
        """Keys that some episodes lack: one finding for a branch that is missing as a whole."""
        n = self._n_episodes
        steady = {p: k for p, k in self._having.items() if join_path(p) not in self._occasional}
        usual = {path for path, having in steady.items() if 2 * having >= n}
        found: dict[tuple[int, Path], str] = {}
        for path, having in steady.items():
            if having == n:
                continue
            if path in usual:
                index, others = self._first_lacking[path]
                told = f"{n - having} of {n} episodes lack it, this is the first"
            else:
                index, others = self._first_having[path], frozenset(usual)
                told = f"{having} of {n} episodes have it, this is the first"
            found.setdefault((index, _branch(path, others)), told)
        for (index, branch), told in found.items():
            yield self.warning(f"episode {index} / {_joined(branch)}", told)


def _branch(path: Path, others: Collection[Path]) -> Path:
    """The shortest beginning of ``path`` that none of ``others`` has."""
    return next(
        path[:n]
        for n in range(len(path) + 1)
        if n == len(path) or all(other[:n] != path[:n] for other in others)
    )


def _kind(kind: str) -> str:
    return "number" if kind in "iuf" else kind


def _joined(path: Path) -> str:
    return join_path(("infos", *path))


class InfoRows(Check):
    """Warns of infos that are NaN, and of infos one row off what they repeat.

    NaN is legitimate where a collector filled a row, and where the environment gives it, as replay
    found. An element that repeats one of the observations, or the rewards, tells which row it is.
    """

    name = "info_rows"
    warnings = ("nan-infos", "shifted-infos")

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        self._n_episodes = 0
        self._replayed: set[Path] = set()
        """Infos that the environment gives, as replay found in some episode."""
        self._found: dict[tuple[str, Path], tuple[Finding, int]] = {}
        """The first finding and the number of episodes, by id and column."""

    def episode(self, episode: Episode) -> Iterable[Finding]:
        if not episode.is_sound or episode.n_steps is None:
            return ()
        self._n_episodes += 1
        self._replayed |= episode.replayed_infos
        looks_at_rows = self._n_episodes <= EPISODES and episode.n_steps >= MIN_STEPS
        for path, column in leaves(episode.infos or {}):
            if getattr(column, "dtype", np.dtype(object)).kind not in "iuf":
                continue
            where = episode.path(_joined(path))
            if path not in episode.replayed_infos and where not in episode.reported:
                missing = np.isnan(column).reshape(len(column), -1).any(axis=1)
                for begin, end in episode.infos_filled.get(join_path(path), []):
                    missing[begin:end] = False
                if missing.any():
                    self._count("nan-infos", path, where, f"row {missing.argmax()} is NaN")
            is_replayed = path in episode.replayed_infos
            if looks_at_rows and not is_replayed and (off := _rows_off(episode, column)):
                self._count("shifted-infos", path, where, off)
        return ()

    def _count(self, id: str, path: Path, where: str, what: str) -> None:
        first, n = self._found.get((id, path), (self.warning(where, what, id), 0))
        self._found[id, path] = first, n + 1

    def finish(self) -> Iterator[Finding]:
        for (id, path), (first, n) in self._found.items():
            if id == "nan-infos" and path in self._replayed:
                continue  # the environment gives it, in episodes that were replayed
            message = f"{first.message}; in {n} of {self._n_episodes} episodes"
            yield self.warning(first.path, message, first.id)


EPISODES = 20
"""So many of the first episodes are looked at for rows that are off."""
MIN_STEPS = 4
MAX_ELEMENTS = 64
"""Of a row, for the same."""


def _rows_off(episode: Episode, column: np.ndarray) -> str | None:
    """How the rows of an info are off those that its elements repeat, ``None`` if they are not."""
    repeated = {"rewards": np.asarray(episode.rewards)[:, None]}
    repeated |= {
        join_path(("observations", *path)): _flat(leaf)
        for path, leaf in leaves(episode.observations)
        if getattr(leaf, "dtype", np.dtype(object)).kind in "iuf"
    }
    info = _flat(column)[:, :MAX_ELEMENTS]
    info = info[:, (info[1:] != info[:-1]).any(axis=0)]  # what never changes is on every row
    off = None
    for name, values in repeated.items():
        values = values[:, :MAX_ELEMENTS]
        if name == "rewards":  # of step t, which info t + 1 is about
            pairs = {0: (info[1:], values), -1: (info[:-1], values)}
        else:
            pairs = {0: (info, values), -1: (info[:-1], values[1:]), 1: (info[1:], values[:-1])}
        for shift, (theirs, ours) in pairs.items():
            if not _any_equal(theirs, ours):
                continue
            if shift == 0:
                return None
            off = f"is {name} one row too {'early' if shift < 0 else 'late'}"
    return off


def _any_equal(columns: np.ndarray, others: np.ndarray) -> bool:
    """Whether an element of the one is one of the other, in all rows."""
    for other in others.T:
        if (other != other[0]).any() and (columns == other[:, None]).all(axis=0).any():
            return True
    return False


def _flat(column: np.ndarray) -> np.ndarray:
    return np.asarray(column).reshape(len(column), -1)
