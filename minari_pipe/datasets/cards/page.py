"""Render ``report.html``: one page that shows a dataset, without scripts or outside addresses."""

from __future__ import annotations

import html
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup

from minari_pipe.datasets.cards import charts
from minari_pipe.datasets.cards.charts import Mark
from minari_pipe.datasets.cards.dates import in_script
from minari_pipe.datasets.cards.facts import AUTHORS_TEXTS, ElementFacts, Facts, Floats, Outcomes
from minari_pipe.datasets.cards.words import (
    commercial_use,
    count,
    file_size,
    line_of,
    number,
    percent,
)
from minari_pipe.datasets.statistics import QUANTILES, Column

if TYPE_CHECKING:
    import jinja2

#: the film of the episode of median return, beside the page
FILM = "episode.webp"

#: bins of the charts of returns and lengths
_BINS = 40
#: columns with charts, and elements of all columns that a page lists
_CHARTED, _LISTED = 64, 1000
#: characters of the name of a column
_LONGEST_NAME = 200
#: most files that a page lists
_FILES = 40
#: statistics of the table of columns
_SHOWN = ("mean", "std", "min", *QUANTILES, "max")


@cache
def source_of(name: str) -> str:
    """Return the text of a file of this package, such as ``style.css``."""
    return (files(__package__) / name).read_text(encoding="utf-8")


@cache
def template(name: str) -> jinja2.Template:
    """Return a template, which escapes what it shows and has the style of all pages."""
    import jinja2

    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    found = environment.from_string(source_of(name))
    found.globals["style"] = Markup(source_of("style.css"))
    return found


def inlined(film: bytes) -> str:
    """Return the address of a film for a page that holds it."""
    return f"data:image/webp;base64,{b64encode(film).decode()}"


@np.errstate(all="ignore")  # of values that are not finite, or too large to be added
def page(facts: Facts, description: str, *, film: str = FILM, back: str = "") -> str:
    """Return the page.

    Args:
        facts: what it says.
        description: the same as JSON-LD, for search engines; the page of a view leaves it out.
        film: address of the film; empty for none.
        back: address of the list of datasets that it belongs to, if any.
    """
    return template("page.html.j2").render(
        facts=facts,
        back=back,
        json_ld=Markup(in_script(description)),
        description=line_of(facts.metadata.get("description")),
        tiles=list(tiles_of(facts)),
        returns=_returns(facts),
        film=film,
        film_text=_film_text(facts),
        episode_lines=list(_episode_lines(facts)),
        lengths=_lengths(facts),
        notable=list(_notable(facts)),
        loading=loading(facts.dataset_id).items(),
        heads=_SHOWN,
        columns=list(_columns(facts)),
        left_out=_left_out(facts),
        findings=None if facts.findings is None else list(map(_finding, facts.findings)),
        faults=_faults(facts),
        texts=[(label, line_of(facts.texts.get(key))) for key, label in AUTHORS_TEXTS.items()],
        origin=list(origin(facts)),
        files=list(_files(facts)),
    )


def returns_chart(facts: Facts) -> str:
    """Return the histogram of the returns as SVG, with the reference scores that lie within."""
    return _returns_chart(facts, wide=False)


def loading(dataset_id: str) -> dict[str, str]:
    """Return the lines that load a dataset, by library."""
    return {
        "Minari": f'import minari\n\ndataset = minari.load_dataset("{dataset_id}", download=True)',
        "minari_pipe": (
            "import minari_pipe as minari\n\n"
            f'dataset = minari.load_dataset("{dataset_id}", download=True)\n'
            "for batch in dataset.transitions(256, seed=0):\n    ..."
        ),
        "TorchRL": (
            "from torchrl.data.datasets.minari_data import MinariExperienceReplay\n\n"
            f'replay = MinariExperienceReplay("{dataset_id}", batch_size=256)'
        ),
        "d3rlpy": (f'import d3rlpy\n\ndataset, env = d3rlpy.datasets.get_minari("{dataset_id}")'),
    }


