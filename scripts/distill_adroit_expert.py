"""Distils the DAPG expert of an Adroit task into a small Stable-Baselines3 checkpoint.

The teacher is the policy that Rajeswaran et al. (2018, "Learning Complex Dexterous Manipulation
with Deep Reinforcement Learning and Demonstrations") published, re-saved as plain arrays; its
action is the mean of its Gaussian. The student is trained by DAgger (Ross et al. 2011), not copied:

1. The teacher drives 25 episodes of 200 steps; a new network is fitted to the teacher's action in
   every state (mean squared error of unclipped actions, Adam, cosine decay).
2. The network drives the next 25 episodes, the teacher labels the states it comes to, and a new
   network is fitted to all states so far. Five times.
3. A last network is fitted for longer. The scales of inputs and outputs are folded into its first
   and last layer, and it becomes the policy of an otherwise untrained PPO model.

Its standard deviations minimise the mean KL divergence from the teacher's Gaussian to its own. No
network is chosen by its score, so the scores in the provenance file are those of unseen seeds.

``door_expert.zip`` and ``door_expert.json`` were made with (about 80 s on one core), and those of
the other tasks likewise::

    python scripts/distill_adroit_expert.py door door-v0.npz --seed 0

Run again, on the same platform and with the package versions the provenance lists, it writes the
same bytes. The states it visits stay in memory.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from tqdm import tqdm

from minari_pipe.core.files.fetch import SHIPPED
from minari_pipe.policies.batched_network import one_torch_thread
from minari_pipe.policies.checkpoint import write_checkpoint
from minari_pipe.policies.sb3 import SB3Policy

if TYPE_CHECKING:
    from torch import nn

HORIZON = 200
EPISODES = 25  # of one round, in lockstep
ROUNDS = 5  # driven by the student, after the one of the teacher
EPOCHS, LAST_EPOCHS = 60, 200
BATCH, LEARNING_RATE = 256, 2e-3
FIRST_TRAINING_SEED = 1_000_000
UNSEEN_SEEDS = (0, 1_000, 50_000)  # first of 100 reset seeds each
N_UNSEEN = 100
PACKAGES = ("gymnasium", "gymnasium-robotics", "mujoco", "numpy", "stable-baselines3", "torch")

Act = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Task:
    """A task, and how its student acts."""

    name: str
    hidden: int = 32
    """Units of each of the two hidden layers, as many as the teacher has."""
    deterministic: bool = True
    """Whether the student is scored, and collects, with its most likely action."""

    @property
    def env_id(self) -> str:
        return f"AdroitHand{self.name.capitalize()}-v1"

    @property
    def policy_kwargs(self) -> dict[str, Any]:
        layers = [self.hidden, self.hidden]
        return {"net_arch": {"pi": layers, "vf": []}, "activation_fn": "tanh"}


TASKS = {
    task.name: task
    for task in (
        Task("door"),
        Task("hammer"),
        Task("pen", hidden=64, deterministic=False),
        Task("relocate"),
    )
}


@dataclass(frozen=True)
class Teacher:
    """A Gaussian tanh MLP as ``weight_i``, ``bias_i``, ``{in,out}_{shift,scale}``, ``log_std``."""

    arrays: dict[str, np.ndarray]

    @classmethod
    def load(cls, path: Path) -> Teacher:
        with np.load(path, allow_pickle=False) as file:
            return cls({name: file[name].astype(np.float64) for name in file.files})

    def mean_action(self, observations: np.ndarray) -> np.ndarray:
        """Unclipped mean actions, shape ``(N, A)``, for observations of shape ``(N, O)``."""
        a = self.arrays
        x = (observations - a["in_shift"]) / (a["in_scale"] + 1e-8)
        last = sum(name.startswith("weight_") for name in a) - 1
        for i in range(last):
            x = np.tanh(x @ a[f"weight_{i}"].T + a[f"bias_{i}"])
        x = x @ a[f"weight_{last}"].T + a[f"bias_{last}"]
        return x * a["out_scale"] + a["out_shift"]


@dataclass(frozen=True)
class Scale:
    """Mean and standard deviation by which columns are brought to a common size."""

    mean: np.ndarray
    std: np.ndarray

    @classmethod
    def of(cls, columns: np.ndarray) -> Scale:
        return cls(columns.mean(0), columns.std(0) + 1e-3)


@contextmanager
def environments(task: Task, n: int) -> Iterator[list[gym.Env]]:
    """``n`` environments of the task, closed afterwards."""
    import gymnasium_robotics

    gym.register_envs(gymnasium_robotics)
    envs = [gym.make(task.env_id) for _ in range(n)]
    try:
        yield envs
    finally:
        for env in envs:
            env.close()


def visit(
    envs: Sequence[gym.Env], first_seed: int, act: Act, teacher: Teacher, bar: tqdm
) -> tuple[np.ndarray, np.ndarray]:
    """The observations that ``act`` comes to, and the teacher's actions there.

    Returns:
        Shapes ``(len(envs) * HORIZON, O)`` and ``(len(envs) * HORIZON, A)``.
    """
    observations, labels = [], []
    current = np.stack([env.reset(seed=first_seed + i)[0] for i, env in enumerate(envs)])
    for _ in range(HORIZON):
        observations.append(current)
        labels.append(teacher.mean_action(current))
        actions = np.clip(act(current), -1.0, 1.0).astype(np.float32)
        current = np.stack([env.step(a)[0] for env, a in zip(envs, actions, strict=True)])
        bar.update(len(envs))
    return np.concatenate(observations), np.concatenate(labels)


def fit(
    x: np.ndarray,
    y: np.ndarray,
    scales: tuple[Scale, Scale],
    epochs: int,
    seed: int,
    hidden: int = Task.hidden,
) -> nn.Sequential:
    """A network from scaled observations to scaled actions, fitted anew.

    Args:
        x: observations, shape ``(N, O)``.
        y: the teacher's actions, shape ``(N, A)``; the error counts in these units.
    """
    import torch
    from torch import nn

    torch.manual_seed(seed)
    of_x, of_y = scales
    inputs = torch.tensor((x - of_x.mean) / of_x.std, dtype=torch.float32)
    targets = torch.tensor((y - of_y.mean) / of_y.std, dtype=torch.float32)
    weight = torch.tensor(of_y.std**2 / np.mean(of_y.std**2), dtype=torch.float32)
    network = nn.Sequential(
        nn.Linear(x.shape[1], hidden),
        nn.Tanh(),
        nn.Linear(hidden, hidden),
        nn.Tanh(),
        nn.Linear(hidden, y.shape[1]),
    )
    batches = len(x) // BATCH
    optimizer = torch.optim.Adam(network.parameters(), lr=LEARNING_RATE)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * batches)
    for _ in range(epochs):
        for rows in torch.randperm(len(x))[: batches * BATCH].view(batches, BATCH):
            loss = (weight * (network(inputs[rows]) - targets[rows]) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            decay.step()
    return network


def unscaled(
    network: nn.Sequential, scales: tuple[Scale, Scale]
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Weights and biases of the network, float64, with the scales folded in."""
    parameters = [p.detach().numpy().astype(np.float64) for p in network.parameters()]
    layers = [list(pair) for pair in zip(parameters[::2], parameters[1::2], strict=True)]
    of_x, of_y = scales
    layers[0][1] -= layers[0][0] @ (of_x.mean / of_x.std)
    layers[0][0] /= of_x.std
    layers[-1][0] *= of_y.std[:, None]
    layers[-1][1] = layers[-1][1] * of_y.std + of_y.mean
    return [(weight, bias) for weight, bias in layers]


