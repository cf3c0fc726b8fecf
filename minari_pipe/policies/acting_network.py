"""Extract the acting part of a Stable-Baselines3 policy: its network and its action head.

It does what ``policy.predict`` does, without the value networks and without PyTorch's distribution
objects, which take longer to create than a small network takes to run. For SB3's own classes the
layers are applied one by one; other classes, from a trusted checkpoint, are called as a whole.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from minari_pipe.policies.action_heads import (
    ActionHead,
    ActionNoise,
    BernoulliHead,
    CategoricalHead,
    ContinuousHead,
    GreedyHead,
    MatrixNoise,
    NormalNoise,
)
from minari_pipe.policies.action_masks import part_sizes
from minari_pipe.policies.algorithms import Algorithm

if TYPE_CHECKING:
    import torch

Tensors = tuple["torch.Tensor", ...]


def make_forward(algorithm: Algorithm, policy: Any, *, sampled: bool) -> Callable[..., Tensors]:
    """Return the network as a function of a batch of observations (and of its LSTM's states).

    Returns:
        A function from observations to the input of :func:`make_head`: means, logits or values,
        and, if the noise depends on the state, its log standard deviation or the gSDE features. A
        recurrent policy's function also takes hidden and cell states, both of shape
        ``(B, layers, size)``, and also returns the next two.
    """
    from stable_baselines3.common.torch_layers import MlpExtractor

    if algorithm.head == "squashed":
        return _squashed(policy.actor, sampled=sampled)
    if algorithm.head == "action":
        return _one_output(policy.actor, "mu")
    if algorithm.head == "values":
        return _one_output(policy.q_net, "q_net")
    features, extractor = _features(policy, policy.pi_features_extractor), policy.mlp_extractor
    is_own = type(extractor) is MlpExtractor
    hidden_layers = _plain(extractor.policy_net) if is_own else extractor.forward_actor
    last_layer = _plain(policy.action_net)
    with_latent = sampled and bool(getattr(policy, "use_sde", False))

    def outputs(features: torch.Tensor) -> Tensors:
        latent = hidden_layers(features)
        mean = last_layer(latent)
        return (mean, latent) if with_latent else (mean,)

    def distribution(observations: Any) -> Tensors:
        return outputs(features(observations))

    def recurrent(observations: Any, hidden: torch.Tensor, cell: torch.Tensor) -> Tensors:
        # sb3-contrib processes a sequence differently if an episode starts in any row. Here every
        # call is one step for all rows, and the state of a starting row is zero.
        before = hidden.transpose(0, 1).contiguous(), cell.transpose(0, 1).contiguous()
        out, after = policy.lstm_actor(features(observations).unsqueeze(0), before)
        return (*outputs(out.squeeze(0)), *(state.transpose(0, 1) for state in after))

    return recurrent if algorithm.recurrent else distribution


def _squashed(actor: Any, *, sampled: bool) -> Callable[..., Tensors]:
    from stable_baselines3.sac.policies import LOG_STD_MAX, LOG_STD_MIN, Actor

    def of_another_class(observations: Any) -> Tensors:
        mean, log_std, more = actor.get_action_dist_params(observations)
        return (mean, more.get("latent_sde", log_std)) if sampled else (mean,)

    if type(actor) is not Actor:
        return of_another_class
    features = _features(actor, actor.features_extractor)
    hidden_layers, mean = _plain(actor.latent_pi), _plain(actor.mu)
    log_std = None if actor.use_sde else _plain(actor.log_std)

    def squashed(observations: Any) -> Tensors:
        latent = hidden_layers(features(observations))
        if not sampled:
            return (mean(latent),)
        if log_std is None:
            return mean(latent), latent
        return mean(latent), log_std(latent).clamp(LOG_STD_MIN, LOG_STD_MAX)

    return squashed


def _one_output(network: Any, layers: str) -> Callable[..., Tensors]:
    from stable_baselines3.dqn.policies import QNetwork
    from stable_baselines3.td3.policies import Actor

    if type(network) not in (QNetwork, Actor):
        return lambda observations: (network(observations),)
    features = _features(network, network.features_extractor)
    last = _plain(getattr(network, layers))
    return lambda observations: (last(features(observations)),)


def _features(network: Any, extractor: Any) -> Callable[[Any], torch.Tensor]:
    """Return the function that prepares observations for the layers of ``network``."""
    from stable_baselines3.common.policies import BasePolicy
    from stable_baselines3.common.preprocessing import is_image_space
    from stable_baselines3.common.torch_layers import FlattenExtractor

    space = network.observation_space
    vector = type(space) is spaces.Box and not is_image_space(space)
    if vector and type(extractor) is FlattenExtractor:
        return lambda observations: observations.float().flatten(1)
    return lambda observations: BasePolicy.extract_features(network, observations, extractor)


def _plain(module: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return ``module`` as a plain function: calling a module costs more than a small layer."""
    from torch import nn

    if type(module) is nn.Linear:
        return partial(nn.functional.linear, weight=module.weight, bias=module.bias)
    if type(module) is not nn.Sequential:
        return module.forward
    layers = [_plain(layer) for layer in module]

    def sequence(features: torch.Tensor) -> torch.Tensor:
        for layer in layers:
            features = layer(features)
        return features

    return sequence


def make_head(
    algorithm: Algorithm,
    policy: Any,
    space: gym.Space,
    n_rows: int,
    *,
    deterministic: bool,
) -> ActionHead:
    """Return the head that makes actions of ``space`` from the outputs of :func:`make_forward`."""
    if isinstance(space, spaces.Box):
        squashed = algorithm.head == "squashed" or bool(policy.squash_output)
        tanh = squashed and algorithm.head != "action"
        noise: ActionNoise | None = None
        if algorithm.samples and not deterministic:
            noise = _policy_noise(algorithm, policy, space, n_rows)
        return ContinuousHead(space, noise=noise, tanh=tanh, scaled=squashed)
    if isinstance(space, spaces.MultiBinary) and not algorithm.masked:
        return BernoulliHead(space, n_rows, deterministic=deterministic)
    if algorithm.head == "values":
        assert isinstance(space, spaces.Discrete)
        return GreedyHead(space)
    assert isinstance(space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary)
    return CategoricalHead(space, n_rows, part_sizes(space), deterministic=deterministic)


def _policy_noise(algorithm: Algorithm, policy: Any, space: spaces.Box, n_rows: int) -> ActionNoise:
    """Return the noise that the policy learned."""
    acting = policy.actor if algorithm.head == "squashed" else policy
    if acting.use_sde:
        std = acting.action_dist.get_std(acting.log_std).detach().numpy()
        return MatrixNoise(n_rows, std)
    size = int(np.prod(space.shape))
    if algorithm.head == "squashed":
        return NormalNoise(n_rows, size)
    log_std = policy.log_std.detach().numpy()
    return NormalNoise(n_rows, size, np.exp(log_std, dtype=np.float64))
