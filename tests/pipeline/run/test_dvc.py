"""DVC's own commands work in a workspace, and none of them changes anything outside it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.repositories import Workspace, git_workspace, hashes
from tests.support.workspaces import tiny

SYNC = "minari_pipe.pipeline.run.sync"
OUTPUTS = ("datasets", "pipelines/one/episodes", "pipelines/one/dataset", "pipelines/two/episodes")


@pytest.fixture(scope="module")
def transcript() -> dict[str, str]:
    """What the commands printed that made the workspace."""
    return {}


@pytest.fixture(scope="module")
def made(tmp_path_factory, transcript) -> Workspace:
    """Two pipelines, brought up to date by nothing but ``dvc repro``, and committed."""
    folder = tmp_path_factory.mktemp("dvc")
    workspace = git_workspace(folder, one=tiny("tests/one-v0"), two=tiny("tests/two-v0"))
    # A dataset of the user's, under an id that the workspace publishes as well.
    foreign = workspace.minari_root / "tests" / "one-v0" / "data"
    foreign.mkdir(parents=True)
    (foreign / "main_data.hdf5").write_text("of somebody else")
    first = workspace.call("dvc", "repro")
    transcript["first"] = first.stdout
    assert first.returncode != 0
    transcript["second"] = workspace.dvc("repro")
    workspace.commit("two datasets")
    return workspace


@pytest.fixture(autouse=True)
def nothing_outside_changes(made: Workspace) -> Iterator[None]:
    before = hashes(made.minari_root)
    assert before
    yield
    assert hashes(made.minari_root) == before


@pytest.fixture
def workspace(made: Workspace, tmp_path: Path) -> Iterator[Workspace]:
    """A copy to change; its Minari root must not change either."""
    copy = made.copy(tmp_path / "copy")
    yield copy
    assert hashes(copy.minari_root) == hashes(made.minari_root)


def ran(output: str) -> list[str]:
    """What DVC says it ran, such as ``one.create``."""
    words = re.findall(r"Running stage '([^']+)'", output)
    return [w.removeprefix("pipelines/").replace("/dvc.yaml:", ".") for w in words]


EVERY = [
    f"{name}.{stage}"
    for name in ("one", "two")
    for stage in ("collect", "create", "ref_scores", "validate", "card", "publish")
]


def test_new_configs_are_composed_first_and_run_by_the_same_command_again(made, transcript):
    assert ran(transcript["first"]) == ["config"]
    assert "the stages of one, two are new; run the command again" in transcript["first"]
    assert sorted(ran(transcript["second"])) == sorted(["config", *EVERY, "catalog"])
    assert "tests/two-v0" in transcript["second"].split("Running stage 'catalog'")[1]
    for name in ("one", "two"):
        assert (made.root / "datasets" / "tests" / f"{name}-v0" / "manifest.json").is_file()


def test_repro_and_status_find_nothing_to_do(made):
    assert ran(made.dvc("repro")) == []
    assert "up to date" in made.dvc("status")
    assert made.git("status", "--porcelain") == ""


def test_dag_runs_from_config_through_every_stage_to_the_catalog(made):
    drawn = made.dvc("dag", "--dot")
    edges = [line.split('"')[1::2] for line in drawn.splitlines() if "->" in line]
    assert ["pipelines/one/dvc.yaml:publish", "catalog"] in edges
    assert ["pipelines/one/dvc.yaml:collect", "pipelines/one/dvc.yaml:create"] in edges
    assert ["pipelines/two/dvc.yaml:ref_scores", "pipelines/two/dvc.yaml:validate"] in edges


def test_metrics_are_a_table_that_fits_a_screen(made):
    lines = made.dvc("metrics", "show").splitlines()
    header = lines[0].split()
    for column in ("ref_min_score", "ref_max_score", "ref_min.std", "ref_min.stderr", "errors"):
        assert column in header
    assert sum("pipelines/one/" in line for line in lines) == 2
    assert all(word not in lines[0] for word in ("checks.", "packages.", "assembled_sha256"))
    assert len(header) <= 20  # DVC puts the columns of both kinds of files side by side
    assert max(len(line) for line in lines) < 330


def test_plots_are_histograms_of_the_returns_of_each_policy_of_every_pipeline(made):
    shown = made.dvc("plots", "show")
    page = made.root / "dvc_plots" / "index.html"
    assert str(page) in shown
    text = page.read_text()
    for file in ("pipelines/one/returns.csv", "pipelines/two/ref_returns.csv"):
        assert file in text
        before, after = text.split(f'"text": "{file}"')
        drawn = before.rpartition("<script")[2] + after.partition("</script>")[0]
        assert '"groupby": ["policy", "rev", "from", "to"]' in drawn
        assert re.search(r'"mark": {[^}]*"type": "bar"', drawn)
    assert made.git("status", "--porcelain") == ""  # the page is ignored


def test_push_and_pull_bring_equal_bytes_to_a_fresh_clone(workspace, tmp_path):
    workspace.dvc("remote", "add", "--default", "local", str(tmp_path / "remote"))
    workspace.dvc("push", "--quiet")
    workspace.commit("remote")
    before = hashes(workspace.root / "datasets")
    for name in (".dvc/cache", *OUTPUTS):
        shutil.rmtree(workspace.root / name)
    workspace.dvc("pull", "--quiet")
    assert hashes(workspace.root / "datasets") == before
    clone = workspace.clone(tmp_path / "clone")
    clone.dvc("pull", "--quiet")
    assert hashes(clone.root / "datasets") == before
    assert "up to date" in clone.dvc("status")
    assert clone.pipe("+dataset=one") == []


def test_a_fresh_clone_without_data_is_up_to_date_where_missing_is_allowed(made, tmp_path):
    clone = made.clone(tmp_path / "clone")
    assert ran(clone.dvc("repro", "--allow-missing")) == []
    assert not (clone.root / "datasets").exists()
    assert clone.git("status", "--porcelain") == ""


def test_an_edited_config_takes_effect_at_once_and_recorded_overrides_stay(workspace):
    # As a run with an override leaves it, without the run.
    params = "pipelines/two/params.yaml"
    workspace.replace(
        params, "- +dataset=two\n", "- +dataset=two\n- author.email=bob@example.org\n"
    )
    workspace.replace(params, "email: ada@example.org", "email: bob@example.org")
    workspace.replace("conf/dataset/one.yaml", "name: Ada", "name: Eve")
    output = workspace.dvc("repro")
    assert "two: reapplying the recorded overrides author.email=bob@example.org" in output
    assert "one: reapplying" not in output
    author_stages = ("create", "validate", "card", "publish")
    expected = [f"{name}.{stage}" for name in ("one", "two") for stage in author_stages]
    assert sorted(ran(output)) == sorted(["config", *expected])  # the content is the same
    # A stage that runs without the composition says so as well.
    output = workspace.dvc("repro", "--single-item", "--force", "pipelines/two/dvc.yaml:create")
    assert "create: reapplying the recorded overrides author.email=bob@example.org" in output


def test_an_experiment_changes_one_value_and_what_depends_on_it(workspace):
    output = workspace.dvc(
        "exp", "run", "-S", "pipelines/one/params.yaml:collect.seed=5", "pipelines/one/dvc.yaml"
    )
    assert ran(output) == ["one.collect", "one.create", "one.validate", "one.card", "one.publish"]
    assert workspace.json("catalog/tests/one-v0.json")["total_episodes"] == 4
    other = workspace.json("catalog/tests/two-v0.json")["content_sha256"]
    assert workspace.json("catalog/tests/one-v0.json")["content_sha256"] != other
    assert "seed=5" not in (workspace.root / "conf/dataset/one.yaml").read_text()


def test_an_experiment_is_not_undone_by_the_config_that_was_edited_as_well(workspace):
    workspace.replace("conf/dataset/one.yaml", "name: Ada", "name: Eve")
    output = workspace.dvc("exp", "run", "-S", "pipelines/one/params.yaml:collect.seed=5")
    assert "one: pipelines/one/params.yaml stays as dvc exp run set it" in output
    assert "seed: 5" in (workspace.root / "pipelines/one/params.yaml").read_text()
    assert "name: Ada" in (workspace.root / "pipelines/one/params.yaml").read_text()
    assert ran(output)[:2] == ["config", "one.collect"]


def test_a_config_that_is_gone_is_named_with_what_to_remove(workspace):
    (workspace.root / "conf/dataset/two.yaml").unlink()
    done = workspace.call("python", "-m", SYNC)
    assert done.returncode == 1
    assert "error: two: no dataset 'two'." in done.stdout
    assert "remove pipelines/two" in done.stdout


def test_a_copied_pipeline_folder_is_refused(workspace):
    shutil.copytree(workspace.root / "pipelines" / "one", workspace.root / "pipelines" / "copy")
    done = workspace.call("python", "-m", SYNC)
    assert done.returncode == 1
    assert "copy: pipelines/copy/params.yaml belongs to pipeline 'one'; remove" in done.stdout


def test_two_configs_with_one_id_are_refused_before_anything_is_written(workspace):
    workspace.write_config("three", tiny("tests/one-v0"))
    done = workspace.call("python", "-m", SYNC)
    assert done.returncode == 1
    assert "error: three: dataset id 'tests/one-v0' belongs to pipeline 'one'" in done.stdout
    assert not (workspace.root / "pipelines" / "three").exists()
