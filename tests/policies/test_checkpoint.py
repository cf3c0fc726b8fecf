from __future__ import annotations

import base64
import io
import json
import os
import pickle
import platform
import random
import shutil
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces

from minari_pipe.errors import ConfigError, TrustError
from minari_pipe.policies import archive
from minari_pipe.policies.algorithms import ALGORITHMS, build_policy
from minari_pipe.policies.checkpoint import (
    load_policy,
    load_weights,
    trusted_load,
    write_checkpoint,
)
from minari_pipe.policies.checkpoint_claims import plain_settings
from tests.conftest import FULL
from tests.support.sb3_models import ACTIONS, IMAGE, MIXED, TABLE, VECTOR, silent, untrained

torch = pytest.importorskip("torch")

SPACES = {"observation_space": VECTOR, "action_space": ACTIONS["box"]}
SMALL = {"net_arch": [8, 8]}


@pytest.fixture(scope="module")
def model():
    return untrained("ppo", policy_kwargs={"net_arch": [8, 8]})


@pytest.fixture(scope="module")
def saved(model, tmp_path_factory) -> Path:
    """As real Stable-Baselines3 writes it."""
    path = tmp_path_factory.mktemp("saved") / "model.zip"
    model.save(path)
    return path


def rewritten(source: Path, target: Path, **entries: bytes | None) -> Path:
    """A copy of a zip with some entries replaced, or left out."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        kept = {n: old.read(n) for n in old.namelist()}
        for name, content in {**kept, **entries}.items():
            if content is not None:
                new.writestr(name, content)
    return target


def torch_bytes(value) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


class Bomb:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


# Reading


def test_reads_the_weights_that_sb3_saved(saved, model):
    weights = load_weights(saved)
    expected = model.policy.state_dict()
    assert list(weights) == list(expected)
    for name, value in expected.items():
        assert weights[name].dtype == value.dtype
        assert torch.equal(weights[name], value)


def test_pickles_in_data_are_never_loaded(saved, tmp_path):
    mark = tmp_path / "executed"
    bomb = base64.b64encode(pickle.dumps(Bomb(mark))).decode()
    data = {
        name: {":type:": "<class 'x'>", ":serialized:": bomb}
        for name in ("policy_class", "policy_kwargs", "observation_space", "action_space")
    }
    evil = rewritten(saved, tmp_path / "evil.zip", data=json.dumps(data).encode())
    load_policy(evil, algorithm="ppo", policy_kwargs=SMALL, **SPACES)
    assert not mark.exists()


def test_a_pickle_in_place_of_weights_is_refused_by_name(saved, tmp_path):
    mark = tmp_path / "executed"
    evil = rewritten(saved, tmp_path / "e.zip", **{"policy.pth": torch_bytes({"w": Bomb(mark)})})
    with pytest.raises(ConfigError, match="holds more than tensors") as caught:
        load_weights(evil)
    assert "\n" not in str(caught.value)
    assert not mark.exists()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({}, "not a mapping of weights"),
        ([1, 2], "not a mapping of weights"),
        ({"w": 3}, "is not a tensor"),
        ({"w": torch.tensor([1.0, float("nan")])}, "'w' holds NaN"),
        (
            {"w": torch.zeros(1).expand(10**12)},
            "reuses its values; together the tensors are larger",
        ),
        (
            {"w": torch.eye(3).to_sparse()},
            "refers to the global 'torch._utils._rebuild_sparse_tensor'",
        ),
    ],
    ids=["empty", "list", "number", "nan", "terabytes", "sparse"],
)
def test_weights_that_are_not_weights(saved, tmp_path, value, message):
    odd = rewritten(saved, tmp_path / "odd.zip", **{"policy.pth": torch_bytes(value)})
    with pytest.raises(ConfigError, match=message):
        load_weights(odd)


DEEP = b"\x80\x02})" + b"\x85" * 150_000 + b"K\x01s."
"""Of tuples in tuples as a key, whose hash overflows the stack."""
LONG = b"\x80\x02}X\x01\0\0\0acbuiltins\nbytearray\n\x8a\x05\0\x5e\xd0\xb2\0\x85Rs."
"""Calls for three gigabytes."""


PLACE = b"\x80\x02)" + b"\x85" * 150_000 + b"Q."
"""The same as the place of values, which PyTorch looks up."""
ITEMS = b"\x80\x02ccollections\nOrderedDict\n((()" + b"\x85" * 150_000 + b"K\x01tttR."
"""The same as an item that a mapping is made with."""
HUGE = (
    b"\x80\x02}X\x01\0\0\0wctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storage"
    b"ctorch\nFloatStorage\nX\x01\0\0\0aX\x03\0\0\0cpuK\x01tQK\0(\x8b"
    + (2**20).to_bytes(4, "little")
    + b"\x7f" * 2**20
    + b"q\x01h\x01h\x01h\x01t(K\x01K\x01K\x01K\x01ttRs."
)
"""A tensor whose size is a product of numbers with millions of digits."""
PROGRAMS = {"deep": DEEP, "long": LONG, "a place": PLACE, "items": ITEMS}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_a_pickle_that_would_end_the_process_is_refused(program, saved, tmp_path):
    entries = {"archive/data.pkl": program, "archive/byteorder": b"little", "archive/version": b"3"}
    evil = rewritten(saved, tmp_path / "evil.zip", **{"policy.pth": zipped(entries)})
    with pytest.raises(ConfigError, match="holds more than tensors"):
        load_weights(evil)


def test_the_size_of_a_tensor_is_bounded_before_it_is_multiplied(saved, tmp_path):
    entries = {"archive/data.pkl": HUGE, "archive/data/a": bytes(4)}
    evil = rewritten(saved, tmp_path / "evil.zip", **{"policy.pth": zipped(entries)})
    with pytest.raises(ConfigError, match="a tensor with an invalid offset, size or stride"):
        load_weights(evil)


def test_weights_that_share_their_values_are_read_in_time(saved, tmp_path):
    values = torch.zeros(5_000_000)
    value = {str(number): values[number : number + 1] for number in range(2000)}
    shared = rewritten(saved, tmp_path / "shared.zip", **{"policy.pth": torch_bytes(value)})
    before = time.process_time()
    assert len(load_weights(shared)) == 2000
    assert time.process_time() - before < 10  # a copy of all values for each takes 20


def test_values_that_the_file_has_not_are_damage(saved, tmp_path):
    entries = unzipped(torch_bytes({"w": torch.ones(1000)}))
    (values,) = (name for name in entries if "/data/" in name and not name.endswith("_id"))
    short = zipped({**entries, values: bytes(64)})
    with pytest.raises(ConfigError, match="is damaged .64 bytes for 1000 values of float32"):
        load_weights(rewritten(saved, tmp_path / "short.zip", **{"policy.pth": short}))


def test_weights_of_many_names_and_of_any_order_are_read(saved, tmp_path):
    shared = torch.arange(6.0).reshape(2, 3)
    value = {"a": shared, "b": shared.T, "c": shared[1, 1:], "d": torch.empty(0, 4)}
    written = rewritten(saved, tmp_path / "w.zip", **{"policy.pth": torch_bytes(value)})
    found = load_weights(written)
    assert all(torch.equal(found[name], value[name]) for name in value)


def test_what_a_checkpoint_says_of_its_layers_may_be_anything(saved, tmp_path):
    data = json.dumps({"policy_kwargs": {"net_arch": "{[]}"}}).encode()
    odd = rewritten(saved, tmp_path / "odd.zip", data=data)
    with pytest.raises(ConfigError, match="does not fit the config"):
        load_policy(odd, algorithm="ppo", **SPACES)


def test_missing_file_and_missing_entry(saved, tmp_path):
    with pytest.raises(ConfigError, match=r"cannot read .*none\.zip: No such file"):
        load_weights(tmp_path / "none.zip")
    with pytest.raises(ConfigError, match=r"has no entry 'policy\.pth'; it holds"):
        load_weights(rewritten(saved, tmp_path / "x.zip", **{"policy.pth": None}))


@pytest.mark.parametrize(
    "content", [b"", b"PK", b"no zip at all" * 100], ids=["empty", "PK", "text"]
)
def test_not_a_zip(tmp_path, content):
    (tmp_path / "x.zip").write_bytes(content)
    with pytest.raises(ConfigError, match="not a readable zip"):
        load_weights(tmp_path / "x.zip")


def test_old_or_foreign_weights_format(saved, tmp_path):
    buffer = io.BytesIO()
    torch.save({"w": torch.ones(3)}, buffer, _use_new_zipfile_serialization=False)
    old = rewritten(saved, tmp_path / "old.zip", **{"policy.pth": buffer.getvalue()})
    with pytest.raises(ConfigError, match=r"not an archive of PyTorch 1\.6"):
        load_weights(old)


def test_zip_bombs_are_not_unpacked(saved, tmp_path):
    bomb = tmp_path / "bomb.zip"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("policy.pth", bytes(50 << 20))
    with pytest.raises(ConfigError, match="would unpack from"):
        load_weights(bomb)
    with pytest.raises(ConfigError, match="limit 10 bytes"):
        archive.read_entry(saved, "policy.pth", limit=10)
    inner = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(archive.read_entry(saved, "policy.pth"))) as old,
        zipfile.ZipFile(inner, "w", zipfile.ZIP_DEFLATED) as new,
    ):
        for name in old.namelist():
            new.writestr(name, old.read(name))
    nested = rewritten(saved, tmp_path / "n.zip", **{"policy.pth": inner.getvalue()})
    with pytest.raises(ConfigError, match="its records are compressed"):
        load_weights(nested)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_an_entry_that_python_unpacks_whole_is_refused(method, tmp_path):
    with zipfile.ZipFile(tmp_path / "x.zip", "w", method) as file:
        file.writestr("policy.pth", bytes(100))
    with pytest.raises(
        ConfigError, match=f"uses compression method {method}; expected none or def"
    ):
        load_weights(tmp_path / "x.zip")


def test_many_entries_are_judged_together(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_DEFLATED) as file:
        for number in range(200):
            file.writestr(f"{number}.npy", bytes(1 << 20))
    with pytest.raises(ConfigError, match="its entries would unpack from .* to 209715200 bytes"):
        archive.read_arrays(tmp_path / "x.npz")


def test_an_entry_given_twice_is_refused(saved, tmp_path):
    twice = tmp_path / "twice.zip"
    shutil.copy(saved, twice)
    with zipfile.ZipFile(twice, "a") as file, pytest.warns(UserWarning, match="Duplicate"):
        file.writestr("policy.pth", b"other")
    with pytest.raises(ConfigError, match="each name once"):
        load_weights(twice)


def unzipped(content: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(content)) as file:
        return {name: file.read(name) for name in file.namelist()}


def zipped(entries: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name, content in entries.items():
            file.writestr(name, content)
    return buffer.getvalue()


def mutant(content: bytes, rng: random.Random) -> bytes:
    damaged = bytearray(content)
    if rng.random() < 0.2:
        del damaged[rng.randrange(len(damaged)) :]
    for _ in range(rng.randint(1, 5)):
        if damaged:
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
    return bytes(damaged)


@pytest.mark.parametrize("place", ["file", "weights", "pickle"])
def test_damage_is_one_clear_error(saved, tmp_path, place):
    """The checksums of both zips are right in the last case, so the pickle itself is reached."""
    content, weights = saved.read_bytes(), archive.read_entry(saved, "policy.pth")
    records = unzipped(weights)
    rng = random.Random(0)
    messages = []
    for _ in range(3000 if FULL else 60):
        if place == "file":
            damaged = mutant(content, rng)
        elif place == "weights":
            damaged = zipped({"policy.pth": mutant(weights, rng)})
        else:
            pickled = mutant(records["archive/data.pkl"], rng)
            damaged = zipped({"policy.pth": zipped({**records, "archive/data.pkl": pickled})})
        (tmp_path / "d.zip").write_bytes(damaged)
        try:
            load_weights(tmp_path / "d.zip")
        except ConfigError as exc:
            messages.append(str(exc))
    assert messages
    assert not [text for text in messages if "\n" in text]


# Building


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"algorithm": "ppp"}, r"unknown algorithm 'ppp'\. Did you mean 'ppo'\?"),
        ({"policy_class": "MlpPolcy"}, r"Did you mean 'MlpPolicy'\?"),
        ({"policy_class": "MultiInputPolicy"}, "set policy_class: MlpPolicy"),
        ({"observation_space": MIXED}, "set policy_class: MultiInputPolicy"),
        (
            {"policy_kwargs": {"net_arc": [8]}},
            r"net_arc cannot be set .* Did you mean 'net_arch'\?",
        ),
        ({"policy_kwargs": {"net_arch": [8, "x"]}}, "ppo takes a list of layer sizes"),
        ({"policy_kwargs": {"net_arch": 8}}, "ppo takes a list of layer sizes"),
        ({"policy_kwargs": {"net_arch": {"pi": [8], "qf": [8]}}}, "each for pi and vf"),
        ({"policy_kwargs": {"features_extractor_kwargs": {"x": 1}}}, "cannot be built from"),
        ({"policy_kwargs": {"activation_fn": "reul"}}, r"Did you mean 'relu'\?"),
        ({"policy_kwargs": {"activation_fn": ["relu"]}}, "unknown function"),
        ({"policy_kwargs": {"optimizer_class": "Adam"}}, "optimizer_class cannot be set for"),
        (
            {"policy_kwargs": {"optimizer_kwargs": {"_target_": "os.system"}}},
            "_: only numbers, strings",
        ),
        ({"policy_kwargs": {"log_std_init": object()}}, "is a object; only numbers"),
        ({"policy_kwargs": [1]}, r"policy_kwargs is \[1\]; expected a mapping"),
        ({"policy_kwargs": {"net_arch": [8, 10**14]}}, "cannot be built"),
        ({"observation_space": spaces.Box(-1, 1, ())}, "needs a dimension"),
        ({"algorithm": "dqn"}, "'dqn' cannot choose actions of Box"),
        ({"action_space": spaces.Discrete(3, start=1)}, "needs start=0"),
        ({"action_space": spaces.MultiDiscrete([2, 3], start=[0, 1])}, "needs start=0"),
        ({"observation_space": spaces.MultiDiscrete([2, 3], start=[0, 1])}, "needs start=0"),
        ({"action_space": spaces.Box(-3, 3, (2,), np.int32)}, "needs a Box of floats"),
        ({"action_space": spaces.Box(-np.inf, np.inf, (2,))}, "needs finite bounds"),
        ({"observation_space": spaces.Text(4)}, "Stable-Baselines3 policies take Box"),
        ({"policy_class": "CnnPolicy"}, "cannot be built"),
    ],
)
def test_configs_that_cannot_be_built(change, message):
    config = {
        "algorithm": "ppo",
        "policy_class": "MlpPolicy",
        "policy_kwargs": None,
        **SPACES,
        **change,
    }
    with pytest.raises(ConfigError, match=message) as caught:
        build_policy(**config)
    assert "\n" not in str(caught.value)


def test_building_leaves_the_global_generator_alone():
    before = torch.random.get_rng_state()
    build_policy("sac", "MlpPolicy", None, VECTOR, ACTIONS["box"])
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_no_optimizer_is_made_which_would_import_the_compiler(algorithm, monkeypatch):
    monkeypatch.setattr(torch.optim.Optimizer, "__init__", lambda *_, **__: pytest.fail("made"))
    action_space = ACTIONS["box" if "Box" in ALGORITHMS[algorithm].actions else "discrete"]
    build_policy(algorithm, "MlpPolicy", None, VECTOR, action_space)


@pytest.mark.parametrize("algorithm", ["ppo", "a2c", "sac", "td3", "ddpg"])
def test_weights_of_every_algorithm_fit_what_the_config_builds(algorithm, tmp_path):
    kwargs = {"net_arch": [6, 5]}
    model = untrained(algorithm, policy_kwargs=dict(kwargs))
    model.save(tmp_path / "m.zip")
    policy = load_policy(tmp_path / "m.zip", algorithm=algorithm, policy_kwargs=kwargs, **SPACES)
    for name, value in model.policy.state_dict().items():
        assert torch.equal(policy.state_dict()[name], value), name


# Weights of another policy


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"policy_kwargs": {"net_arch": [8, 9]}},
            r"parameter 'mlp_extractor.policy_net.2.weight' has shape \(8, 8\) in the file, the "
            r"config implies \(9, 8\).*policy_kwargs \{'net_arch': \[8, 8\]\}",
        ),
        ({"policy_kwargs": {"net_arch": [8, 8, 4]}}, "no parameter 'mlp_extractor.policy_net.4"),
        (
            {"policy_kwargs": {"net_arch": [8]}},
            "'mlp_extractor.policy_net.2.weight' .* does not imply",
        ),
        (
            {"observation_space": spaces.Box(-1, 1, (12,))},
            r"made for other spaces: observation space Box\(.*11.*the environment has Box\(.*12",
        ),
        (
            {"action_space": spaces.Box(-1, 1, (5,))},
            "made for other spaces: action space Box.* the environment has Box",
        ),
        (
            {"policy_kwargs": {**SMALL, "activation_fn": "relu"}},
            "'tanh', the config implies 'relu'",
        ),
    ],
    ids=["size", "deeper", "flatter", "observations", "action bounds", "activation"],
)
@pytest.mark.parametrize("writer", ["sb3", "here"])
def test_a_checkpoint_that_does_not_fit(saved, model, tmp_path, change, message, writer):
    path = saved
    if writer == "here":
        path = tmp_path / "c.zip"
        write_checkpoint(model, path)
    config = {"algorithm": "ppo", "policy_kwargs": SMALL, **SPACES, **change}
    with pytest.raises(ConfigError, match=message) as caught:
        load_policy(path, **config)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1500


UNSEEN = [
    ("ppo", IMAGE, {"normalize_images": False}, "normalize_images False, the config implies True"),
    ("sac", VECTOR, {"clip_mean": 0.5}, "clip_mean 0.5, the config implies 2.0"),
    ("ppo", VECTOR, {"squash_output": True}, "squash_output True, the config implies False"),
]


@pytest.mark.parametrize(("algorithm", "space", "settings", "message"), UNSEEN)
@pytest.mark.parametrize("writer", ["sb3", "here"])
def test_settings_that_the_weights_do_not_show(
    algorithm, space, settings, message, writer, tmp_path
):
    kwargs = {"observation_space": space}
    kwargs["policy_class"] = "CnnPolicy" if space is IMAGE else "MlpPolicy"
    model = untrained(algorithm, policy_kwargs=dict(settings), use_sde=True, **kwargs)
    path = tmp_path / "m.zip"
    (model.save if writer == "sb3" else lambda p: write_checkpoint(model, p))(path)
    config = {"algorithm": algorithm, "action_space": ACTIONS["box"], **kwargs}
    load_policy(path, policy_kwargs={"use_sde": True, **settings}, **config)
    load_policy(path, **config)  # as the file itself says
    others = {"normalize_images": True, "clip_mean": 2.0, "squash_output": False}
    other = {name: others[name] for name in settings}
    with pytest.raises(ConfigError, match=f"says it was trained with .*{message}"):
        load_policy(path, policy_kwargs=other, **config)


@pytest.mark.parametrize("net_arch", [[9], {"pi": [7, 5], "vf": [6]}], ids=["one", "two"])
@pytest.mark.parametrize("writer", ["sb3", "here"])
def test_what_a_file_says_safely_need_not_be_given_again(net_arch, writer, tmp_path):
    model = untrained("ppo", policy_kwargs={"net_arch": net_arch, "activation_fn": torch.nn.ELU})
    path = tmp_path / "m.zip"
    (model.save if writer == "sb3" else lambda p: write_checkpoint(model, p))(path)
    policy = load_policy(path, algorithm="ppo", **SPACES)
    assert policy.net_arch == net_arch
    assert policy.activation_fn is torch.nn.ELU
    with pytest.raises(ConfigError, match="trained with activation_fn 'elu', the config implies"):
        load_policy(path, algorithm="ppo", policy_kwargs={"activation_fn": "relu"}, **SPACES)


def test_a_file_makes_no_network_larger_than_itself():
    shapes = [(8, 11), (8,), (8, 8)]
    for net_arch in ([10**9], [8, 11], [[8]], [-8], ["8"], {"pi": 8}, "__import__('os')", [True]):
        assert plain_settings({"policy_kwargs": {"net_arch": net_arch}}, shapes) == {}
    for told in ({"lstm_hidden_size": 10**9}, {"activation_fn": "os.system"}, {"x": "f()"}):
        assert plain_settings({"policy_kwargs": told}, shapes) == {}
    assert plain_settings({"policy_kwargs": {"net_arch": "[8, 8]"}}, shapes) == {"net_arch": [8, 8]}
    # each weight is one layer, and a bias is none
    for net_arch in ([8] * 3, {"pi": [8, 8], "vf": [8, 8]}, [9]):
        told = {"policy_kwargs": {"net_arch": net_arch}}
        assert plain_settings(told, [*shapes, (9,)]) == {}


@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        ("ppo", {"normalize_images": False}),  # no image among the observations
        ("sac", {"clip_mean": 5.0}),  # only with use_sde
        ("ppo", {"activation_fn": torch.nn.Tanh, "squash_output": np.bool_(False)}),
    ],
)
def test_settings_that_decide_nothing_are_not_compared(algorithm, settings, tmp_path):
    untrained(algorithm, policy_kwargs=dict(settings)).save(tmp_path / "m.zip")
    load_policy(tmp_path / "m.zip", algorithm=algorithm, **SPACES)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool])
def test_weights_are_not_cast_from_another_kind(saved, tmp_path, dtype):
    weights = load_weights(saved)
    weights["log_std"] = weights["log_std"].to(dtype)
    buffer = io.BytesIO()
    torch.save(weights, buffer)
    odd = rewritten(saved, tmp_path / "odd.zip", **{"policy.pth": buffer.getvalue()})
    with pytest.raises(ConfigError, match=f"'log_std' is {dtype}, the config implies"):
        load_policy(odd, algorithm="ppo", policy_kwargs=SMALL, **SPACES)


def test_what_a_file_says_of_itself_may_be_nonsense(saved, tmp_path):
    for data in (b"", b"[1]", b'{"policy_kwargs": 3, "action_space": {":type:": 7}}', b"{" * 10**5):
        odd = rewritten(saved, tmp_path / "odd.zip", data=data)
        load_policy(odd, algorithm="ppo", policy_kwargs=SMALL, **SPACES)
        with pytest.raises(ConfigError, match="does not fit the config"):
            load_policy(odd, algorithm="ppo", policy_kwargs={"net_arch": [9]}, **SPACES)


# Trust


def test_full_loading_needs_the_users_trust(saved, model, monkeypatch):
    with pytest.raises(TrustError, match=r"pass --trust ([0-9a-f]{64})") as caught:
        trusted_load(saved, "ppo")
    sha256 = str(caught.value).split("--trust ")[1][:64]
    monkeypatch.setenv("MINARI_PIPE_TRUSTED_SHA256", sha256)
    policy = trusted_load(saved, "ppo", **SPACES)
    assert torch.equal(policy.action_net.weight, model.policy.action_net.weight)
    with pytest.raises(ConfigError, match="made for other spaces"):
        trusted_load(saved, "ppo", observation_space=VECTOR, action_space=spaces.Discrete(2))
    with pytest.raises(ConfigError, match="cannot be loaded as sac"):
        trusted_load(saved, "sac")


# Writing


@pytest.mark.parametrize(
    ("algorithm", "observation", "action", "policy_class"),
    [
        ("ppo", VECTOR, "several", "MlpPolicy"),
        ("ppo", MIXED, "box64", "MultiInputPolicy"),
        ("a2c", VECTOR, "switches", "MlpPolicy"),
        ("sac", TABLE, "box", "MultiInputPolicy"),
        ("td3", VECTOR, "box", "MlpPolicy"),
        ("dqn", VECTOR, "discrete", "MlpPolicy"),
    ],
)
def test_real_sb3_loads_and_continues_what_is_written(
    tmp_path, algorithm, observation, action, policy_class
):
    kwargs = {"policy_kwargs": {"net_arch": [8]}}
    if algorithm in ("ppo", "a2c"):
        kwargs |= {"n_steps": 16}
    if algorithm == "ppo":
        kwargs |= {"batch_size": 16, "n_epochs": 1}
    else:
        kwargs |= {} if algorithm == "a2c" else {"learning_starts": 4, "batch_size": 8}
    model = untrained(algorithm, observation, ACTIONS[action], policy_class, **kwargs)
    model.learn(20)
    write_checkpoint(model, tmp_path / "m.zip")
    again = silent(type(model).load(tmp_path / "m.zip", env=model.get_env(), device="cpu"))
    assert again.observation_space == model.observation_space
    assert again.action_space == model.action_space
    assert again.num_timesteps == model.num_timesteps
    for name, value in model.policy.state_dict().items():
        assert torch.equal(again.policy.state_dict()[name], value), name
    observation = model.observation_space.sample()
    expected, _ = model.predict(observation, deterministic=True)
    found, _ = again.predict(observation, deterministic=True)
    assert np.array_equal(expected, found)
    again.learn(8, reset_num_timesteps=False)
    assert again.num_timesteps > model.num_timesteps


def test_a_written_checkpoint_shows_neither_time_nor_place(tmp_path, monkeypatch):
    model = untrained("ppo", n_steps=16, batch_size=16, n_epochs=1, policy_kwargs={"net_arch": [4]})
    model.learn(32)
    model.tensorboard_log = str(tmp_path)
    monkeypatch.chdir(tmp_path)
    write_checkpoint(model, "deep/m.zip")
    first = Path("deep/m.zip").read_bytes()
    assert os.listdir("deep") == ["m.zip"]
    time.sleep(0.01)
    model.start_time = time.time_ns()
    model.ep_info_buffer.append({"r": 1.0, "l": 3, "t": time.time()})
    model.action_space.seed(77)
    str(model.action_space)
    write_checkpoint(model, "other.zip")
    assert Path("other.zip").read_bytes() == first
    for trace in (str(tmp_path), str(Path.cwd()), platform.node(), " at 0x", "system_info"):
        assert trace.encode() not in first
    with zipfile.ZipFile("deep/m.zip") as file:
        assert {i.date_time for i in file.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        assert file.namelist() == sorted(file.namelist())


def test_a_failed_write_leaves_the_old_file_and_nothing_else(saved, model, tmp_path, monkeypatch):
    target = tmp_path / "m.zip"
    shutil.copy(saved, target)
    before = target.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(archive.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_checkpoint(model, target)
    assert target.read_bytes() == before
    assert os.listdir(tmp_path) == ["m.zip"]


def test_what_cannot_be_pickled_by_name_is_refused(model, tmp_path):
    model.extra = lambda: 1
    try:
        with pytest.raises(ConfigError, match="attribute 'extra' cannot be written"):
            write_checkpoint(model, tmp_path / "m.zip")
    finally:
        del model.extra


def test_arrays_round_trip_and_pickles_among_them_are_refused(tmp_path):
    arrays = {"a": np.arange(6.0).reshape(2, 3), "b.c": np.float64(2.5)}
    archive.write_arrays(tmp_path / "x.npz", arrays)
    found = archive.read_arrays(tmp_path / "x.npz")
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        assert np.array_equal(found[name], array)
    with np.load(tmp_path / "x.npz") as real:
        assert np.array_equal(real["a"], arrays["a"])
    np.savez(tmp_path / "p.npz", a=np.array([Bomb(tmp_path / "executed")], object))
    with pytest.raises(ConfigError, match=r"'a\.npy' is not a plain array"):
        archive.read_arrays(tmp_path / "p.npz")
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    "header", ["((((", "{'descr': ", "\x00", "[" * 9_000, "{" * 500, "1e" * 40]
)
def test_a_header_of_an_array_that_no_parser_takes_is_one_error(tmp_path, header):
    text = header.encode() + b"\n"
    data = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text
    archive.write_zip(tmp_path / "x.npz", {"a.npy": data})
    with pytest.raises(ConfigError, match=r"'a\.npy' is not a plain array"):
        archive.read_arrays(tmp_path / "x.npz")