def tiles_of(facts: Facts) -> Iterator[dict[str, str]]:
    """Yield the most important facts, each a name, a value and a note."""
    outcomes = facts.outcomes
    yield _tile("Environment", facts.environment or "none")
    yield _tile("Episodes", f"{facts.total_episodes:,}", f"{facts.total_steps:,} steps")
    if len(outcomes.returns):
        scores = facts.normalized
        score = np.nan if scores is None else float(scores.mean())
        more = f"normalized score {score:.3f}" if np.isfinite(score) else ""
        yield _tile("Mean return", number(float(outcomes.returns.mean())), more)
    if outcomes.succeeded is not None and len(outcomes.succeeded):
        won = int(outcomes.succeeded.sum())
        yield _tile("Success", percent(won / len(outcomes.succeeded)), f"{won:,} episodes")
    if facts.random is not None or facts.expert is not None:
        low, high = (number(end) or "?" for end in (facts.random, facts.expert))
        yield _tile("Reference scores", f"expert {high}", f"random {low}")
    whole = "" if facts.view_of is None else "of the whole dataset"
    yield _tile("Size", file_size(facts.size), whole)
    name = facts.metadata.get("license")
    yield _tile("License", line_of(name, 60) or "not stated", commercial_use(name))


def _tile(name: str, value: str, more: str = "") -> dict[str, str]:
    return {"name": name, "value": value, "more": more}


def _returns(facts: Facts) -> dict[str, Any] | None:
    returns = facts.outcomes.returns
    if not len(returns):
        return None
    wide = _returns_chart(facts, wide=True) if facts.normalized is not None else ""
    own = _returns_chart(facts, wide=False)
    return {"own": Markup(own), "wide": Markup(wide), "spread": spread_of(returns)}


def spread_of(returns: Floats) -> str:
    """Return in words where returns lie, of those that are finite.

    Example:
        >>> spread_of(np.array([1.0, 2.0, 6.0, np.nan]))
        '1 to 6, median 2, mean 3, standard deviation 2.16, and 1 is not finite'
    """
    finite = returns[np.isfinite(returns)]
    if not len(finite):
        return "none is finite"
    n = len(returns) - len(finite)
    odd = f", and {n:,} {'is' if n == 1 else 'are'} not finite" if n else ""
    low, middle, high = (float(value) for value in np.quantile(finite, (0, 0.5, 1)))
    if low == high:
        return f"all {number(low)}{odd}"
    mean, deviation = number(float(finite.mean())), number(float(finite.std()))
    return (
        f"{number(low)} to {number(high)}, median {number(middle)}, mean {mean}, "
        f"standard deviation {deviation}{odd}"
    )


def marks_of(facts: Facts) -> list[Mark]:
    """Return the reference scores as marks on an axis of returns."""
    return [
        Mark(value, f"{name} {number(value)}")
        for name, value in (("random", facts.random), ("expert", facts.expert))
        if value is not None
    ]


def _returns_chart(facts: Facts, *, wide: bool) -> str:
    returns = facts.outcomes.returns
    returns = returns[np.isfinite(returns)]
    low, high = (float(returns.min()), float(returns.max())) if len(returns) else (0.0, 0.0)
    marks = marks_of(facts)
    around = None
    if wide:
        ends = [low, high, *(mark.value for mark in marks)]
        margin = (max(ends) - min(ends)) * 0.03
        if not np.isfinite(margin):
            return ""
        around = (min(ends) - margin, max(ends) + margin)
    else:
        marks = [mark for mark in marks if low <= mark.value <= high]
    bins = charts.counts_of(returns, _BINS, low, high)
    title = f"Histogram of returns, from {number(low)} to {number(high)}"
    return charts.histogram(bins, low, high, title, marks=marks, around=around)


def _episode_lines(facts: Facts) -> Iterator[str]:
    outcomes = facts.outcomes
    n = len(outcomes.ids)
    if not n:
        return
    shortest, longest = int(outcomes.lengths.min()), int(outcomes.lengths.max())
    if shortest == longest:
        yield f"All have {longest:,} steps."
    else:
        median = number(float(np.median(outcomes.lengths)))
        yield f"{shortest:,} to {longest:,} steps, median {median}."
    terminated, truncated = outcomes.terminated, outcomes.truncated
    if terminated is not None and truncated is not None:
        ends = {
            "terminated": int((terminated & ~truncated).sum()),
            "truncated": int((truncated & ~terminated).sum()),
            "terminated and truncated at once": int((terminated & truncated).sum()),
            "without an end": int((~terminated & ~truncated).sum()),
        }
        yield ", ".join(f"{value:,} {name}" for name, value in ends.items() if value) + "."
    if outcomes.succeeded is not None:
        yield f"{int(outcomes.succeeded.sum()):,} of {n:,} reached success at some step."
    if outcomes.pairs is not None:
        steps = int(outcomes.lengths.sum())
        yield (
            f"{outcomes.pairs:,} distinct pairs of observation and action in {steps:,} steps "
            f"({percent(outcomes.pairs / max(steps, 1))})."
        )
    known = sum(seed is not None for seed in outcomes.seeds)
    yield f"{'All' if known == n else f'{known:,}'} have the seed of their reset."


