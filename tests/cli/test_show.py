"""What ``show`` prints of a dataset: distributions, success, policy and state, on 80 columns."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces
from rich.console import Console

from minari_pipe import MinariDataset, create_dataset_from_buffers
from minari_pipe.cli import datasets, descriptions, release_state, sparklines, tables
from minari_pipe.core.datasets_root import get_dataset_path
from minari_pipe.core.episode import EpisodeBuffer
from minari_pipe.core.files.manifest import identity_of, read_manifest
from tests.cli.test_cli import HOSTILE, ID, change, run

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # about what a dataset should have


def make(
    returns: list[float],
    lengths: list[int] | None = None,
    *,
    successes: list[bool] | None = None,
    data_format: str = "hdf5",
    space: spaces.Space | None = None,
    **description,
) -> MinariDataset:
    space = spaces.Box(-1, 1, (3,), np.float32) if space is None else space
    space.seed(0)
    buffers = []
    for place, value in enumerate(returns):
        n = lengths[place] if lengths else 4
        infos = {} if successes is None else {"success": np.arange(n + 1) == n * successes[place]}
        if successes is not None:
            infos["success"][0] = False
        buffers.append(
            EpisodeBuffer(
                observations=np.zeros((n + 1, 3), np.float32)
                if isinstance(space, spaces.Box)
                else {key: np.zeros((n + 1, 3), np.float32) for key in space},
                actions=np.zeros(n, np.int64),
                rewards=np.full(n, value / n),
                terminations=np.zeros(n, bool),
                truncations=np.arange(n) == n - 1,
                infos=infos,
            )
        )
    return create_dataset_from_buffers(
        ID,
        buffers,
        observation_space=space,
        action_space=spaces.Discrete(2),
        data_format=data_format,
        **description,
    )


def shown(name: str = ID) -> dict[str, str]:
    """The fields that ``show`` prints, with folded lines joined."""
    fields: dict[str, str] = {}
    for line in run("show", name).stdout.splitlines():
        if line[:19].strip() and line[17:19] == "  ":
            last = line[:19].strip()
            fields[last] = line[19:]
        elif line.startswith(" " * 19):
            fields[last] += f" {line.strip()}"
    return fields


def test_returns_and_lengths_are_drawn_from_the_least_to_the_greatest() -> None:
    make([0.0] * 8 + [15.0] + [4.0] * 4, lengths=[4] * 8 + [7] + [5] * 4)
    found = shown()
    assert found["Return"] == "█   ▄          ▁  mean 2.38, from 0.00 to 15.00"
    assert found["Length"] == "█▄ ▁              mean 4.54, from 4 to 7"


def test_equal_values_are_said_and_not_drawn() -> None:
    make([2.0, 2.0], lengths=[200, 200])
    assert shown()["Return"] == "all 2.00"
    assert shown()["Length"] == "all 200"


@pytest.mark.parametrize(
    "values",
    [[-1.7e308, 1.7e308], [np.nan, 1.0], [np.nan, np.nan], [np.inf, 0.0, 3.0], [1e-320, 0]],
)
def test_any_returns_are_drawn(values: list[float]) -> None:
    text = descriptions._distribution(np.array(values), ".2f")
    assert all(len(line) <= 61 for line in text.splitlines())


def test_a_terminal_without_blocks_gets_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    for encoding, line in (("ascii", "@."), ("latin-1", "@."), ("utf-8", "█▁")):
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding))
        assert sparklines.sparkline(np.array([3.0] * 8 + [4.0])) == line


@pytest.mark.parametrize(
    ("successes", "text"),
    [
        ([True, False, True], "67 % (2 of 3 episodes)"),
        ([False, False, False], "0 % (0 of 3 episodes)"),
        (None, None),
    ],
    ids=str,
)
def test_success_is_shown_where_the_infos_say_so(successes, text) -> None:
    make([1.0, 2.0, 3.0], successes=successes)
    assert shown().get("Success") == text


def test_success_of_other_formats_is_taken_from_an_intact_card() -> None:
    pytest.importorskip("pyarrow")
    make([1.0, 2.0, 3.0], successes=[True, False, False], data_format="arrow")
    assert "Success" not in shown()
    run("card", ID, "--no-film")
    assert shown()["Success"] == "33 % (1 of 3 episodes)"
    table = get_dataset_path() / ID / "card" / "episodes.csv"
    table.write_text(table.read_text().replace(",0\n", ",1\n"))
    assert "Success" not in shown()


def test_success_is_read_without_the_observations(monkeypatch: pytest.MonkeyPatch) -> None:
    make([1.0, 2.0], successes=[True, False])

    def refused(*_, **__):
        raise AssertionError

    for method in ("get_episodes", "get_buffers", "_get_stored_episodes"):
        monkeypatch.setattr(f"minari_pipe.storage.hdf5.storage.HDF5Storage.{method}", refused)
    assert shown()["Success"] == "50 % (1 of 2 episodes)"


MADE = {
    "collect_seed": 7,
    "files": {"checkpoint": "e0d2178737c92dc1"},
    "ref_scores": {"ref_max": {"policy": ["pkg.Expert"], "files": [{"checkpoint": "other"}]}},
}


def test_the_policy_and_the_seed_of_the_collection_are_shown() -> None:
    dataset = make([1.0, 2.0])
    assert not {"Policy", "Collection seed"} & set(shown())
    change(dataset, minari_pipe=MADE)
    assert shown()["Policy"] == "checkpoint e0d2178737c9"
    assert shown()["Collection seed"] == "7"
    same = {"ref_max": {"policy": ["pkg.Expert"], "files": [MADE["files"]]}}
    change(dataset, minari_pipe={**MADE, "ref_scores": same})
    assert shown()["Policy"] == "pkg.Expert, checkpoint e0d2178737c9, also the expert of the scores"
    change(dataset, minari_pipe={**MADE, "family": {"name": "door", "kind": "medium"}})
    assert shown()["Policy"] == "medium of the family door, checkpoint e0d2178737c9"


@pytest.mark.parametrize(
    "made",
    [
        3,
        {"files": 3, "collect_seed": True},
        {"files": {}, "collect_seed": "x"},
        {"files": {"source": "abc"}},  # demonstrations have no policy
    ],
    ids=str,
)
def test_no_policy_is_shown_where_none_is_known(made) -> None:
    change(make([1.0, 2.0]), minari_pipe=made)
    assert not {"Policy", "Collection seed"} & set(shown())


def test_a_draft_is_shown_as_one_and_nothing_is_said_of_other_datasets() -> None:
    make([1.0, 2.0])
    marker = get_dataset_path() / ID / "draft.json"
    assert "State" not in shown()
    for text, state in (
        (
            json.dumps({"pipeline": "door_expert", "workspace": "x"}),
            "draft of the pipeline door_expert",
        ),
        ("{", "draft"),
        ("[]", "draft"),
        (" " * 20_000, "draft"),
    ):
        marker.write_text(text)
        assert shown()["State"] == state


def test_a_release_is_shown_in_the_workspace_that_recorded_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make([1.0, 2.0])
    folder = get_dataset_path() / ID
    content = {**(read_manifest(folder) or {}), "content_sha256": "0" * 64}
    (folder / "manifest.json").write_text(json.dumps(content))
    (tmp_path / "work" / ".dvc").mkdir(parents=True)
    record = tmp_path / "work" / "releases" / f"{ID}.json"
    record.parent.mkdir(parents=True)
    record.write_text(json.dumps({"manifest": identity_of(content)}))
    assert release_state.release_state(ID, folder / "data") == ""
    monkeypatch.chdir(tmp_path / "work")
    assert release_state.release_state(ID, folder / "data") == "released"
    record.write_text(json.dumps({"manifest": identity_of({**content, "content_sha256": "1"})}))
    assert release_state.release_state(ID, folder / "data") == ""
    record.write_text("{")
    assert release_state.release_state(ID, folder / "data") == ""


def test_all_lines_fit_80_columns_in_a_pipe() -> None:
    entry = "some_package.with_many.parts_in.its_name:" + "AnEnvironmentOfALongName"
    spec = {"id": "Long-v0", "entry_point": entry, "kwargs": {"maze": [[1] * 9] * 9}}
    dataset = make([1e5, 2e7, -1e12], lengths=[1, 50, 300])
    change(
        dataset,
        description="a word " * 1000,
        author="x" * 300,
        code_permalink=f"https://example.org/{'a' * 50}",
        env_spec=json.dumps(spec),
        minari_pipe={**MADE, "files": {"f" * 100: "1" * 64}},
    )
    out = run("show", ID).stdout.replace(str(dataset.storage.data_path), "")  # however long
    assert max(map(len, out.splitlines())) <= 80
    assert f"\n  https://example.org/{'a' * 50}\n" in out
    assert "(7,000 characters; all of them: --json)" in " ".join(out.split())
    assert f"\n  {entry}\n" in out


def test_a_box_of_many_bounds_is_no_wall_of_text() -> None:
    bounds = np.linspace(1, 2, 60, dtype=np.float32).reshape(20, 3)
    assert descriptions._space_text(spaces.Box(-bounds, bounds)) == (
        "Box(-2 to 2, not the same for all elements, (20, 3), float32)"
    )


def test_what_users_copy_is_in_one_piece_in_a_pipe_and_folded_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    link = f"https://example.org/{'a' * 100}"
    make([1.0], code_permalink=link)
    assert f"Code\n{link}\n" in run("show", ID).stdout
    monkeypatch.setattr(tables, "_console", lambda: Console(file=sys.stdout, width=80))
    datasets.show(ID)
    told = capsys.readouterr().out
    assert max(map(len, told.splitlines())) <= 80
    assert link in told.replace("\n", "")


def test_a_nested_space_has_a_line_for_each_leaf() -> None:
    leaf = spaces.Box(-1, 1, (3,), np.float32)
    make([1.0], space=spaces.Dict({"goal": leaf, "hand": leaf}))
    out = run("show", ID).stdout
    line = "Box(-1.0, 1.0, (3,), float32)"
    assert f"Observation space  goal: {line}\n{' ' * 19}hand: {line}\n" in out
    many = spaces.Tuple([leaf] * 30)
    assert descriptions._space_text(many).splitlines()[-1] == "and 14 more"


def test_hostile_texts_of_a_pipeline_are_inert() -> None:
    dataset = make([1.0, 2.0])
    made = {
        "files": {HOSTILE: HOSTILE},
        "collect_seed": HOSTILE,
        "family": {"name": HOSTILE, "kind": HOSTILE},
        "ref_scores": {"ref_max": {"policy": [HOSTILE], "files": [{HOSTILE: HOSTILE}]}},
    }
    change(dataset, minari_pipe=made)
    (get_dataset_path() / ID / "draft.json").write_text(json.dumps({"pipeline": HOSTILE}))
    out = run("show", ID).stdout
    assert "State" in out and "\\x1b]0;title" in out
    assert not [letter for letter in out if not letter.isprintable() and letter != "\n"]
