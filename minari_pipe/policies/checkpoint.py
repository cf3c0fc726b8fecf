"""Read and write Stable-Baselines3 checkpoints; reading runs no code from the file.

A checkpoint is a zip::

    policy.zip
    ├─ data                         JSON; non-plain values as base64 pickles, which are never read
    ├─ policy.pth                   the weights: the policy's state_dict, written by torch.save
    ├─ <optimizer>.pth              state of each optimizer; read by SB3 only
    ├─ pytorch_variables.pth        read by SB3 only
    └─ _stable_baselines3_version

The bytes written here depend on the model alone: they hold no times, paths, random states or facts
about the host, and entries are in alphabetical order. Unlike ``model.save``, this drops the last
observation, statistics of recent episodes, ``system_info.txt`` and the spaces' generator states.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import math
import os
import pickle
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import gymnasium as gym
from gymnasium import spaces

from minari_pipe.core.trust import is_trusted_sha256
from minari_pipe.errors import ConfigError, TrustError
from minari_pipe.policies import checkpoint_claims as claims
from minari_pipe.policies.algorithms import (
    build_policy,
    load_algorithm,
    network_observation_space,
    plain_settings,
    short_text,
)
from minari_pipe.policies.archive import read_entry, read_file, write_zip
from minari_pipe.policies.demonstration_formats.plain_pickle import (
    Allowance,
    Machine,
    RefusedError,
    StandIn,
    interpret,
)

if TYPE_CHECKING:
    import torch
    from stable_baselines3.common.base_class import BaseAlgorithm
    from stable_baselines3.common.policies import BasePolicy

_PICKLE_PROTOCOL = 4
_MOST_DIMENSIONS = 32

#: Attributes that reveal when and where a training ran or what it saw last, with neutral values.
_VOLATILE = {
    "start_time": 0.0,
    "tensorboard_log": None,
    "ep_info_buffer": None,
    "ep_success_buffer": None,
    "_last_obs": None,
    "_last_episode_starts": None,
    "_last_original_obs": None,
}


def load_weights(path: str | os.PathLike[str]) -> dict[str, torch.Tensor]:
    """Return the weights of a checkpoint by parameter name, without reading anything else.

    Args:
        path: a zip written by Stable-Baselines3's ``model.save`` or by :func:`write_checkpoint`.

    Returns:
        Dense tensors on the CPU with finite values.

    Raises:
        ConfigError: the file is missing, damaged, or not such a zip, it would fill the memory, or
            its weights are anything but finite tensors.
    """
    inner = read_entry(path, "policy.pth")
    try:
        weights = _Weights(_records(inner)).read()
    except RefusedError as exc:
        raise ConfigError(
            f"checkpoint {path}: its policy.pth holds more than tensors and was not loaded ({exc})"
        ) from exc
    except zipfile.BadZipFile as exc:
        raise ConfigError(
            f"checkpoint {path}: its policy.pth is not an archive of PyTorch 1.6 or later "
            f"({short_text(exc)}); load it with the library that wrote it and save it again"
        ) from exc
    except Exception as exc:  # the zip, pickle and number parsers may raise anything
        raise ConfigError(
            f"checkpoint {path}: its policy.pth is damaged ({short_text(exc)})"
        ) from exc
    if not isinstance(weights, dict) or not weights:
        raise ConfigError(f"checkpoint {path}: its policy.pth is not a mapping of weights")
    for name, value in weights.items():
        _check_tensor(path, name, value)
    return dict(weights)


@dataclass(frozen=True)
class _Values:
    """A pickle's reference to the values of a tensor."""

    dtype: str
    key: str
    count: int


