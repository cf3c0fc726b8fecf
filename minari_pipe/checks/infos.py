"""Compare the infos and extra step data of episodes; warn of NaN and of shifted rows."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import numpy as np

from minari_pipe.checks.base import Check, Episode, Finding, Subject
from minari_pipe.checks.values import finite_rows
from minari_pipe.core.tree import Path, join_path, leaves

#: Dtype kind and row shape; integers and floats are one kind, as a collector may widen them.
Form = tuple[str, tuple[int, ...]]


class Infos(Check):
    """Warns of infos and extra step data that some episodes lack, or whose dtype or shape varies.

    Some episodes may lack a key that the environment gives only at some steps, such as the last;
    an episode that has it lists the filled rows in ``infos_filled`` or ``extras_filled``. A key
    that is on every row (or on all but the reset's) is expected in every episode. Findings of
    replay are not repeated.
    """

    name = "infos"

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        self._n_episodes = 0
        self._first: tuple[int, frozenset[Path]] = (0, frozenset())
        """Index of the first checked episode, and its keys."""
        self._having: Counter[Path] = Counter()
        self._first_having: dict[Path, int] = {}
        self._first_lacking: dict[Path, tuple[int, frozenset[Path]]] = {}
        """Index and keys of the first episode that lacks a key which others have."""
        self._occasional: set[str] = set()
        """Keys that the environment gives only at some steps."""
        self._forms: defaultdict[Path, Counter[Form]] = defaultdict(Counter)
        self._first_of_form: dict[tuple[Path, Form], tuple[int, str]] = {}

    def episode(self, episode: Episode) -> Iterable[Finding]:
        if not episode.is_sound or episode.n_steps is None:
            return ()
        columns = dict(_leaves(episode))
        here = (episode.index, frozenset(columns))
        if self._n_episodes == 0:
            self._first = here
        self._n_episodes += 1
        for name, ranges in episode.filled.items():
            # With a single step, "at every step" and "at the end" look the same.
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
            if episode.path(join_path(path)) not in episode.reported:
                dtype = getattr(column, "dtype", None)  # other storages may return lists
                form = ("O", ()) if dtype is None else (_kind(dtype.kind), column.shape[1:])
                name = "text" if form[0] == "O" else str(dtype)
                described = f"{name} rows of shape {form[1]}"
                self._forms[path][form] += 1
                self._first_of_form.setdefault((path, form), (episode.index, described))
        return ()

    def finish(self) -> Iterator[Finding]:
        yield from self._uneven()
        for path, forms in self._forms.items():
            # Counter.most_common lists equal counts in insertion order.
            (usual, n_usual), *others = forms.most_common()
            if others:
                index, odd = min(self._first_of_form[path, form] for form, _ in others)
                yield self.warning(
                    f"episode {index} / {join_path(path)}",
                    f"has {odd}; {n_usual} of {forms.total()} episodes have "
                    f"{self._first_of_form[path, usual][1]}",
                )

    def _uneven(self) -> Iterator[Finding]:
        """Warn of keys that some episodes lack, once per branch that is missing as a whole."""
        n = self._n_episodes
        steady = {p: k for p, k in self._having.items() if join_path(p) not in self._occasional}
        usual = {path for path, having in steady.items() if 2 * having >= n}
        found: dict[tuple[int, Path], str] = {}
        for path, having in steady.items():
            if having == n:
                continue
            if path in usual:
                index, others = self._first_lacking[path]
                text = f"{n - having} of {n} episodes lack it; this is the first"
            else:
                index, others = self._first_having[path], frozenset(usual)
                text = f"{having} of {n} episodes have it; this is the first"
            found.setdefault((index, _branch(path, others)), text)
        for (index, branch), text in found.items():
            yield self.warning(f"episode {index} / {join_path(branch)}", text)


def _branch(path: Path, others: Collection[Path]) -> Path:
    """Return the shortest prefix of ``path`` that none of ``others`` shares."""
    root = 2 if path[0] == "extras" else 1  # each extra is a column of its own
    return next(
        path[:n]
        for n in range(root, len(path) + 1)
        if n == len(path) or all(other[:n] != path[:n] for other in others)
    )


def _kind(kind: str) -> str:
    return "number" if kind in "iuf" else kind


def _leaves(episode: Episode) -> Iterator[tuple[Path, Any]]:
    """Yield each column of infos and extra step data, with its path."""
    return leaves({"infos": episode.infos or {}, "extras": episode.extras or {}})


class InfoRows(Check):
    """Warns of infos and extra step data that are NaN or infinite, and of infos shifted by one row.

    Such values are legitimate in rows that a collector filled, and if replay saw the environment
    give them. If an info element repeats an observation element or the reward, its rows must match
    theirs.
    """

    name = "info_rows"
    warnings = ("nan-infos", "nan-extras", "shifted-infos")

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        self._n_episodes = 0
        self._replayed: set[Path] = set()
        """Infos that replay compared with the environment's in some episode."""
        self._found: dict[tuple[str, Path], tuple[Finding, int]] = {}
        """The first finding and the number of episodes, by warning id and column."""

    def episode(self, episode: Episode) -> Iterable[Finding]:
        if not episode.is_sound or episode.n_steps is None:
            return ()
        self._n_episodes += 1
        replayed = {("infos", *path) for path in episode.replayed_infos}
        self._replayed |= replayed
        filled = episode.filled
        looks_at_rows = self._n_episodes <= EPISODES and episode.n_steps >= MIN_STEPS
        for path, column in _leaves(episode):
            if getattr(column, "dtype", np.dtype(object)).kind not in "iuf":
                continue
            where = episode.path(join_path(path))
            if path not in replayed and where not in episode.reported:
                finite = finite_rows(column)
                for begin, end in filled.get(join_path(path), []):
                    finite[begin:end] = True
                if not finite.all():
                    row = int(finite.argmin())
                    values = column[row][~np.isfinite(column[row])]
                    value = "NaN" if np.isnan(values).any() else values[0]
                    self._count(f"nan-{path[0]}", path, where, f"row {row} is {value}")
            if path[0] == "extras" or path in replayed or not looks_at_rows:
                continue
            if off := _rows_off(episode, column):
                self._count("shifted-infos", path, where, off)
        return ()

    def _count(self, id: str, path: Path, where: str, what: str) -> None:
        first, n = self._found.get((id, path), (self.warning(where, what, id), 0))
        self._found[id, path] = first, n + 1

    def finish(self) -> Iterator[Finding]:
        for (id, path), (first, n) in self._found.items():
            if id == "nan-infos" and path in self._replayed:
                continue  # in replayed episodes the environment gave this info
            message = f"{first.message}; in {n} of {self._n_episodes} episodes"
            yield self.warning(first.path, message, first.id)


#: Only the first episodes, up to this many, are searched for shifted rows.
EPISODES = 20
MIN_STEPS = 4
#: Only the first elements of a row, up to this many, are searched for shifts.
MAX_ELEMENTS = 64


def _rows_off(episode: Episode, column: np.ndarray) -> str | None:
    """Return how an info is shifted against the column it repeats, or ``None`` if it is not."""
    repeated = {"rewards": np.asarray(episode.rewards)[:, None]}
    repeated |= {
        join_path(("observations", *path)): _flat(leaf)
        for path, leaf in leaves(episode.observations)
        if getattr(leaf, "dtype", np.dtype(object)).kind in "iuf"
    }
    info = _flat(column)[:, :MAX_ELEMENTS]
    info = info[:, (info[1:] != info[:-1]).any(axis=0)]  # constants match at every shift
    off = None
    for name, values in repeated.items():
        values = values[:, :MAX_ELEMENTS]
        if name == "rewards":  # the reward of step t belongs to info row t + 1
            pairs = {0: (info[1:], values), -1: (info[:-1], values), 1: (info[2:], values[:-1])}
        else:
            pairs = {0: (info, values), -1: (info[:-1], values[1:]), 1: (info[1:], values[:-1])}
        for shift, (theirs, ours) in pairs.items():
            if not _any_equal(theirs, ours):
                continue
            if shift == 0:
                return None
            off = f"repeats {name} one row too {'early' if shift < 0 else 'late'}"
    return off


def _any_equal(columns: np.ndarray, others: np.ndarray) -> bool:
    """Return whether a column equals a varying one of ``others`` in all rows."""
    for other in others.T:
        if (other != other[0]).any() and (columns == other[:, None]).all(axis=0).any():
            return True
    return False


def _flat(column: np.ndarray) -> np.ndarray:
    return np.asarray(column).reshape(len(column), -1)