def forward(layers: Sequence[tuple[np.ndarray, np.ndarray]], x: np.ndarray) -> np.ndarray:
    """The network's unclipped actions, shape ``(N, A)``."""
    for weight, bias in layers[:-1]:
        x = np.tanh(x @ weight.T + bias)
    return x @ layers[-1][0].T + layers[-1][1]


def distil(
    task: Task, teacher: Teacher, seed: int
) -> tuple[list[tuple[np.ndarray, np.ndarray]], np.ndarray]:
    """Weights and biases of the student, and its log standard deviations, shape ``(A,)``."""
    total = (ROUNDS + 1) * EPISODES * HORIZON
    bar = tqdm(total=total, desc=f"distil {task.name} expert", unit=" steps", disable=None)
    with environments(task, EPISODES) as envs, bar:
        x, y = visit(envs, FIRST_TRAINING_SEED, teacher.mean_action, teacher, bar)
        scales = Scale.of(x), Scale.of(y)
        for done in range(1, ROUNDS + 1):
            layers = unscaled(fit(x, y, scales, EPOCHS, seed, task.hidden), scales)
            first_seed = FIRST_TRAINING_SEED + done * EPISODES
            more = visit(envs, first_seed, partial(forward, layers), teacher, bar)
            x, y = np.concatenate([x, more[0]]), np.concatenate([y, more[1]])
    layers = unscaled(fit(x, y, scales, LAST_EPOCHS, seed, task.hidden), scales)
    mse = np.mean((forward(layers, x) - y) ** 2, axis=0)
    log_std = 0.5 * np.log(np.exp(2 * teacher.arrays["log_std"]) + mse)
    return layers, log_std