class _Weights(Machine):
    """Rebuilds a ``state_dict`` that ``torch.save`` wrote, and rejects everything else.

    A crafted file can make PyTorch's own reader of weights crash or take all memory.

    Args:
        records: records of the archive, by name.
    """

    hint = "only a mapping of plain tensors can be read"
    storages: ClassVar[dict[str, str]] = {
        "torch FloatStorage": "float32",
        "torch DoubleStorage": "float64",
        "torch HalfStorage": "float16",
        "torch BFloat16Storage": "bfloat16",
        "torch LongStorage": "int64",
        "torch IntStorage": "int32",
        "torch ShortStorage": "int16",
        "torch CharStorage": "int8",
        "torch ByteStorage": "uint8",
        "torch BoolStorage": "bool",
    }
    globals: ClassVar[Mapping[str, str]] = storages | {
        "collections OrderedDict": "dict",
        "torch._utils _rebuild_tensor_v2": "tensor",
        "torch._utils _rebuild_parameter": "parameter",
    }

    def __init__(self, records: Mapping[str, bytes]) -> None:
        # Parameters may share their values, as those of feature extractors do.
        super().__init__(Allowance(8 * sum(map(len, records.values()))))
        pickles = [name for name in records if name.endswith("/data.pkl")]
        if len(pickles) != 1:
            raise zipfile.BadZipFile("it has no data.pkl, or more than one")
        self._program = records[pickles[0]]
        self._folder = pickles[0].removesuffix("data.pkl")
        self._records = records
        self._flat: dict[_Values, torch.Tensor] = {}
        if records.get(f"{self._folder}byteorder", b"little") != b"little":
            raise RefusedError("its numbers are not little-endian")

    def read(self) -> Any:
        """Return the object that the pickle describes.

        Raises:
            RefusedError: the pickle holds or calls something other than weights.
            ValueError, LookupError: the pickle is damaged.
        """
        return interpret(self._program, self)

    def step(self, name: str, argument: Any) -> None:
        if name != "BINPERSID":
            super().step(name, argument)
            return
        match self.pop():
            case ("storage", StandIn(dtype), str(key), str(), int(count)) if (
                dtype in self.storages.values()
            ):
                self.stack.append(_Values(dtype, key, count))
            case _:
                raise RefusedError(f"refers to something other than tensor values; {self.hint}")

    def call(self) -> None:
        arguments, callee = self.pop(), self.pop()
        if not isinstance(callee, StandIn) or not isinstance(arguments, tuple):
            raise RefusedError(f"makes an invalid call; {self.hint}")
        match callee.kind, arguments:
            case "dict", ():
                self.stack.append({})
            case "tensor", (_Values() as values, int(offset), tuple(size), tuple(stride), *_):
                self.stack.append(self._tensor(values, offset, size, stride))
            case "parameter", (value, *_):
                self.stack.append(value)
            case _:
                raise RefusedError(f"calls {callee.kind} with unexpected arguments; {self.hint}")

    def build(self) -> None:
        self.pop()  # attributes of the mapping, which hold versions of modules
        self.top(dict)

    def _tensor(
        self, values: _Values, offset: int, size: tuple[Any, ...], stride: tuple[Any, ...]
    ) -> torch.Tensor:
        import torch

        dtype = getattr(torch, values.dtype)
        record = self._records[f"{self._folder}data/{values.key}"]
        if len(record) != values.count * dtype.itemsize:
            raise ValueError(f"{len(record)} bytes for {values.count} values of {values.dtype}")
        if len(size) != len(stride) or len(size) > _MOST_DIMENSIONS:
            raise ValueError(f"a tensor with {len(size)} dimensions and {len(stride)} strides")
        if not all(type(n) is int and 0 <= n < 2**63 for n in (offset, *size, *stride)):
            raise ValueError("a tensor with an invalid offset, size or stride")
        n_values = math.prod(size)
        self.allowance.left -= n_values * dtype.itemsize
        if self.allowance.left < 0:
            raise RefusedError("reuses its values; together the tensors are larger than the file")
        if not n_values:
            return torch.empty(size, dtype=dtype)
        steps = zip(size, stride, strict=True)
        if offset + sum((n - 1) * step for n, step in steps) >= values.count:
            raise ValueError("a tensor that extends past the end of its values")
        if values not in self._flat:
            self._flat[values] = torch.frombuffer(bytearray(record), dtype=dtype)
        return torch.as_strided(self._flat[values], size, stride, offset).clone()


