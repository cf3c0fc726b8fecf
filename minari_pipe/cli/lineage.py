"""The commands that compare versions of a dataset, and reproduce one."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from rich.text import Text

from minari_pipe.cli.datasets import Json, complete_id
from minari_pipe.cli.tables import count, megabytes, print_json, print_table
from minari_pipe.core.messages import one_line
from minari_pipe.core.metadata import is_finite_number
from minari_pipe.core.trust import add_trust
from minari_pipe.errors import Stopped
from minari_pipe.pipeline.releases.diff import difference
from minari_pipe.pipeline.releases.reproduce import TOLERANCE
from minari_pipe.pipeline.releases.reproduce import reproduce as make_again
from minari_pipe.pipeline.signals import stop_on_signals

_Id = Annotated[str, typer.Argument(autocompletion=complete_id, help="Id with its version.")]
_LONGEST = 60
#: Hash digits that are enough to print_line versions apart.
_HASH = 12

_TITLES = {
    "config": "Config",
    "counts": "Counts",
    "returns": "Returns",
    "scores": "Reference scores",
    "packages": "Packages",
    "origin": "Origin",
}


def diff(first: _Id, second: _Id, as_json: Json = False) -> None:
    """Show what changed between two versions: config, counts, returns, scores, packages."""
    found = difference(first, second)
    if as_json:
        print_json(found)
        return
    rows: list[list[str | Text]] = []
    for part, title in _TITLES.items():
        if not found[part]:
            continue
        rows += [[Text(title, style="bold")]]
        rows += [_row(part, key, *pair) for key, pair in found[part].items()]
    print_table(
        f"{first} and {second}",
        {"": "left", first: "left", second: "left", "Change": "right"},
        rows,
        caption=_conclusion(found),
    )


def reproduce(
    dataset_id: _Id,
    rev: Annotated[
        str | None,
        typer.Option(help="Tag or commit; default: the version's tag, else the recorded commit."),
    ] = None,
    from_scratch: Annotated[
        bool,
        typer.Option("--from-scratch", help="Train again, without the published checkpoint."),
    ] = False,
    tolerance: Annotated[
        float,
        typer.Option(
            min=0.0, help="Largest difference of values, on another processor or other versions."
        ),
    ] = TOLERANCE,
    trust_module: Annotated[
        list[str] | None, typer.Option(help="Trust a module of your own.", metavar="NAME")
    ] = None,
    trust: Annotated[
        list[str] | None,
        typer.Option(help="Allow a checkpoint to be unpickled in full.", metavar="SHA256"),
    ] = None,
) -> None:
    """Reproduce a released version from git alone, and compare it with its record."""
    add_trust(trust_module or [], trust or [])
    try:
        stop_on_signals()
        found = make_again(
            dataset_id,
            revision=rev,
            from_scratch=from_scratch,
            tolerance=tolerance,
            say=lambda text: print(one_line(text), file=sys.stderr, flush=True),
        )
    except Stopped as stopped:
        print("stopped; partial results were removed", file=sys.stderr)
        raise typer.Exit(stopped.exit_code) from None
    print(one_line(found))


def _conclusion(found: dict[str, Any]) -> str | None:
    hashes = found["origin"].get("content_sha256", (None, None))
    same = "The content is the same" if None not in hashes and len(set(hashes)) == 1 else ""
    if not found["config"]:
        same = f"{same}; the config is the same" if same else "The config is the same"
    alone = "the configs are compared by metadata only: one version is not from this workspace"
    texts = [same, alone if found["compared"] == "metadata" else ""]
    text = "; ".join(filter(None, texts))
    return f"{text[:1].upper()}{text[1:]}." if text else None


def _row(part: str, key: str, old: Any, new: Any) -> list[str | Text]:
    shown = [_shown(part, key, value) for value in (old, new)]
    name = Text(f"  {one_line(key)}")
    if old == new:
        return [name, *(Text(text, style="dim") for text in shown), ""]
    return [name, *shown, _change(part, key, old, new)]


def _shown(part: str, key: str, value: Any) -> str:
    if value is None:
        return "-"
    if key == "dataset_size":
        return megabytes(value)
    if key.endswith("sha256") or key == "git_commit":
        return one_line(value)[:_HASH]
    if isinstance(value, float) and part != "config":  # config values are shown as written
        return f"{value:.4g}" if abs(value) < 1 else f"{value:,.2f}"
    if isinstance(value, int) and not isinstance(value, bool) and part != "config":
        return count(value)
    text = one_line(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _change(part: str, key: str, old: Any, new: Any) -> str:
    if part in ("config", "packages", "origin") or not all(map(is_finite_number, (old, new))):
        return ""
    change = new - old
    if key == "dataset_size":
        return f"{change:+.1f} MB"
    if isinstance(change, int):
        return f"{change:+,}"
    return f"{change:+.4g}" if abs(change) < 1 else f"{change:+,.2f}"