def _lengths(facts: Facts) -> Markup | None:
    lengths = facts.outcomes.lengths
    if not len(lengths) or lengths.min() == lengths.max():
        return None
    low, high = int(lengths.min()), int(lengths.max())
    bins = charts.counts_of(lengths, min(_BINS, high - low + 1), low - 0.5, high + 0.5)
    title = f"Histogram of lengths, from {low:,} to {high:,} steps"
    return Markup(charts.histogram(bins, low - 0.5, high + 0.5, title))


def _notable(facts: Facts) -> Iterator[dict[str, Any]]:
    outcomes = facts.outcomes
    # without traces, as in a site, nobody asks which they are
    shown = outcomes.notable.items() if facts.traces else ()
    around = list(facts.traces.values())
    for name, place in shown:
        if (trace := facts.traces.get(place)) is None:
            continue
        success = ""
        if outcomes.succeeded is not None:
            success = ", success" if outcomes.succeeded[place] else ", no success"
        title = f"Return so far of the {name} episode"
        yield {
            "name": name.partition(",")[0],
            "id": outcomes.ids[place],
            "seed": outcomes.seeds[place],
            "end": _end(outcomes, place),
            "value": number(float(outcomes.returns[place])),
            "success": success,
            "chart": Markup(charts.trace(trace, title, around)),
        }


def _end(outcomes: Outcomes, place: int) -> str:
    """Return how an episode ended, such as ``terminated after 33 steps``."""
    ends = (("terminated", outcomes.terminated), ("truncated", outcomes.truncated))
    said = " and ".join(name for name, flags in ends if flags is not None and flags[place])
    n = int(outcomes.lengths[place])
    return f"{said} after {n:,} step{'' if n == 1 else 's'}".strip()


def _film_text(facts: Facts) -> str:
    place = facts.outcomes.median
    if place is None:
        return "No film."
    return f"Film of episode {facts.outcomes.ids[place]}, the one of median return, if it was made."


def _columns(facts: Facts) -> Iterator[dict[str, Any]]:
    charted = listed = 0
    for column in facts.columns:
        elements = facts.elements.get(column.name, ())
        shown = elements[: max(_LISTED - listed, 0)]
        listed += len(shown)
        known = all(one.histogram is not None for one in shown)
        with_charts = known and charted + len(shown) <= _CHARTED
        charted += len(shown) if with_charts else 0
        bounded = any(one.at_low is not None or one.at_high is not None for one in shown)
        yield {
            "name": line_of(column.name, _LONGEST_NAME),
            "about": _about(column),
            "charts": with_charts,
            "bounded": bounded,
            "n": len(shown),
            "rows": Markup(
                "\n".join(
                    _row(name, one, with_charts, bounded)
                    for name, one in zip(_element_names(column), shown, strict=False)
                )
            ),
        }


def _about(column: Column) -> str:
    if column.shape is None:
        return f"{column.rows:,} rows of text, or of several shapes"
    if column.row in ((), (1,)):
        return f"{column.rows:,} numbers"
    return f"{column.rows:,} rows of {' × '.join(map(str, column.row or ()))}"


def _element_names(column: Column) -> Iterator[str]:
    if not column.shape:
        yield "value"
        return
    for place in np.ndindex(column.shape):
        yield ", ".join(map(str, place))


def _row(name: str, element: ElementFacts, chart: bool, bounded: bool) -> str:
    """Return a row of the table of a column; a page has up to 1,000, too many for a template."""
    shown = [number(element.statistics[key]) for key in _SHOWN]
    row = f'<tr><th scope="row">{name}</th>'
    if chart and element.histogram is not None:
        title = f"Histogram of {name}, from {shown[_SHOWN.index('min')]} to {shown[-1]}"
        row += f"<td>{charts.spark(element.histogram.tolist(), title)}</td>"
    if bounded:
        ends = (element.at_low, element.at_high)
        shown += ["" if share is None else html.escape(percent(share)) for share in ends]
    cells = '</td><td class="n">'.join(shown)
    return f'{row}<td class="n">{cells}</td></tr>'


