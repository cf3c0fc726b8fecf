"""The commands that describe datasets to people: card, report."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from minari_pipe.cli.datasets import complete_id
from minari_pipe.cli.edits import Trusted
from minari_pipe.cli.remote_datasets import published_card
from minari_pipe.cli.validation import checked, found_dataset
from minari_pipe.core.files.changes import write_new
from minari_pipe.core.messages import one_line, print_line
from minari_pipe.errors import ConfigError, MinariPipeError
from minari_pipe.remotes import is_address
from minari_pipe.remotes.hosting import find_datasets
from minari_pipe.remotes.transfer.download import look

if TYPE_CHECKING:
    from minari_pipe.datasets.cards.facts import Facts

Dataset = Annotated[
    str, typer.Argument(autocompletion=complete_id, help="A dataset id, its folder or file.")
]


def card(
    dataset: Dataset,
    film: Annotated[
        bool, typer.Option("--film/--no-film", help="Step an episode again, to film it.")
    ] = True,
    check: Annotated[
        bool, typer.Option("--check/--no-check", help="Check it, to list the findings.")
    ] = True,
    trust_module: Trusted = [],  # noqa: B006  (typer copies it)
) -> None:
    """Describe a dataset in the folder card beside its data: report, statistics, Croissant."""
    from minari_pipe.checks import Options
    from minari_pipe.checks.film import film as film_of
    from minari_pipe.core.trust import trusted_modules
    from minari_pipe.datasets.cards.folder import card_files, facts_at, file_of_card, write_card
    from minari_pipe.datasets.cards.page import FILM
    from minari_pipe.datasets.cards.words import file_size

    name, data_path = found_dataset(dataset)
    if data_path.name != "data":
        raise ConfigError(
            f"{one_line(name)} has no folder for a card; to see it, run: minari-pipe report "
            f"{one_line(dataset)}"
        )
    modules = sorted({*trust_module, *trusted_modules()})
    findings = None
    if check:
        options = Options(trusted_modules=tuple(modules))
        findings = checked(data_path, options).to_json()["findings"]
    facts = facts_at(data_path, findings)
    files = card_files(facts)
    made = f"report {file_size(len(files['report.html']))}"
    median = facts.outcomes.median
    before = file_of_card(data_path, FILM)
    if film and median is not None:
        try:
            files[FILM] = film_of(
                data_path, median, modules, process="minari_pipe.pipeline.stages.film"
            )
            made += f", film of episode {facts.outcomes.ids[median]}"
        except MinariPipeError as error:
            made += f", no film: {one_line(error)}"
            if before is not None:  # the data are the same, else their card would be gone
                files[FILM] = before
                made += "; the film that was there stays"
    write_card(data_path.parent, files, facts)
    print(f"{one_line(name)}: {made}; in {one_line(data_path.parent / 'card')}")


def report(
    dataset: Annotated[
        str,
        typer.Argument(autocompletion=complete_id, help="A dataset id, its folder, or address."),
    ],
    other: Annotated[
        str | None,
        typer.Argument(autocompletion=complete_id, help="Another dataset, to compare with."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Default: the id with .html, here."),
    ] = None,
    show: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
) -> None:
    """Write one page that shows a dataset, or two side by side."""
    from minari_pipe.datasets.cards.comparison import comparison
    from minari_pipe.datasets.cards.folder import check_report_path, report_of
    from minari_pipe.datasets.cards.words import file_size

    facts, film = _shown(dataset)
    names = [facts.dataset_id]
    if other is None:
        text = report_of(facts, film)
    else:
        second, second_film = _shown(other)
        names.append(second.dataset_id)
        text = comparison((facts, film), (second, second_film))
    target = output or Path("-and-".join(name.replace("/", "-") for name in names) + ".html")
    check_report_path(target)
    write_new(target, text.encode())
    print(f"{one_line(', '.join(names))}: {one_line(target)}, {file_size(target.stat().st_size)}")
    if show and not webbrowser.open(target.resolve().as_uri()):
        print_line("warning", f"no browser could be opened; open {target} in one")


def _shown(dataset: str) -> tuple[Facts, bytes | None]:
    """Return what a report shows of a dataset: the data if they are here, else its card."""
    from minari_pipe.datasets.cards.folder import facts_at, file_of_card
    from minari_pipe.datasets.cards.page import FILM
    from minari_pipe.datasets.cards.words import file_size

    if Path(dataset).exists() or not is_address(dataset):
        _, data_path = found_dataset(dataset)
        return facts_at(data_path), file_of_card(data_path, FILM)
    remote, found = find_datasets(dataset, force=True)
    if len(found) != 1:
        raise ConfigError(f"{one_line(dataset)} names {len(found)} datasets; expected one")
    ((name, metadata),) = found.items()
    there = look(remote, name)
    facts, _, film = published_card(remote, name, metadata, there)
    if not facts.outcomes.ids:
        size = file_size(len(there.metadata) + sum(file.size for file in there.files.values()))
        raise ConfigError(
            f"{name} of {remote.address} has no card, so a report needs its data, {size}; fetch "
            f"them: minari-pipe download {one_line(dataset)}, then: minari-pipe report {name}"
        )
    return facts, film
