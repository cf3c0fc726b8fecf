"""The command ``recipes``: what ``+dataset`` can choose in this workspace, and what it needs."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Annotated

import typer

from minari_pipe.cli.datasets import Json
from minari_pipe.cli.tables import counted, print_json, print_table
from minari_pipe.core.environments import pip_of
from minari_pipe.core.messages import one_line
from minari_pipe.errors import ConfigError, MinariPipeError
from minari_pipe.pipeline.config.conf_files import datasets
from minari_pipe.pipeline.config.hydra_compose import Composed, every_task
from minari_pipe.pipeline.config.schema import POLICY_SCHEMAS, Cloning, Config
from minari_pipe.pipeline.config.tasks import start_of_id
from minari_pipe.pipeline.config.typed import values_of


def recipes(
    prefix: Annotated[
        str, typer.Argument(help="Only recipes whose name or id begins with this.")
    ] = "",
    as_json: Json = False,
) -> None:
    """List what +dataset=NAME can choose: ids, where the actions come from, and what is needed."""
    found = [
        {
            "recipe": _recipe(one),
            "id": one.config.dataset.id,
            "pipeline": one.name,
            "actions": _actions(one.config),
            "needs": list(_needs(one.config)),
            "about": values_of(one.config.dataset.recipe),
        }
        for one in _all(prefix)
        if any(word.startswith(prefix) for word in (_recipe(one), one.name, one.config.dataset.id))
    ]
    if as_json:
        print_json(found)
        return
    if not found:
        raise ConfigError(f"no recipe begins with {one_line(prefix)!r}; see minari-pipe recipes")
    print_table(
        counted(len(found), "recipe"),
        dict.fromkeys(("recipe", "id", "actions", "needs"), "left"),
        [
            (one["recipe"], one["id"], one["actions"], ", ".join(one["needs"]) or "nothing")
            for one in found
        ],
        caption="python -m minari_pipe +dataset=RECIPE makes one, with task=TASK as above; without "
        "a task, -m +dataset=NAME makes all.",
    )


def _all(prefix: str) -> Iterator[Composed]:
    for dataset in datasets():
        try:
            if not any(
                start.startswith(prefix) or prefix.startswith(start)
                for start in (dataset, start_of_id(dataset))
            ):
                continue  # without composing its config, which takes 0.03 s for each task
            yield from every_task(dataset)
        except MinariPipeError as error:
            warnings.warn(f"conf/dataset/{dataset}.yaml is left out: {error}", stacklevel=2)


def _recipe(composed: Composed) -> str:
    return " ".join(composed.overrides).removeprefix("+dataset=")


def _actions(config: Config) -> str:
    """Return the name of the policy, or its class if it is none of ours."""
    target = config.policy.target
    known = {vars(policy)["_target_"]: name for name, policy in POLICY_SCHEMAS.items()}
    name = known.get(target, target.rpartition(".")[2])
    return f"{name}, {config.kind}" if config.kind else name


def _own_modules(config: Config) -> set[str]:
    """Return the modules of the user that a recipe names, without looking at who trusts them."""
    names = [*config.policy.targets, *(str(one.get("_target_")) for one in config.env.all_wrappers)]
    tops = {name.partition(".")[0] for name in names}
    tops |= {config.env.id.partition(":")[0]} if ":" in str(config.env.id) else set()
    return tops - {"minari_pipe", "gymnasium", "minigrid"}


def _needs(config: Config) -> Iterator[str]:
    """Yield what a recipe needs beyond the package and a few minutes."""
    if config.is_mixture:
        yield f"parents {', '.join(config.policy.arguments['parents'])}"
    elif pip := pip_of(config.env.id):
        yield pip
    if own := sorted(_own_modules(config)):
        yield f"--trust-module {', '.join(own)}"
    addresses = [source.address or "" for source in config.policy.sources.values()]
    if any("://" in address for address in addresses):
        yield "download"
    if train := config.policy.train:
        yield f"parent {train.dataset}" if isinstance(train, Cloning) else "training"
    about = config.dataset.recipe
    if hours := about.cpu_hours:
        yield f"{hours:g} CPU hours"
    if about.unverified:
        yield f"UNVERIFIED: {about.unverified[:100]}"
