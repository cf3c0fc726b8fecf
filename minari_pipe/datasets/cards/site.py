"""Make a static site of datasets: pages to browse, and one page for each.

::

    index.html               all datasets; above 500, their namespaces and the datasets without one
    datasets.json            the same for programs
    datasets/<id>.html       one dataset, with its film beside it
    namespaces/<name>.html   only above 500 datasets

The pages need no server, ask for nothing outside the folder, and can be read without scripts, which
search, filter and sort.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from minari_pipe.core.dataset_id import parse_dataset_id
from minari_pipe.core.files.locks import hidden_folder
from minari_pipe.core.json_object import json_object
from minari_pipe.datasets.cards import charts
from minari_pipe.datasets.cards.facts import Facts
from minari_pipe.datasets.cards.folder import refuse_dataset
from minari_pipe.datasets.cards.page import page, source_of, template
from minari_pipe.datasets.cards.words import (
    commercial_use,
    file_size,
    line_of,
    number,
    percent,
)
from minari_pipe.errors import ConfigError, LinkError, MinariPipeError

#: most datasets on one page; above, there is a page for each namespace
MOST = 500
#: bins of the small charts
_BINS = 24
#: what a list shows of a value that is not known
_UNKNOWN = "\N{EN DASH}"
_INDEX, _JSON = "index.html", "datasets.json"
_ORDERS = (
    ("id", "name"),
    ("score", "normalized score"),
    ("success", "success"),
    ("episodes", "episodes"),
    ("size", "size"),
)


@dataclass(frozen=True)
class Entry:
    """A dataset of a site.

    Attributes:
        facts: what is known of it.
        description: the content of its ``croissant.json``; empty if there is none.
        film: its film, if there is one.
    """

    facts: Facts
    description: Mapping[str, Any]
    film: bytes | None

    @cached_property
    def still(self) -> bytes:
        """The first frame of its film; empty if there is none."""
        return b"" if self.film is None else still_of(self.film)

    @property
    def place(self) -> str:
        """The path of its page, without the ending."""
        return f"datasets/{self.facts.dataset_id}"

    @property
    def namespace(self) -> str:
        """Its namespace; empty if it has none."""
        return parse_dataset_id(self.facts.dataset_id)[0] or ""


#: id of a dataset, with what reads it
Given = tuple[str, Callable[[], Entry]]


@dataclass(frozen=True)
class Written:
    """What was written of a dataset.

    Attributes:
        names: its files in the site.
        namespace: its namespace.
        row: what a list shows of it.
        left_out: why nothing was written; empty if it was.
    """

    names: Sequence[str] = ()
    namespace: str = ""
    row: Mapping[str, Any] = field(default_factory=dict)
    left_out: str = ""


#: Calls a function with each dataset and returns the results in their order, as ``map`` does.
Run = Callable[[Callable[[Given], Written], Iterable[Given]], Iterable[Written]]


def write_site(target: Path, entries: Iterable[Given], title: str, run: Run = map) -> int:
    """Write a site into a folder, in place of an older site; return the number of datasets.

    Args:
        target: the folder.
        entries: the ids of the datasets, in the order of the pages, each with what reads it. One
            that cannot be read is left out with a warning.
        title: heading of the first page.
        run: calls what writes a dataset with each of them, maybe in other processes.

    Raises:
        ConfigError: the folder holds files that are not those of a site.
        LinkError: it is a symlink.
    """
    if target.is_symlink():
        raise LinkError(f"{target} is a symlink; give --output the folder itself")
    target = Path(os.path.abspath(target))
    if Path.cwd().is_relative_to(target):
        raise ConfigError(f"{target} is, or holds, the current folder; give --output another one")
    refuse_dataset(target)
    _refuse_others(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    with hidden_folder(target.parent) as aside:
        new = aside / "new"
        done = []
        for one in run(partial(_write_dataset, new), entries):
            if one.left_out:
                warnings.warn(one.left_out, stacklevel=2)
            else:
                done.append(one)
        if not done:
            raise ConfigError(f"there are no datasets to show, so no site is written to {target}")
        lists = dict(_lists(done, title))
        for name, content in lists.items():
            _write(new / name, content)
        datasets = [one.row["facts"] for one in done]
        files = sorted([*lists, *(name for one in done for name in one.names)])
        index = {"title": title, "datasets": datasets, "files": files}
        _write(new / _JSON, json.dumps(index).encode())
        _refuse_others(target)
        _put(new, target, aside / "old")
    return len(done)


def _write_dataset(folder: Path, given: Given) -> Written:
    dataset_id, read = given
    try:
        entry = read()
        row = _row(entry)
        files = dict(_files(entry, row))
    except Exception as error:  # whatever a stranger's dataset raises, the others are shown
        is_own = isinstance(error, MinariPipeError)
        reason = str(error) if is_own else f"{type(error).__name__}: {error}"
        return Written(left_out=f"{dataset_id} is left out: {reason}")
    for name, content in files.items():
        _write(folder / name, content)
    return Written(list(files), entry.namespace, row)


def _put(new: Path, target: Path, old: Path) -> None:
    """Move a new site to its place, and what was there to ``old``."""
    if not target.exists():
        os.replace(new, target)
        return
    os.replace(target, old)
    try:
        os.replace(new, target)
    except OSError:
        os.replace(old, target)
        raise


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def _refuse_others(target: Path) -> None:
    """Raise if a folder holds anything that this module did not write."""
    if not os.path.lexists(target):
        return
    if not target.is_dir():
        raise ConfigError(f"{target} is a file; give --output a folder")
    found = set(_everything_in(target))
    known: Any = []
    if _JSON in found:
        try:
            known = json_object((target / _JSON).read_bytes()).get("files")
        except (OSError, ValueError):
            known = []
    known = {_JSON, *known} if isinstance(known, list) and all(map(_is_text, known)) else set()
    if others := sorted(found - known):
        raise ConfigError(
            f"{target} holds {others[0]!r}, which is no file of a site, so it is not replaced; "
            "choose another --output"
        )


def _everything_in(target: Path) -> Iterator[str]:
    """Yield the paths of all files, links and empty folders, also of hidden ones."""
    for top, folders, files in os.walk(target):
        links = [name for name in folders if os.path.islink(os.path.join(top, name))]
        if not folders and not files and Path(top) != target:
            yield os.path.relpath(top, target)
        for name in (*files, *links):
            yield Path(os.path.relpath(os.path.join(top, name), target)).as_posix()


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _files(entry: Entry, row: Mapping[str, Any]) -> Iterator[tuple[str, bytes]]:
    """Yield the files of one dataset, by name."""
    place = entry.place
    back = "../" * place.count("/") + _INDEX
    description = json.dumps(entry.description) if entry.description else ""
    film = "" if entry.film is None else f"{place.rpartition('/')[2]}.webp"
    yield row["page"], page(entry.facts, description, film=film, back=back).encode()
    if entry.film is not None:
        yield f"{place}.webp", entry.film
    if entry.still:
        yield row["still"], entry.still


def _lists(done: list[Written], title: str) -> Iterator[tuple[str, bytes]]:
    """Yield the pages that list datasets, by name."""
    if len(done) <= MOST:
        yield _INDEX, _list([one.row for one in done], title)
        return
    of: dict[str, list[Mapping[str, Any]]] = {}
    for one in done:
        of.setdefault(one.namespace, []).append(one.row)
    alone = of.pop("", [])
    names = [
        {
            "name": namespace,
            "page": f"namespaces/{namespace}.html",
            "datasets": f"{len(rows):,}",
            "episodes": f"{sum(row['facts']['episodes'] for row in rows):,}",
        }
        for namespace, rows in sorted(of.items())
    ]
    yield _INDEX, _list(alone, title, namespaces=names)
    for namespace, rows in of.items():
        top = "../" * (namespace.count("/") + 1)
        yield f"namespaces/{namespace}.html", _list(rows, namespace, top=top)


def _list(
    rows: list[Mapping[str, Any]],
    title: str,
    *,
    namespaces: list[dict[str, str]] | None = None,
    top: str = "",
) -> bytes:
    """Return a page that lists datasets.

    Args:
        rows: the datasets.
        title: its heading.
        namespaces: namespaces with pages of their own.
        top: how to reach the folder of the site.
    """
    n = len(rows) + sum(int(one["datasets"].replace(",", "")) for one in namespaces or ())
    shown = [
        {**row, **{key: top + row[key] if row[key] else "" for key in ("page", "still")}}
        for row in rows
    ]
    text: str = template("site.html.j2").render(
        title=title,
        about=f"{n:,} dataset{'' if n == 1 else 's'} for offline reinforcement learning, in the "
        "Minari standard.",
        back=f"{top}{_INDEX}" if top else "",
        namespaces=namespaces,
        rows=shown,
        environments=sorted({row["environment"] for row in rows}),
        licenses=sorted({row["license"] for row in rows if row["license"]}),
        orders=_ORDERS,
        script=Markup(source_of("site.js")),
    )
    return text.encode()


@np.errstate(all="ignore")
def _row(entry: Entry) -> dict[str, Any]:
    """Return what a list shows of a dataset."""
    facts, outcomes = entry.facts, entry.facts.outcomes
    returns = outcomes.returns[np.isfinite(outcomes.returns)]
    scores = facts.normalized
    score = _mean(scores)
    won = outcomes.succeeded
    success = _mean(won)
    description = line_of(facts.metadata.get("description"), 120)
    license_name = line_of(facts.metadata.get("license"), 60)
    environment = line_of(facts.environment, 80) or "none"
    numbers = {
        "score": score,
        "success": success,
        "episodes": facts.total_episodes,
        "size": facts.size,
    }
    chart, spread = "", ""
    if len(returns):
        low, high = float(returns.min()), float(returns.max())
        spread = f"{number(low)} to {number(high)}" if high > low else number(low)
        # from the random policy to the expert, so that datasets can be compared
        ends = [low, high, *(end for end in (facts.random, facts.expert) if end is not None)]
        bins = charts.counts_of(returns, _BINS, min(ends), max(ends))
        about = f", on an axis from {number(min(ends))} to {number(max(ends))}"
        chart = charts.spark(bins, f"Histogram of returns, {spread}{about}")
    page_path = f"{entry.place}.html"
    text = f"{facts.dataset_id} {environment} {description} {license_name}".lower()
    return {
        "id": facts.dataset_id,
        "page": page_path,
        "still": f"{entry.place}-still.webp" if entry.still else "",
        "environment": environment,
        "license": license_name,
        "use": commercial_use(facts.metadata.get("license")),
        "description": description,
        "chart": Markup(chart),
        "returns": spread,
        "score": _UNKNOWN if score is None else f"{score:.3f}".replace("-", "\N{MINUS SIGN}"),
        "success": _UNKNOWN if success is None else percent(success),
        "episodes": f"{facts.total_episodes:,}",
        "steps": f"{facts.total_steps:,}",
        "size": file_size(facts.size),
        "text": text,
        "numbers": json.dumps(numbers),
        "facts": {
            "id": facts.dataset_id,
            "environment": environment,
            "description": line_of(facts.metadata.get("description")),
            "license": license_name or None,
            "episodes": facts.total_episodes,
            "steps": facts.total_steps,
            "mean_return": _mean(outcomes.returns),
            "normalized_score": score,
            "success": success,
            "size": facts.size,
            "page": page_path,
        },
    }


def _mean(values: npt.NDArray[Any] | None) -> float | None:
    """Return the mean; None if there is none that is finite, which JSON could not hold."""
    mean = np.nan if values is None or not len(values) else float(values.mean())
    return mean if np.isfinite(mean) else None


def still_of(film: bytes) -> bytes:
    """Return the first frame of an animated WebP as a picture; empty if the film has none.

    The frame is in a chunk ``ANMF``, behind 16 bytes about it, as a chunk that is a picture by
    itself; see https://developers.google.com/speed/webp/docs/riff_container.
    """
    place = 12
    if film[:4] != b"RIFF" or film[8:12] != b"WEBP":
        return b""
    while place + 8 <= len(film):
        name, size = film[place : place + 4], int.from_bytes(film[place + 4 : place + 8], "little")
        if name == b"ANMF":
            chunk = film[place + 24 : place + 8 + size]
            if chunk[:4] not in (b"VP8 ", b"VP8L"):
                return b""
            end = 8 + int.from_bytes(chunk[4:8], "little")
            picture = b"WEBP" + chunk[: end + end % 2]
            return b"RIFF" + len(picture).to_bytes(4, "little") + picture
        place += 8 + size + size % 2
    return b""
