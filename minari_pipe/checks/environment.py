"""The environment: what the metadata say it is can be made, and has the recorded spaces."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from minari_pipe import environments
from minari_pipe.checks.base import Check, Finding, Subject, shown
from minari_pipe.errors import TrustError
from minari_pipe.spaces import serialize_space


class Environment(Check):
    """``env_spec`` and ``eval_env_spec`` make environments with the spaces of the metadata.

    A spec that names untrusted code is not used; that is a finding which says how to trust it.
    What is wrong with both in the same way, such as a space that the metadata have wrong, is one
    finding.
    """

    name = "environment"

    def begin(self) -> Iterator[Finding]:
        keys: dict[str, list[str]] = {}
        for key in ("env_spec", "eval_env_spec"):
            spec = self.subject.metadata.get(key)
            if spec is None or not _is_json(spec):  # the check of the metadata reports it
                continue
            fault = spec_fault(self.subject, spec)
            if fault:
                keys.setdefault(fault, []).append(key)
        for fault, (key, *others) in keys.items():
            likewise = f" ({others[0]} likewise)" if others else ""
            yield self.error(f"metadata / {key}", fault + likewise)


def _is_json(spec: Any) -> bool:
    try:
        json.loads(spec)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def recover(subject: Subject, spec: str) -> gym.Env:
    """The environment of a spec, under the trust that ``subject.options`` carries.

    One that was recorded in a window is made without it: a validation runs anywhere.
    """
    recorded = json.loads(spec).get("kwargs") or {}
    windowless = {"render_mode": None} if recorded.get("render_mode") == "human" else {}
    return environments.recover(spec, trusted_modules=subject.options.trusted_modules, **windowless)


def spec_fault(subject: Subject, spec: Any) -> str | None:
    """Why the environment of ``spec`` cannot stand for the one that made the data, or ``None``."""
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
        return f"is not trusted, so was not made: {exc}"
    except Exception as exc:  # whatever a stranger's environment raises
        return f"no environment can be made of it: {type(exc).__name__}: {shown(exc, 300)}"
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
        if recorded is None:  # the check of the metadata reports it
            continue
        made = getattr(env, name)
        # Compared in the form that is stored, which is all that the standard keeps of a space.
        try:
            same = _stored(made) == _stored(recorded)
        except Exception:  # a space that cannot be written is not the one that was recorded
            same = False
        if not same:
            theirs, ours = shown(made, 100), shown(recorded, 100)
            yield f"{name}: the dataset has {ours}, the environment {theirs}"


def _stored(space: gym.Space) -> Mapping[str, Any]:
    return json.loads(str(serialize_space(space)), object_hook=_comparable)


def _comparable(form: dict[str, Any]) -> dict[str, Any]:
    """The JSON form of a space without what differs between releases and means the same."""
    if form.get("type") == "Discrete":  # Minari writes int64, whatever the dtype is
        form.pop("dtype", None)
    if form.get("type") == "Box" and np.dtype(form["dtype"]).kind == "f":
        # Gymnasium's classic environments had the largest float where they now have infinity.
        largest = np.finfo(form["dtype"]).max
        for bound in ("low", "high"):
            values = np.asarray(form[bound], dtype=np.float64)
            unbounded = np.abs(values) >= largest
            form[bound] = np.where(unbounded, np.copysign(np.inf, values), values).tolist()
    return form