def write_student(
    task: Task,
    layers: Sequence[tuple[np.ndarray, np.ndarray]],
    log_std: np.ndarray,
    seed: int,
    path: Path,
) -> None:
    """Write the network as the policy of a PPO model; the value function is zero, untrained."""
    import torch
    from stable_baselines3 import PPO
    from torch import nn

    kwargs = {**task.policy_kwargs, "activation_fn": nn.Tanh}
    with environments(task, 1) as envs:
        model = PPO("MlpPolicy", envs[0], policy_kwargs=kwargs, seed=seed, device="cpu")
    policy: Any = model.policy
    targets = [*policy.mlp_extractor.policy_net[::2], policy.action_net]
    with torch.no_grad():
        for target, (weight, bias) in zip(targets, layers, strict=True):
            target.weight.copy_(torch.tensor(weight))
            target.bias.copy_(torch.tensor(bias))
        policy.log_std.copy_(torch.tensor(log_std))
        policy.value_net.weight.zero_()
        policy.value_net.bias.zero_()
    write_checkpoint(model, path)


def evaluate(
    task: Task, policy: SB3Policy, first_seed: int, n: int, *, n_envs: int = 20
) -> dict[str, Any]:
    """Score ``policy`` in ``n`` episodes with the reset seeds from ``first_seed`` on.

    Returns:
        ``return_mean``, ``return_std``, ``return_min`` and ``success``, the share of episodes with
        ``info["success"]`` at some step.
    """
    returns, successes = np.zeros(n), np.zeros(n, bool)
    with environments(task, min(n_envs, n)) as envs:
        policy.bind(envs)
        for first in range(0, n, len(envs)):
            rows = range(min(len(envs), n - first))
            current = [envs[i].reset(seed=first_seed + first + i)[0] for i in rows]
            for i in rows:
                policy.start(i, first + i, np.random.default_rng(first_seed + first + i))
            for _ in range(HORIZON):
                actions = policy.act(current, rows)
                for i in rows:
                    current[i], reward, _, _, info = envs[i].step(actions[i])
                    returns[first + i] += reward
                    successes[first + i] |= bool(info["success"])
    return {
        "return_mean": round(float(returns.mean()), 2),
        "return_std": round(float(returns.std()), 2),
        "return_min": round(float(returns.min()), 2),
        "success": float(successes.mean()),
    }


def provenance(task: Task, teacher: Path, checkpoint: Path, seed: int) -> dict[str, Any]:
    """What the file beside the checkpoint says, the scores measured now."""
    policy = SB3Policy(
        algorithm="ppo",
        checkpoint=checkpoint,
        policy_kwargs=task.policy_kwargs,
        deterministic=task.deterministic,
    )
    scores = {
        f"{first}..{first + N_UNSEEN - 1}": evaluate(task, policy, first, N_UNSEEN)
        for first in UNSEEN_SEEDS
    }
    return {
        "checkpoint": checkpoint.name,
        "sha256": _sha256(checkpoint),
        "algorithm": "ppo",
        "policy_class": "MlpPolicy",
        "policy_kwargs": task.policy_kwargs,
        **({} if task.deterministic else {"deterministic": False}),
        "environment": task.env_id,
        "max_episode_steps": HORIZON,
        "teacher": {
            "file": teacher.name,
            "sha256": _sha256(teacher),
            "origin": f"dapg/policies/{task.name}-v0.pickle, re-saved as plain arrays",
            "repository": "https://github.com/aravindr93/hand_dapg",
            "commit": "9a1de23df6574e1b94e1da742e3326eb1f61c013",
            "license": "Apache-2.0",
            "reference": "Rajeswaran et al. 2018, arXiv:1709.10087",
        },
        "method": (
            f"DAgger on the teacher's mean action: {EPISODES} episodes driven by the teacher, "
            f"{ROUNDS} rounds of {EPISODES} driven by the student; trained, no weight is copied"
        ),
        "script": Path(__file__).name,
        "seed": seed,
        "training_reset_seeds": [
            FIRST_TRAINING_SEED,
            FIRST_TRAINING_SEED + (ROUNDS + 1) * EPISODES - 1,
        ],
        "scores_by_reset_seeds": scores,
        "versions": {n: importlib.metadata.version(n).partition("+")[0] for n in PACKAGES},
    }


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("task", choices=TASKS, help="task of the hand")
    parser.add_argument("teacher", type=Path, help=".npz of the teacher's arrays")
    parser.add_argument(
        "--out",
        type=Path,
        help="checkpoint to write, by default the shipped one; the provenance goes beside it",
    )
    parser.add_argument("--seed", type=int, default=0, help="of weights and batches")
    args = parser.parse_args(arguments)
    task = TASKS[args.task]
    out = args.out or SHIPPED / f"{task.name}_expert.zip"
    with one_torch_thread():
        layers, log_std = distil(task, Teacher.load(args.teacher), args.seed)
        write_student(task, layers, log_std, args.seed, out)
    record = provenance(task, args.teacher, out, args.seed)
    text = json.dumps(record, indent=2, sort_keys=False) + "\n"
    out.with_suffix(".json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