def _records(inner: bytes) -> dict[str, bytes]:
    """Return the records of a PyTorch archive by name.

    Raises:
        zipfile.BadZipFile: it is not a zip.
        RefusedError: its records are compressed or overlap, so they could outgrow the file.
        ValueError: it is damaged.
    """
    with zipfile.ZipFile(io.BytesIO(inner)) as archive:
        entries = archive.infolist()
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
            raise RefusedError("its records are compressed")  # PyTorch never compresses
        if sum(entry.file_size for entry in entries) > len(inner):
            raise RefusedError("its records overlap")
        try:
            return {entry.filename: archive.read(entry) for entry in entries}
        except zipfile.BadZipFile as exc:
            raise ValueError(str(exc)) from exc


def _check_tensor(path: Any, name: str, value: Any) -> None:
    import torch

    if not isinstance(value, torch.Tensor):
        raise ConfigError(f"checkpoint {path}: entry {name!r} of policy.pth is not a tensor")
    if not torch.isfinite(value).all():
        raise ConfigError(
            f"checkpoint {path}: parameter {name!r} holds NaN or infinity; the training diverged"
        )


def load_policy(
    path: str | os.PathLike[str],
    *,
    algorithm: str,
    policy_class: str = "MlpPolicy",
    policy_kwargs: Mapping[str, Any] | None = None,
    observation_space: gym.Space,
    action_space: gym.Space,
    weights: Mapping[str, torch.Tensor] | None = None,
) -> BasePolicy:
    """Build the policy that a config describes and load a checkpoint's weights into it.

    Args:
        path: the checkpoint.
        algorithm: a name of ``ALGORITHMS``.
        policy_class: ``MlpPolicy``, ``CnnPolicy`` or ``MultiInputPolicy``.
        policy_kwargs: plain values; those in the file's own plain JSON may be left out.
        observation_space: observation space of the environment.
        action_space: action space of the environment.
        weights: result of :func:`load_weights` for ``path``, to read the file only once.

    Raises:
        ConfigError: as for :func:`load_weights` and :func:`build_policy`, or the weights belong to
            another policy or other spaces; the message names the first parameter that differs.
    """
    import torch

    weights = load_weights(path) if weights is None else weights
    recorded = claims.describe(path)
    claimed = claims.plain_settings(recorded, [tuple(value.shape) for value in weights.values()])
    known = plain_settings(algorithm, policy_class)
    used = {k: v for k, v in claimed.items() if k in known} | dict(policy_kwargs or {})
    policy = build_policy(algorithm, policy_class, used, observation_space, action_space)
    difference = _first_difference(weights, policy.state_dict())
    other = claims.other_spaces(
        recorded, observation_space, action_space, weights_fit=difference is None
    )
    if other:
        raise ConfigError(f"checkpoint {path} was made for other spaces: {other}")
    if difference:
        raise ConfigError(
            f"checkpoint {path} does not fit the config: {difference}. Set policy_class and "
            f"policy_kwargs to those it was trained with{claims.kwargs_hint(recorded)}"
        )
    other = claims.other_setting(recorded, policy, used)
    if other:
        raise ConfigError(f"checkpoint {path}: {other}")
    with torch.no_grad():
        policy.load_state_dict(dict(weights), strict=True)
    return policy


def _first_difference(weights: Mapping[str, Any], implied: Mapping[str, Any]) -> str | None:
    for name, value in implied.items():
        shape = tuple(value.shape)
        if name not in weights:
            return f"it has no parameter {name!r} of shape {shape}, which the config implies"
        if tuple(weights[name].shape) != shape:
            return (
                f"parameter {name!r} has shape {tuple(weights[name].shape)} in the file, "
                f"the config implies {shape}"
            )
        if weights[name].is_floating_point() != value.is_floating_point():
            return f"parameter {name!r} is {weights[name].dtype}, the config implies {value.dtype}"
    for name in weights:
        if name not in implied:
            return (
                f"it has a parameter {name!r} of shape {tuple(weights[name].shape)}, which the "
                f"config does not imply"
            )
    return None


