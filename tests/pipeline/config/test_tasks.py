"""One file makes a dataset for each of its tasks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from hydra.core.global_hydra import GlobalHydra

import minari_pipe.cli.recipes as recipes
from minari_pipe.errors import ConfigError
from minari_pipe.pipeline.config import hydra_compose
from minari_pipe.pipeline.config.help_text import help_text
from minari_pipe.pipeline.config.hydra_compose import every_task
from minari_pipe.pipeline.config.mixtures import completed
from minari_pipe.pipeline.releases.bump import bump
from tests.support.configs import composed
from tests.support.workspaces import make_workspace, minari_pipe, run_ok, tiny, write_config

PAIR = """\
# @package _global_
defaults: [{/policy: random}, {/policy@ref_scores.expert: random}, _self_]
task: ???
tasks:
  cart: {env: CartPole-v1, n: 2}
  swing: {env: Acrobot-v1, n: 3}
dataset:
  id: "pair/${task}-v0"
  description: "${tasks[${task}].env}, at random"
  recipe: {replaces: "OLD/${task}-v0", differs: not at all, cpu_hours: 0.1}
author: {name: Ada, email: ada@example.org}
env: {id: "${tasks[${task}].env}", kwargs: {max_episode_steps: 20}}
collect: {n_episodes: "${tasks[${task}].n}"}
ref_scores: {n_episodes: 4, ref_min_score: -9.0, ref_max_score: 500.0}
"""
TINY = tiny("ab/tiny-v0").replace("CartPole-v1", "CartPole-v1, kwargs: {max_episode_steps: 20}")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    make_workspace(tmp_path, pair=PAIR, tiny=TINY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MINARI_PIPE_CONF", raising=False)
    return tmp_path


def test_a_sweep_makes_all_tasks_and_a_run_one(root: Path) -> None:
    both = run_ok(root, "-m", "+dataset=pair")
    assert "pair_cart: ran collect" in both
    assert "pair_swing: ran collect" in both
    for name, n in (("cart", 2), ("swing", 3)):
        folder = root / "datasets" / "pair" / f"{name}-v0"
        metadata = json.loads((folder / "data" / "metadata.json").read_text())
        assert metadata["total_episodes"] == n
        about = {"replaces": f"OLD/{name}-v0", "differs": "not at all", "cpu_hours": 0.1}
        assert metadata["minari_pipe"]["recipe"] == about
        assert f"| Stands beside | OLD/{name}-v0 |" in (folder / "card" / "card.md").read_text()
        assert "tasks" not in (root / "pipelines" / f"pair_{name}" / "params.yaml").read_text()
    assert "pair_swing: up to date" in run_ok(root, "+dataset=pair_swing")


def test_the_job_shows_the_chosen_task_alone(root: Path) -> None:
    shown = yaml.safe_load(run_ok(root, "+dataset=pair", "task=swing", "--cfg", "job", "--resolve"))
    assert shown["tasks"] == {"swing": {"env": "Acrobot-v1", "n": 3}}
    assert (shown["task"], shown["pipeline"]) == ("swing", "pair_swing")
    assert shown["dataset"]["id"] == "pair/swing-v0"


@pytest.mark.parametrize("word", ["+dataset=pair_cart", "dataset=pair_cart"])
def test_the_name_of_its_pipeline_chooses_a_task(word: str, root: Path) -> None:
    long, short = composed("+dataset=pair", "task=cart"), composed(word)
    assert (long.name, long.config, long.overrides) == (short.name, short.config, short.overrides)


def test_a_file_comes_before_a_task_of_the_same_name(root: Path) -> None:
    write_config(root, "pair_cart", tiny("ab/other-v0"))
    assert composed("+dataset=pair_cart").config.dataset.id == "ab/other-v0"


def test_a_pipeline_can_have_a_name_of_its_own(root: Path) -> None:
    assert composed("+dataset=pair", "task=cart", "pipeline=mine").name == "mine"


def test_tasks_can_be_names_alone(root: Path) -> None:
    names = PAIR.split("tasks:")[0] + "tasks: [CartPole-v1, Acrobot-v1]\n"
    rest = 'dataset: {id: "pair/${task}", description: d}\n' + PAIR[PAIR.index("author:") :]
    text = (names + rest).replace("${tasks[${task}].env}", "${task}")
    write_config(root, "named", text.replace("${tasks[${task}].n}", "2"))
    found = every_task("named")
    assert [one.config.env.id for one in found] == ["CartPole-v1", "Acrobot-v1"]
    assert [one.name for one in found] == ["named_CartPole-v1", "named_Acrobot-v1"]


LIST = PAIR[PAIR.index("tasks:") : PAIR.index("dataset:")]
BAD = {
    "unknown": ("", "", ["task=card"], "no task 'card' of 'pair'. Did you mean 'cart'.* Known: ca"),
    "missing": (
        "",
        "",
        [],
        "'pair' needs a task; add task=NAME, where NAME is one of: cart, swing",
    ),
    "one id": ("pair/${task}-v0", "pair/any-v0", ["task=cart"], None),
    "one id by value": (
        "pair/${task}-v0",
        "pair/${tasks[${task}].id}-v0",
        ["task=cart"],
        "the tasks 'cart' and 'swing' have the same dataset.id 'pair/x-v0'; use",
    ),
    "twice": (LIST, "tasks: [cart, cart]\n", ["task=cart"], "names 'cart' twice"),
    "no names": (LIST, "tasks: 7\n", ["task=cart"], "tasks is 7; expected a list of names"),
    "numbers": (LIST, "tasks: [1, 2]\n", ["task=1"], "expected a list of names"),
    "read as a value": (
        LIST,
        "tasks: [cart, 'true']\n",
        ["task=cart"],
        "tasks has the name 'true', which would",
    ),
    "a path": (LIST, "tasks: [../x]\n", ["task=cart"], "rename it in tasks of conf/data"),
}


@pytest.mark.parametrize(("old", "new", "words", "message"), BAD.values(), ids=BAD)
def test_a_bad_task_or_list_is_answered(
    old: str, new: str, words: list[str], message: str | None, root: Path
) -> None:
    text = PAIR.replace(old, new) if old else PAIR
    text = text.replace("n: 2}", "n: 2, id: x}").replace("n: 3}", "n: 3, id: x}")
    write_config(root, "pair", text + "\n")
    if message is None:  # the run of another task refuses it
        assert composed("+dataset=pair", *words).config.dataset.id == "pair/any-v0"
        return
    with pytest.raises(ConfigError, match=message):
        composed("+dataset=pair", *words)


def test_a_task_of_a_file_without_tasks_is_refused(root: Path) -> None:
    done = minari_pipe(root, "+dataset=tiny", "task=cart")
    assert done.returncode == 1
    assert "task=cart is given, but the dataset 'tiny' has no tasks" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_mixture_names_tasks_as_its_parents(root: Path) -> None:
    text = PAIR.replace("/policy: random}, {/policy@ref_scores.expert: random", "/policy: mixture")
    mixed = text[: text.index("task:")] + "dataset: {id: ab/both-v0, description: d}\n"
    mixed += "author: {name: Ada}\npolicy: {parents: {pair_cart: 0.5, tiny: 0.5}}\n"
    write_config(root, "both", mixed + "collect: {n_episodes: 4}\n")
    config = completed(composed("+dataset=both").config, root)
    assert config.env.id == "CartPole-v1"


def test_bump_raises_the_version_of_all_tasks(root: Path) -> None:
    for name in ("cart-v1", "swing-v2"):
        record = root / "releases" / "pair" / f"{name}.json"
        record.parent.mkdir(parents=True, exist_ok=True)
        record.touch()
    path = Path("conf/dataset/pair.yaml")
    assert bump("pair") == (path, "pair/cart-v0", "pair/cart-v3", 2)
    assert [one.config.dataset.id for one in every_task("pair")] == [
        "pair/cart-v3",
        "pair/swing-v3",
    ]


def test_recipes_lists_tasks_and_leaves_out_a_broken_file_with_a_warning(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_config(root, "broken", "dataset: [")
    known = ["antmaze", "broken", "cartpole_expert", "cartpole_medium_expert", "door_human", "pair"]
    monkeypatch.setattr(recipes, "datasets", lambda: known)  # all take seconds
    with pytest.warns(UserWarning, match="conf/dataset/broken.yaml is left out"):
        recipes.recipes(as_json=True)
    found = {one["recipe"]: one for one in json.loads(capsys.readouterr().out)}
    assert found["pair task=swing"] | {"about": {}} == {
        "recipe": "pair task=swing",
        "id": "pair/swing-v0",
        "pipeline": "pair_swing",
        "actions": "random",
        "needs": ["0.1 CPU hours"],
        "about": {},
    }
    assert found["door_human"]["needs"] == ["minari_pipe[robotics]", "download"]
    assert found["cartpole_expert"]["needs"] == ["training"]
    assert found["cartpole_medium_expert"]["actions"] == "mixture"
    assert found["antmaze task=umaze"]["about"]["replaces"] == "D4RL/antmaze/umaze-v1"
    known[:] = ["pair"]
    recipes.recipes("pair_s")
    assert "1 recipe\n" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="no recipe begins with 'zzz'"):
        recipes.recipes("zzz")


def test_the_help_on_a_recipe_has_comments() -> None:
    text = help_text(["dataset"])
    assert "# Id of the hosted dataset that this one stands beside." in text
    assert "cpu_hours: null" in text


BROKEN = {
    "an open interpolation": 'tasks: {a: {x: "${foo"}}',
    "nested deeply": "tasks: " + "[" * 3000,
    "in itself": "tasks: &t {a: {n: *t}, b: {}}",
    "many aliases": "".join(
        f"g{n}: &g{n} [{', '.join([f'*g{n - 1}'] * 8 if n else ['1'] * 8)}]\n" for n in range(8)
    )
    + "tasks: {a: *g7, b: *g7}",
}


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN)
def test_a_broken_list_of_one_file_breaks_no_other(
    text: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_config(root, "odd", text)
    monkeypatch.setattr(recipes, "datasets", lambda: ["odd", "pair"])  # all take seconds
    assert composed("+dataset=pair_cart").name == "pair_cart"
    with pytest.raises(ConfigError):
        composed("+dataset=odd", "task=a")
    with pytest.warns(UserWarning, match="conf/dataset/odd.yaml is left out"):
        recipes.recipes(as_json=True)


def jobs_of(*words: str) -> list[str]:
    GlobalHydra.instance().clear()
    found: list[str] = []
    hydra_compose.run(["-m", *words], lambda name, *_: found.append(name))
    return found


def test_tasks_and_other_datasets_run_in_one_sweep(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["minari_pipe"])
    assert jobs_of("+dataset=pair,tiny") == ["pair_cart", "pair_swing", "tiny"]
    assert jobs_of("+dataset=glob([pair*,tiny*])") == ["pair_cart", "pair_swing", "tiny"]
    assert jobs_of("+dataset=pair_swing,tiny") == ["pair_swing", "tiny"]
    with pytest.raises(ConfigError, match="gives two jobs the same pipeline 'pair_cart'"):
        jobs_of("+dataset=pair", "task=cart,cart")


def test_two_choices_of_a_task_contradict_each_other(root: Path) -> None:
    with pytest.raises(ConfigError, match="is short for .* but task=swing is given, too"):
        composed("+dataset=pair_cart", "task=swing")


def test_tasks_of_another_file_are_refused(root: Path) -> None:
    (root / "conf" / "lists").mkdir()
    (root / "conf" / "lists" / "two.yaml").write_text(
        "# @package _global_\ntask: ???\ntasks: [cart, swing]\n"
    )
    head, _, rest = PAIR.partition("task: ???")
    text = head.replace("_self_]", "/lists: two, _self_]") + rest[rest.index("dataset:") :]
    write_config(root, "pair", text.replace("${tasks[${task}].n}", "2"))
    with pytest.raises(ConfigError, match="write the list into the file itself"):
        composed("+dataset=pair", "task=cart")


def test_a_recipe_that_is_taken_away_leaves_the_dataset(root: Path) -> None:
    run_ok(root, "+dataset=pair", "task=cart")
    path = root / "conf" / "dataset" / "pair.yaml"
    path.write_text("\n".join(one for one in path.read_text().splitlines() if "OLD/" not in one))
    run_ok(root, "+dataset=pair", "task=cart")
    metadata = root / "datasets" / "pair" / "cart-v0" / "data" / "metadata.json"
    assert "recipe" not in json.loads(metadata.read_text())["minari_pipe"]


def test_many_tasks_can_be_listed_and_raised(root: Path) -> None:
    names = ", ".join(f"t{n}" for n in range(75))
    text = PAIR.split("tasks:")[0] + f"tasks: [{names}]\n" + PAIR[PAIR.index("dataset:") :]
    text = text.replace("${tasks[${task}].n}", "2").replace("${tasks[${task}].env}", "CartPole-v1")
    write_config(root, "many", text.replace("pair/", "many/"))
    assert bump("many").n == 75


@pytest.mark.parametrize("hours", ["-1", "nan", "inf"])
def test_cpu_hours_are_a_number(hours: str, root: Path) -> None:
    done = minari_pipe(root, "+dataset=tiny", f"dataset.recipe.cpu_hours={hours}")
    assert done.returncode == 1
    assert "dataset.recipe.cpu_hours is" in done.stderr
