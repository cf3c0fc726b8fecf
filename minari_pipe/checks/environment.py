"""Check that the environment in the metadata can be made and has the recorded spaces."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import gymnasium as gym
import numpy as np

from minari_pipe.checks.base import Check, Episode, Finding, Subject, shown
from minari_pipe.checks.stepwise import states_of
from minari_pipe.core import environments
from minari_pipe.core.env_specs import parse_spec
from minari_pipe.core.json_object import json_object
from minari_pipe.core.spaces import serialize_space
from minari_pipe.errors import ConfigError, TrustError
from minari_pipe.recording.recorded_view import RecordedObservation, RecordedView

LIMIT = "max_episode_steps"


class Environment(Check):
    """Checks that ``env_spec`` and ``eval_env_spec`` make environments with the right spaces.

    A spec that names untrusted code is not used; the finding says how to trust it. A fault that
    both specs share, such as a wrong space in the metadata, is one finding.
    """

    name = "environment"
    warnings = ("other-evaluation-environment",)

    def begin(self) -> Iterator[Finding]:
        keys: dict[str, list[str]] = {}
        for key in ("env_spec", "eval_env_spec"):
            spec = self.subject.metadata.get(key)
            if spec is None or not _is_json(spec):  # the metadata check reports it
                continue
            fault = spec_fault(self.subject, spec)
            if fault:
                keys.setdefault(fault, []).append(key)
        for fault, (key, *others) in keys.items():
            likewise = f" (also {others[0]})" if others else ""
            yield self.error(f"metadata / {key}", fault + likewise)
        if not keys and (differences := _other_physics(self.subject)):
            yield self.warning(
                "metadata / eval_env_spec",
                f"the reference scores are from another environment than the data: {differences}",
                "other-evaluation-environment",
            )


def _other_physics(subject: Subject) -> str | None:
    """Return how the evaluation environment differs, or ``None``.

    An environment as registered under its id does not count, because the id shows that choice.
    Nor does a time limit where the data have another than the registered one, or the ids differ.
    """
    made, evaluated = (_physics(subject.metadata.get(k)) for k in ("env_spec", "eval_env_spec"))
    if made is None or evaluated is None:
        return None
    registered: dict[str, Any] = {"kwargs": None, "additional_wrappers": [], LIMIT: None}
    with suppress(Exception):  # looking up a third-party id may raise anything
        spec = environments.registered_spec(str(evaluated["id"]))
        registered["kwargs"] = json.loads(json.dumps(spec.kwargs))
        registered[LIMIT] = spec.max_episode_steps
    keys = ["kwargs", "additional_wrappers"]
    if made["id"] == evaluated["id"] and made[LIMIT] == registered[LIMIT] is not None:
        keys.append(LIMIT)
    different = [
        f"{key} is {shown(evaluated[key])}, not {shown(made[key])}"
        for key in keys
        if evaluated[key] not in (made[key], registered[key])
    ]
    return "; ".join(different) or None


def _physics(spec: Any) -> dict[str, Any] | None:
    """Return what an ``EnvSpec`` JSON says that changes returns, without ``render_mode``."""
    try:
        found = json_object(spec)
    except ValueError:
        return None
    kwargs = {k: v for k, v in (found.get("kwargs") or {}).items() if k != "render_mode"}
    wrappers = list(found.get("additional_wrappers") or [])
    kept = {key: found.get(key) for key in ("id", LIMIT)}
    return {**kept, "kwargs": kwargs, "additional_wrappers": wrappers}


def _is_json(spec: Any) -> bool:
    try:
        json.loads(spec)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def recover(subject: Subject, spec: str, *, render_mode: str | None = None) -> gym.Env:
    """Make the environment of a spec, trusting only the modules of ``subject.options``.

    Its observations are those that the dataset holds of them.
    No window is opened, even if the recording had one, so that validation runs without a display.
    """
    recorded = json.loads(spec).get("kwargs") or {}
    has_window = recorded.get("render_mode") == "human"
    windowless = {"render_mode": render_mode} if render_mode or has_window else {}
    trusted = subject.options.trusted_modules
    env = environments.recover(spec, trusted_modules=trusted, **windowless)
    made = subject.metadata.get("minari_pipe")
    values = made.get("record_observation") if isinstance(made, Mapping) else None
    if values is None:
        return env
    where = "metadata / minari_pipe / record_observation"
    recorded, space = RecordedObservation.of(values, where), subject.observation_space
    names = list(space.spaces) if isinstance(space, gym.spaces.Dict) else []
    if sorted(recorded.keys) != sorted(names):  # else a stranger's list might never end
        raise ConfigError(f"{where} names other keys than observation_space, {shown(names)}")
    return RecordedView(env, recorded, where)


def recorded_fault(
    subject: Subject, episode: Episode, options: Any = None
) -> tuple[str, str] | None:
    """Return why recorded values must not reach the environment, after their place, or ``None``.

    An environment may read a file that a text names, whether an option of ``reset``, an action or
    part of a state or of a goal.
    """
    spec, trusted = parse_spec(str(subject.environment)), subject.options.trusted_modules
    columns: dict[str, Any] = {}
    if not subject.options.is_own:
        columns = {"actions": episode.actions, "observations": episode.observations}
        columns["infos"] = states_of(episode)
    name = "options"
    try:
        environments.check_recorded(spec, name, _plain(options), trusted)
        for name, column in columns.items():
            environments.check_texts(spec, name, _plain(column), trusted)
    except TrustError as error:
        return episode.path(name), f"not replayed: {error}"
    return None


def _plain(value: Any) -> Any:
    """Return values without numbers, lists for arrays, texts for bytes, which are paths as well."""
    if isinstance(value, Mapping):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return None if value.dtype.kind in "biufcmM" else _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return os.fsdecode(value) if isinstance(value, bytes) else value


def spec_fault(subject: Subject, spec: Any) -> str | None:
    """Return why ``spec`` makes no environment with the recorded spaces, or ``None``."""
    known = subject.environment_faults
    if str(spec) not in known:
        known[str(spec)] = _spec_fault(subject, spec)
    return known[str(spec)]


def _spec_fault(subject: Subject, spec: Any) -> str | None:
    if not isinstance(spec, str):
        return f"is {type(spec).__name__}, expected a string of EnvSpec JSON"
    try:
        env = recover(subject, spec)
    except TrustError as exc:
        return f"is not trusted and was not made: {exc}"
    except Exception as exc:  # a third-party environment may raise anything
        return f"cannot be made into an environment: {type(exc).__name__}: {shown(exc, 300)}"
    try:
        differences = _differences(subject, env)
    finally:
        env.close()
    return "; ".join(differences) or None


def _differences(subject: Subject, env: gym.Env) -> Iterator[str]:
    recorded_spaces = {
        "observation_space": subject.observation_space,
        "action_space": subject.action_space,
    }
    for name, recorded in recorded_spaces.items():
        if recorded is None:  # the metadata check reports it
            continue
        made = getattr(env, name)
        # Compare the stored form, which is all that the standard keeps of a space.
        try:
            same = _stored(made) == _stored(recorded)
        except Exception:  # a space that cannot be serialized is not the recorded one
            same = False
        if not same:
            theirs, ours = shown(made, 100), shown(recorded, 100)
            yield f"{name}: the dataset has {ours}, the environment {theirs}"


def _stored(space: gym.Space) -> Mapping[str, Any]:
    return json.loads(str(serialize_space(space)), object_hook=_comparable)


def _comparable(form: dict[str, Any]) -> dict[str, Any]:
    """Remove differences between releases from a space's JSON form that do not matter."""
    if form.get("type") == "Discrete":  # Minari writes int64 for every dtype
        form.pop("dtype", None)
    if form.get("type") == "Box" and np.dtype(form["dtype"]).kind == "f":
        # Gymnasium's classic environments once used the largest float in place of infinity.
        largest = np.finfo(form["dtype"]).max
        for bound in ("low", "high"):
            values = np.asarray(form[bound], dtype=np.float64)
            unbounded = np.abs(values) >= largest
            form[bound] = np.where(unbounded, np.copysign(np.inf, values), values).tolist()
    return form
