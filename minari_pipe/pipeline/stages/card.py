"""Stage ``card``: describe the dataset to people, in the folder that is published beside its data.

All files but the film are functions of the dataset and of the author's words in the config. A film
depends on the renderer; where there is none, the card has no film, and the run goes on.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from minari_pipe.checks.film import film
from minari_pipe.core.files.checksums import entry_of, entry_of_bytes
from minari_pipe.core.messages import one_line
from minari_pipe.core.trust import trusted_modules
from minari_pipe.datasets.cards.facts import Facts, facts_of
from minari_pipe.datasets.cards.folder import card_files
from minari_pipe.datasets.cards.page import FILM
from minari_pipe.datasets.cards.words import file_size
from minari_pipe.errors import MinariPipeError
from minari_pipe.pipeline.execution.stage import StageRun, run_stage
from minari_pipe.pipeline.stages.assemble import (
    assemble,
    data_files,
    metadata_text,
    validation_of,
)
from minari_pipe.pipeline.stages.environments import allow_named
from minari_pipe.storage.base import MinariStorage


def facts(run: StageRun) -> Facts:
    """Return what the card says of the dataset that ``publish`` will write."""
    metadata = assemble(run.folder, run.config)
    validation = validation_of(run.folder, metadata)
    data = run.folder / "dataset" / "data"
    files = {f"data/{name}": entry_of(data / name, sha256=True) for name in data_files(data)}
    files["data/metadata.json"] = entry_of_bytes([metadata_text(metadata).encode()], sha256=True)
    texts: dict[str, Any] = asdict(run.config.card)
    return facts_of(
        MinariStorage.read(data),
        run.config.dataset.id,
        metadata,
        files,
        content_sha256=validation["content_sha256"],
        findings=validation["findings"],
        texts=texts,
    )


def film_of_median(run: StageRun, found: Facts) -> tuple[bytes | None, str]:
    """Return the film of the episode of median return, or None, and what to say of it."""
    median = found.outcomes.median
    if median is None or not run.config.card.film:
        return None, ""
    try:
        places = allow_named(run)
        data: Path = run.folder / "dataset" / "data"
        made = film(data, median, sorted(trusted_modules()), places, process=f"{__package__}.film")
    except MinariPipeError as error:
        return None, f", no film: {one_line(error)}"
    return made, f", film of episode {found.outcomes.ids[median]}"


def main(run: StageRun) -> None:
    """Run the stage: read the validated dataset, write ``card/``."""
    found = facts(run)
    files = card_files(found)
    film, note = film_of_median(run, found)
    if film is not None:
        files[FILM] = film
    with run.output("card") as out:
        for name, content in files.items():
            (out / name).write_bytes(content)
    run.say(f"report {file_size(len(files['report.html']))}{note}")


if __name__ == "__main__":
    run_stage("card", main)