def trusted_load(
    path: str | os.PathLike[str],
    algorithm: str,
    *,
    observation_space: gym.Space | None = None,
    action_space: gym.Space | None = None,
) -> BasePolicy:
    """Return the policy of a checkpoint that the user trusts, unpickled in full by SB3.

    Args:
        path: the checkpoint.
        algorithm: a name of ``ALGORITHMS``.
        observation_space: the environment's, compared with the checkpoint's if both are given.
        action_space: the environment's, compared with the checkpoint's if both are given.

    Raises:
        TrustError: the user does not trust the file's sha256.
        ConfigError: the file is missing, cannot be loaded, or was made for other spaces.
    """
    content = read_file(path)
    sha256 = hashlib.sha256(content).hexdigest()
    if not is_trusted_sha256(sha256):
        raise TrustError(
            f"checkpoint {path}: loading the whole file would run the code in it. If you trust its "
            f"source, pass --trust {sha256}. Or set policy_class and policy_kwargs in the config: "
            f"then only the weights are read, and no trust is needed"
        )
    try:
        model = load_algorithm(algorithm).load(io.BytesIO(content), device="cpu")
    except Exception as exc:  # unpickling may raise anything
        raise ConfigError(
            f"checkpoint {path} cannot be loaded as {algorithm} ({short_text(exc)})"
        ) from exc
    policy = model.policy
    if observation_space is not None and action_space is not None:
        wanted = network_observation_space(observation_space), action_space
        if (policy.observation_space, policy.action_space) != wanted:
            raise ConfigError(
                f"checkpoint {path} was made for other spaces: {policy.observation_space} and "
                f"{policy.action_space}, the environment has {wanted[0]} and {wanted[1]}"
            )
    policy.set_training_mode(False)
    return policy


def write_checkpoint(model: BaseAlgorithm, path: str | os.PathLike[str]) -> None:
    """Write ``model`` for ``type(model).load(path)``; equal models give equal bytes.

    Raises:
        ConfigError: the model has an attribute that cannot be pickled, or an unsupported space.
    """
    import stable_baselines3
    import torch

    states, variables = model._get_torch_save_params()
    excluded = {*model._excluded_save_params(), *(n.split(".")[0] for n in (*states, *variables))}
    data = {k: v for k, v in vars(model).items() if k not in excluded} | _VOLATILE
    saved = {f"{name}.pth": state for name, state in model.get_parameters().items()}
    saved["pytorch_variables.pth"] = {name: getattr(model, name) for name in variables}
    entries = {
        "data": json.dumps({k: _entry(k, data[k]) for k in sorted(data)}, indent=1).encode(),
        "_stable_baselines3_version": stable_baselines3.__version__.encode(),
    }
    for name, value in saved.items():
        buffer = io.BytesIO()
        torch.save(value, buffer)
        entries[name] = buffer.getvalue()
    write_zip(path, entries)


def _entry(name: str, value: Any) -> Any:
    """Return an attribute in the form of SB3's ``data``: JSON, or a pickle with texts beside it."""
    if isinstance(value, gym.Space):
        value = _plain_space(value)
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        pass
    else:
        return value
    try:
        pickled = pickle.dumps(value, protocol=_PICKLE_PROTOCOL)
    except (AttributeError, TypeError, pickle.PicklingError) as exc:
        raise ConfigError(
            f"the model's attribute {name!r} cannot be written to a checkpoint ({short_text(exc)})"
        ) from exc
    beside: dict[str, Any] = {}
    if isinstance(value, gym.Space):
        beside = claims.texts(vars(value))
    elif isinstance(value, dict):
        beside = claims.texts(value)
    return {
        ":type:": str(type(value)),
        ":serialized:": base64.b64encode(pickled).decode(),
        **beside,
    }


def _plain_space(space: gym.Space) -> gym.Space:
    """Return an equal space without generator state, cached texts or a user's subclass."""
    if isinstance(space, spaces.Box):
        return spaces.Box(space.low.copy(), space.high.copy(), space.shape, space.dtype)
    if isinstance(space, spaces.Discrete):
        return spaces.Discrete(int(space.n), start=int(space.start))
    if isinstance(space, spaces.MultiDiscrete):
        return spaces.MultiDiscrete(space.nvec.copy(), dtype=space.dtype, start=space.start.copy())
    if isinstance(space, spaces.MultiBinary):
        return spaces.MultiBinary(space.n)
    if isinstance(space, spaces.Dict):
        return spaces.Dict([(key, _plain_space(sub)) for key, sub in space.spaces.items()])
    raise ConfigError(f"space {space} cannot be written to a checkpoint")
