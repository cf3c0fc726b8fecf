"""Controllers that take the observations of all environments at once."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from minari_pipe.errors import ConfigError, InvalidEpisodeError
from minari_pipe.policies.rollout import run_episodes
from minari_pipe.policies.scripted import ScriptedPolicy
from tests.support.sb3_models import ACTIONS, TABLE, VECTOR, Lasting

torch = pytest.importorskip("torch")

BOX = ACTIONS["box"]
BOTH = spaces.Dict({"push": BOX, "gear": spaces.Discrete(3)})
NESTED = spaces.Dict({"a": TABLE, "b": spaces.Tuple([VECTOR, spaces.MultiBinary(2)])})


def run(
    controller: Any,
    episodes: Any = range(9),
    n_envs: int = 8,
    observation: gym.Space = VECTOR,
    action: gym.Space = BOX,
    **kwargs: Any,
) -> dict[int, Any]:
    policy = ScriptedPolicy(controller, kwargs)
    found = run_episodes(
        lambda: Lasting(observation, action), policy, episodes, seed=3, n_envs=n_envs
    )
    return {buffer.id: buffer for buffer in found}


def as_bytes(buffers: dict[int, Any]) -> dict[int, bytes]:
    return {e: np.asarray(b.actions).tobytes() for e, b in buffers.items()}


# --- what a controller gets ---------------------------------------------------------------------


def test_a_function_sees_one_size_with_zeros_where_no_episode_runs() -> None:
    shapes, empty = set(), []

    def controller(observations: np.ndarray, gain: float = 1.0) -> np.ndarray:
        shapes.add((observations.shape, observations.dtype.name))
        empty.append(int((observations == 0).all(axis=1).sum()))
        return gain * observations[:, :5]

    for n_envs in (1, 2, 3, 8):
        empty.clear()
        episodes = run(controller, range(5), n_envs, gain=0.5)
        assert max(empty) == 7 and min(empty) == 8 - min(n_envs, 5)
        for episode in episodes.values():
            expected = np.float32(0.5) * episode.observations[:-1, :5]
            np.testing.assert_array_equal(episode.actions, expected, strict=True)
    assert shapes == {((8, 11), "float32")}
    run(controller, range(5), 9)
    assert shapes == {((8, 11), "float32"), ((16, 11), "float32")}


def test_observations_keep_the_dicts_and_tuples_of_their_space() -> None:
    def controller(observations: Any) -> np.ndarray:
        assert observations["a"]["wide"].shape == (8, 3)
        assert observations["a"]["kind"].dtype == np.int64
        assert observations["b"][1].shape == (8, 2)
        return np.repeat(observations["b"][0][:, :1], 5, axis=1)

    for episode in run(controller, observation=NESTED).values():
        expected = np.repeat(episode.observations["b"][0][:-1, :1], 5, axis=1)
        np.testing.assert_array_equal(episode.actions, expected)


def test_noise_comes_from_the_generator_of_the_rows_episode() -> None:
    def controller(observations: np.ndarray, rngs: list, envs: list) -> list:
        assert len(rngs) == 8 >= len(envs)
        return [rng.uniform(-1, 1, 5) for rng in rngs]

    def one(observation: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return rng.uniform(-1, 1, 5)

    assert as_bytes(run(controller)) == as_bytes(run(one))


# --- what it returns ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "give",
    [
        lambda actions: actions,
        lambda actions: actions.tolist(),
        lambda actions: tuple(actions),
        lambda actions: torch.tensor(actions, requires_grad=True),
        lambda actions: [torch.tensor(a, requires_grad=True) for a in actions],
    ],
    ids=["array", "lists", "tuple", "tensor", "tensors"],
)
def test_actions_come_as_anything_with_one_for_each_row(give: Any) -> None:
    def controller(observations: np.ndarray) -> Any:
        return give(observations[:, :5])

    for episode in run(controller).values():
        np.testing.assert_array_equal(episode.actions, episode.observations[:-1, :5])


@pytest.mark.parametrize("arrays", [True, False], ids=["dict of arrays", "list of dicts"])
def test_dict_actions_come_in_either_way(arrays: bool) -> None:
    def controller(observations: np.ndarray) -> Any:
        push, gear = observations[:, :5], np.arange(8) * 0 + 2
        if arrays:
            return {"push": push, "gear": gear}
        return [{"push": p, "gear": g} for p, g in zip(push, gear, strict=True)]

    for episode in run(controller, action=BOTH).values():
        np.testing.assert_array_equal(episode.actions["push"], episode.observations[:-1, :5])
        assert (episode.actions["gear"] == 2).all()


def test_none_ends_the_episode_of_its_row_alone() -> None:
    def controller(observations: np.ndarray) -> list:
        return [None if o[0] > 0.5 else o[:5] for o in observations]

    def one(observation: np.ndarray) -> Any:
        return None if observation[0] > 0.5 else observation[:5]

    whole = run(lambda observation: observation[:5], range(20))
    starts_well = [e for e, b in whole.items() if b.observations[0, 0] <= 0.5]
    together = run(controller, starts_well)
    assert as_bytes(together) == as_bytes(run(one, starts_well))
    ended = [b for b in together.values() if b.observations[-1, 0] > 0.5]
    assert 0 < len(ended) < len(together)
    assert all(b.truncations[-1] for b in ended)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (np.zeros((3, 5)), "returned 3 actions for a batch of 8 rows"),
        (None, "takes a batch but returned a NoneType; expected 8 actions"),
        (0.5, "returned a float; expected 8 actions"),
        ({"push": np.zeros((2, 5)), "gear": [0] * 8}, "returned 2 actions for a batch of 8"),
    ],
    ids=["too few", "none", "number", "in a dict"],
)
def test_another_number_of_actions_is_refused(result: Any, message: str) -> None:
    def controller(observations: Any) -> Any:
        return result

    with pytest.raises(ConfigError, match=f"controller '.*controller' .*{message}"):
        run(controller, n_envs=2, action=BOTH)


def test_an_action_outside_the_space_is_named_with_its_episode_and_step() -> None:
    steps = iter(range(100))

    def controller(observations: np.ndarray) -> np.ndarray:
        actions = np.zeros((8, 5))
        if next(steps) == 2:
            actions[1] = np.nan
        return actions

    message = r"policy failed at episode 5, step 2: controller '.*' returned array\(\[nan.*not in"
    with pytest.raises(InvalidEpisodeError, match=message):
        run(controller, range(4, 7))


# --- classes ------------------------------------------------------------------------------------


class Momentum:
    """Adds up what it saw, row by row."""

    made = 0

    def __init__(self, envs: list, gain: float = 0.1) -> None:
        type(self).made += 1
        self.sums = np.zeros((64, 5))
        self.gain = gain

    def reset(self, row: int, rng: np.random.Generator) -> None:
        self.sums[row] = rng.uniform(-1, 1, 5)

    def __call__(self, observations: np.ndarray, rngs: list) -> np.ndarray:
        n = len(observations)
        self.sums[:n] += self.gain * observations[:, :5]
        noise = np.array([rng.uniform(-0.1, 0.1) for rng in rngs])
        return np.clip(self.sums[:n] + noise[:, None], -1, 1)


def test_a_class_is_made_once_for_a_block_and_reset_row_by_row() -> None:
    Momentum.made = 0
    together = as_bytes(run(Momentum, gain=0.2))
    assert Momentum.made == 1
    assert len(set(together.values())) == 9
    for n_envs in (1, 2, 3):
        assert as_bytes(run(Momentum, n_envs=n_envs, gain=0.2)) == together
    parts = as_bytes(run(Momentum, range(4), gain=0.2)) | as_bytes(
        run(Momentum, range(4, 9), gain=0.2)
    )
    assert parts == together


class Network(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(11, 5)

    def forward(self, observations: np.ndarray) -> torch.Tensor:
        return torch.tanh(self.layer(torch.as_tensor(observations)))


@pytest.mark.parametrize("controller", [Network, Network()], ids=["class", "instance"])
def test_a_module_of_pytorch_is_told_by_its_forward(controller: Any) -> None:
    network = Network()
    for episode in run(controller).values():
        expected = network(episode.observations[:-1]).detach().numpy()
        np.testing.assert_allclose(episode.actions, expected, atol=1e-5)


def test_a_controller_runs_with_one_thread_of_pytorch() -> None:
    threads = []

    def controller(observations: np.ndarray) -> np.ndarray:
        threads.append(torch.get_num_threads())
        return observations[:, :5]

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        run(controller, range(1))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert set(threads) == {1}


# --- what is refused ----------------------------------------------------------------------------


def test_what_cannot_be_called_is_refused() -> None:
    def controller(observations: Any, gain: float) -> Any:
        return observations

    with pytest.raises(ConfigError, match="cannot be called with no parameters .*'gain'"):
        ScriptedPolicy(controller)
    with pytest.raises(ConfigError, match=r"cannot be called with \['force', 'gain'\]"):
        ScriptedPolicy(controller, {"gain": 1.0, "force": 2.0})

    def noisy(observations: Any, rngs: Any) -> Any:
        return observations

    with pytest.raises(ConfigError, match="rngs is supplied by the policy; remove it"):
        ScriptedPolicy(noisy, {"rngs": 1})


def test_observations_that_cannot_be_stacked_are_refused() -> None:
    def controller(observations: Any) -> Any:
        return observations

    with pytest.raises(ConfigError, match="observations of Text.* cannot be stacked into a batch"):
        run(controller, observation=spaces.Text(5))