def _left_out(facts: Facts) -> str:
    n = sum(map(len, facts.elements.values())) - _LISTED
    return f"{n:,} more elements are in stats.json." if n > 0 else ""


def _faults(facts: Facts) -> list[dict[str, str]]:
    """Return the findings that a reader should know of first, errors before warnings."""
    found = [_finding(one) for one in facts.findings or () if one.get("level") != "info"]
    return sorted(found, key=lambda one: one["level"])


def _finding(finding: Mapping[str, Any]) -> dict[str, str]:
    return {key: line_of(finding.get(key)) for key in ("level", "path", "message")}


def origin(facts: Facts) -> Iterator[tuple[str, str]]:
    """Yield what is known of how the dataset was made, as names and texts."""
    metadata = facts.metadata
    yield from _texts(
        metadata,
        ("Algorithm", "algorithm_name"),
        ("Author", "author"),
        ("Email", "author_email"),
        ("Code", "code_permalink"),
        ("License", "license"),
        ("Citation", "citation"),
        ("Combined from", "combined_datasets"),
        ("Requirements", "requirements"),
        ("Standard", "minari_version"),
    )
    made = metadata.get("minari_pipe")
    made = made if isinstance(made, dict) else {}
    parents = made.get("parents")
    for parent in parents if isinstance(parents, list) else ():
        if isinstance(parent, dict):
            yield "Mixed from", line_of(f"{parent.get('id')}, {parent.get('episodes')} episodes")
    yield from _texts(_mapping(made.get("cloned")), ("Policy cloned from", "id"))
    yield from _texts(
        _mapping(made.get("recipe")),
        ("Stands beside", "replaces"),
        ("Size of that", "hosted_size"),
        ("Differs from that", "differs"),
        ("License of the environment", "environment_license"),
        ("Not tried yet", "unverified"),
    )
    if noise := _mapping(made.get("noise")):
        yield "Noise on the actions", _noise(noise)
    scores = made.get("ref_scores")
    for name, key in (("Random policy", "ref_min"), ("Expert policy", "ref_max")):
        found = scores.get(key) if isinstance(scores, dict) else None
        if isinstance(found, dict):
            yield name, _score(found)
    for stage, packages in _mapping(made.get("packages")).items():
        versions = (f"{line_of(k)} {line_of(v)}" for k, v in sorted(_mapping(packages).items()))
        yield f"Packages of {line_of(stage)}", ", ".join(versions)
    for name, digest in _mapping(made.get("files")).items():
        yield f"sha256 of the {line_of(name)}", line_of(digest)
    for name, key in (
        ("Seed of the collection", "collect_seed"),
        ("sha256 of the config", "config_sha256"),
    ):
        if made.get(key) is not None:
            yield name, line_of(str(made[key]))
    if facts.content_sha256:
        yield "content_sha256", facts.content_sha256


def _texts(values: Mapping[str, Any], *keys: tuple[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the values that are texts, each with the name that is given with its key."""
    for name, key in keys:
        if text := line_of(values.get(key)):
            yield name, text


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _noise(found: Mapping[str, Any]) -> str:
    return ", ".join(f"{line_of(key)} {line_of(str(value))}" for key, value in found.items())


def _score(found: Mapping[str, Any]) -> str:
    policies = found.get("policy")
    who = line_of(policies) if isinstance(policies, list) else ""
    mean, error = found.get("mean"), found.get("stderr")
    parts = [who]
    if noise := _mapping(found.get("noise")):
        parts.append(f"with noise: {_noise(noise)}")
    if isinstance(mean, float):
        around = f" ± {number(error)}" if isinstance(error, float) else ""
        parts.append(f"mean return {number(mean)}{around}")
    if isinstance(n := found.get("n"), int):
        parts.append(f"{count(n)} episodes from seed {line_of(str(found.get('seed')))}")
    if isinstance(rate := found.get("success_rate"), float):
        parts.append(f"success {percent(rate)}")
    if found.get("declared"):
        parts.append("declared, not measured")
    return ", ".join(part for part in parts if part)


def _files(facts: Facts) -> Iterator[Sequence[str]]:
    names = sorted(facts.files)
    for name in names[:_FILES]:
        entry = facts.files[name]
        kind = "sha256" if "sha256" in entry else "xxh3_128"
        known = f"{kind} {entry[kind]}" if kind in entry else ""
        yield name, file_size(entry["size"]), known
    if rest := names[_FILES:]:
        yield f"{len(rest):,} more", file_size(sum(facts.files[name]["size"] for name in rest)), ""
