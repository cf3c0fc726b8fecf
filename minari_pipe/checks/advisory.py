"""Warn of environments with published faults, from a table of ids and package versions."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from packaging.requirements import InvalidRequirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion

from minari_pipe.checks.base import Check, Finding, Subject
from minari_pipe.core.env_specs import environment_id
from minari_pipe.core.requirements import parse


@dataclass(frozen=True)
class Advisory:
    """A known fault of an environment in some versions of a package."""

    id: str
    """Named in ``validate.acknowledge`` to accept the warning."""
    environments: str
    """Regular expression for the whole environment id, namespace included."""
    package: str
    versions: str
    """Version specifier of the affected releases."""
    text: str
    link: str


_REWARD_SIGN = (
    "it rewards the distance between palm and {target}, while D4RL and gymnasium-robotics 1.2.0 "
    "penalize it, so returns and reference scores are not comparable with theirs. Say so in the "
    "description, or use gymnasium-robotics 1.2.0, or version 2 of the environment"
)
_PULL_220 = "https://github.com/Farama-Foundation/Gymnasium-Robotics/pull/220"
_ENUMS = (
    "cannot be made: gymnasium-robotics compares MuJoCo's joint types with NumPy integers, which "
    "are no longer equal since mujoco 3.12.0. Use mujoco<3.12"
)
_UTILS = "https://github.com/Farama-Foundation/Gymnasium-Robotics"

ADVISORIES = (
    *(
        Advisory(
            f"adroit-{name.lower()}-reward-sign",
            f"AdroitHand{name}-v1",
            "gymnasium-robotics",
            ">=1.2.1,<1.4.3",
            _REWARD_SIGN.format(target=target),
            _PULL_220,
        )
        for name, target in (("Door", "handle"), ("Hammer", "hammer"), ("Relocate", "ball"))
    ),
    Advisory("kitchen-mujoco-enums", r"FrankaKitchen-v1", "mujoco", ">=3.12", _ENUMS, _UTILS),
    Advisory("fetch-mujoco-enums", r"Fetch\w+-v\d+", "mujoco", ">=3.12", _ENUMS, _UTILS),
)


class Advisories(Check):
    """Warns if a published fault of an environment affects the data.

    The versions are those that the dataset's ``requirements`` pin, else the installed ones. An
    advisory that the options acknowledge is listed separately.
    """

    name = "advisory"

    def begin(self) -> Iterator[Finding]:
        reported = set()
        for key in ("env_spec", "eval_env_spec"):
            env_id = spec_id(self.subject.metadata.get(key))
            if env_id is None:
                continue
            for advisory in ADVISORIES:
                if advisory.id in reported or not re.fullmatch(advisory.environments, env_id):
                    continue
                version = package_version(self.subject, advisory.package)
                if version is None or not _affects(advisory, version):
                    continue
                reported.add(advisory.id)
                yield Finding(
                    "warning",
                    self.name,
                    f"metadata / {key}",
                    f"{advisory.id}: {env_id} with {advisory.package} {version}: "
                    f"{advisory.text}. {advisory.link}. To accept it: "
                    f"validate.acknowledge=[{advisory.id}]",
                    id=advisory.id,
                )


def spec_id(spec: Any) -> str | None:
    """Return the environment id of an ``EnvSpec`` JSON without its module, or ``None``."""
    env_id = environment_id(spec)
    return None if env_id is None else env_id.rpartition(":")[2]


def pinned_versions(requirements: Any) -> dict[str, str]:
    """Return the versions that ``name==version`` requirements pin, by canonical name.

    Requirements that pin no version and invalid ones are left out.
    """
    pins: dict[str, str] = {}
    for text in requirements if isinstance(requirements, list) else []:
        try:
            requirement = parse(text)
        except (InvalidRequirement, TypeError):
            continue
        specifiers = list(requirement.specifier)
        exact = [s for s in specifiers if s.operator == "==" and not s.version.endswith(".*")]
        if len(specifiers) == 1 and exact:
            pins[canonicalize_name(requirement.name)] = specifiers[0].version
    return pins


def package_version(subject: Subject, package: str) -> str | None:
    """Return the package version that probably made the dataset: pinned, else installed."""
    pinned = pinned_versions(subject.metadata.get("requirements")).get(canonicalize_name(package))
    return pinned or installed_version(package)


def installed_version(package: str) -> str | None:
    """Return the installed version of a distribution, or ``None`` if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _affects(advisory: Advisory, version: str) -> bool:
    try:
        return SpecifierSet(advisory.versions).contains(version, prereleases=True)
    except InvalidVersion:
        return False
