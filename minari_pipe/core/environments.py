"""Make Gymnasium environments from names and stored specs, under the rules of :mod:`trust`."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import inspect
import io
import re
import sys
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import redirect_stderr, suppress
from dataclasses import dataclass, replace
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec, WrapperSpec, load_env_creator, registry

from minari_pipe.core.env_specs import entry_point_name, parse_spec, spec_json
from minari_pipe.core.plugins import entry_points
from minari_pipe.core.requirements import distributions_of
from minari_pipe.core.simulator_models import check_arguments
from minari_pipe.core.tree import named_dtype
from minari_pipe.core.trust import (
    check_files,
    how_to_trust,
    importing,
    is_trusted_module,
    resolve,
    split_target,
    texts,
)
from minari_pipe.environments import ADAPTERS
from minari_pipe.errors import (
    ConfigError,
    EnvironmentNotFoundError,
    MinariPipeError,
    MissingDependencyError,
    TrustError,
    did_you_mean,
)


@dataclass(frozen=True)
class EnvironmentPackage:
    """A package that registers environments when its module is imported."""

    pattern: str
    """Regular expression of the environment ids it registers."""
    module: str
    pip: str
    """Argument of ``pip install``."""
    distributions: tuple[str, ...]
    """Distributions whose version decides what the environments do."""
    prepare: Callable[[Any], object] | None = None
    """What to do with the imported module."""


# Gymnasium no longer loads plugins by itself, so an id alone does not say what to import. Other
# packages announce themselves with the entry-point group of ENTRY_POINTS.
PACKAGES = (
    EnvironmentPackage(
        r"(Adroit|Fetch|Hand(Reach|Manipulate)|FrankaKitchen|PointMaze_|AntMaze_|MaMuJoCo)",
        "gymnasium_robotics",
        "minari_pipe[robotics]",
        ("gymnasium-robotics", "mujoco"),
    ),
    EnvironmentPackage(r"(MiniGrid|BabyAI)-", "minigrid", "minari_pipe[minigrid]", ("minigrid",)),
    EnvironmentPackage(
        r"ALE/",
        "ale_py",
        "minari_pipe[atari]",
        ("ale-py",),
        # which prints its version for every environment
        lambda m: m.ALEInterface.setLoggerMode(m.LoggerMode.Error),
    ),
    EnvironmentPackage(
        r"MetaWorld/",
        ADAPTERS["MetaWorld/"],
        "minari_pipe[metaworld]",
        ("metaworld", "mujoco"),
    ),
    EnvironmentPackage(
        r"MinAtar/",
        "minatar.gym",
        "minari_pipe[minatar]",
        ("MinAtar",),
        lambda m: m.register_envs(),
    ),
)
ENTRY_POINTS = "minari_pipe.environments"

#: modules of Gymnasium whose environments need a simulator, each with its distributions (all of
#: them are needed) and the argument of ``pip install``
SIMULATORS = {
    "gymnasium.envs.mujoco": (("mujoco",), "gymnasium[mujoco]"),
    "gymnasium.envs.box2d": (("box2d",), "gymnasium[box2d]"),
    "gymnasium.envs.phys2d": (("jax",), "gymnasium[jax]"),
    "gymnasium.envs.tabular": (("jax",), "gymnasium[jax]"),
}

#: packages whose environments take no part of a text for a path, and complete none
_KNOWN = ("gymnasium", "gymnasium_robotics", "minigrid")

# Registered, but they import whatever OpenAI Gym environment their arguments name.
GYM_ADAPTERS = ("GymV21Environment-v0", "GymV26Environment-v0")

REFUSED_WRAPPERS = {
    "NormalizeObservation": "carries running statistics from one episode to the next, so an "
    "episode would depend on the episodes before it",
    "NormalizeReward": "carries running statistics from one episode to the next, so an "
    "episode would depend on the episodes before it",
    "RecordEpisodeStatistics": "writes wall-clock times into the infos, so no two runs would "
    "produce the same bytes; returns and lengths are in every dataset's metadata",
    "RecordVideo": "writes files to a folder named in the config",
    "HumanRendering": "opens a window",
    "Autoreset": "starts a new episode inside the old one",
}


#: wrappers of other packages that carry nothing from one episode to the next, by their modules.
#: The packages do not record their arguments in the spec, so :func:`wrapped` does.
PACKAGE_WRAPPERS = {
    "minigrid.wrappers": (
        "DictObservationSpaceWrapper",
        "DirectionObsWrapper",
        "FlatObsWrapper",
        "FullyObsWrapper",
        "ImgObsWrapper",
        "NoDeath",
        "OneHotPartialObsWrapper",
        "RGBImgObsWrapper",
        "RGBImgPartialObsWrapper",
        "SymbolicObsWrapper",
        "ViewSizeWrapper",
    ),
}


def _refuse_adapter(env_id: str, trusted: Collection[str] = ()) -> None:
    if env_id in GYM_ADAPTERS and not is_trusted_module("gym", trusted=trusted):
        raise TrustError(
            f"environment {env_id!r} imports modules named in its arguments; {how_to_trust('gym')}"
        )


def _import_package(env_id: str) -> None:
    """Import the installed package that registers ``env_id``, if one is known."""
    for point in entry_points(ENTRY_POINTS):
        if env_id not in registry:
            with importing():
                point.load()
    for package in PACKAGES:
        if env_id not in registry and re.match(package.pattern, env_id):
            try:
                # A package prints notices about some environments for all of them, in every
                # process; those that concern a dataset are advisories of the checks.
                with redirect_stderr(io.StringIO()), importing():
                    module = importlib.import_module(package.module)
                    if package.prepare is not None:
                        package.prepare(module)
            except gym.error.DependencyNotInstalled as exc:
                raise MissingDependencyError(
                    f"environment {env_id!r}: {exc}. Run: pip install '{package.pip}'"
                ) from exc
            except ModuleNotFoundError as exc:
                raise MissingDependencyError(
                    f"environment {env_id!r} needs the module {exc.name!r}, which is not "
                    f"installed. Run: pip install '{package.pip}'"
                ) from exc


def _load(entry_point: str) -> Any:
    with importing():
        return load_env_creator(entry_point)


def _load_before(spec: EnvSpec) -> None:
    """Import what :func:`gymnasium.make` will import; leave it to report any error."""
    if isinstance(spec.entry_point, str):
        with suppress(Exception):
            _load(spec.entry_point)
    _keep_no_log()


def registered_spec(env_id: str) -> EnvSpec:
    """Return the spec that the running process has registered for ``env_id``.

    Args:
        env_id: such as ``AdroitHandDoor-v1``, or ``my_module:Env-v0``, whose module is imported
            only if the user trusts it.

    Raises:
        TrustError: the module before the colon is not trusted, or the environment imports what
            its arguments name.
        EnvironmentNotFoundError: no package registers this id.
        MissingDependencyError: its package is known but not installed.

    Example:
        >>> registered_spec("CartPole-v1").max_episode_steps
        500
    """
    module, colon, name = env_id.rpartition(":")
    if colon and not module:
        raise ConfigError(f"env.id {env_id!r} has nothing before the colon; expected {name!r}")
    if colon:
        if not all(part.isidentifier() for part in module.split(".")):
            raise ConfigError(
                f"env.id {env_id!r}: {module!r} before the colon is not a module name (letters, "
                f"digits, '_', '.'); expected 'module:Env-v0', or a registered id without a colon"
            )
        if not is_trusted_module(module):
            raise TrustError(
                f"env.id {env_id!r} would import the module {module!r}; {how_to_trust(module)}"
            )
        try:
            with importing():
                importlib.import_module(module)
        except ModuleNotFoundError as exc:
            raise ConfigError(f"env.id {env_id!r}: no module {exc.name!r}") from exc
    elif name not in registry:
        _import_package(name)
    _refuse_adapter(name)
    spec = registry.get(name)
    if spec is None:
        prefix = env_id[: -len(name)]
        hint = did_you_mean(name, registry, prefix=prefix, cutoff=0.5)
        raise EnvironmentNotFoundError(
            f"no environment {env_id!r} is registered.{hint} For an environment of your own or of "
            f"another installed package, write 'module:Env-v0' and trust the module"
        )
    return spec


def registered_horizon(env_id: str) -> int | None:
    """Return ``max_episode_steps`` as registered for ``env_id``, ``None`` without a time limit.

    Example:
        >>> registered_horizon("Pendulum-v1")
        200
    """
    return registered_spec(env_id).max_episode_steps


def creator(env_id: str) -> Any:
    """Import and return the class or function that makes ``env_id``.

    Raises:
        MissingDependencyError: it cannot be imported.

    Example:
        >>> creator("CartPole-v1").__name__
        'CartPoleEnv'
    """
    entry_point = registered_spec(env_id).entry_point
    try:
        return entry_point if callable(entry_point) else _load(str(entry_point))
    except (gym.error.DependencyNotInstalled, ImportError) as exc:
        raise MissingDependencyError(f"environment {env_id!r} cannot be imported: {exc}") from exc


def time_limit(env_id: str, kwargs: Mapping[str, Any]) -> int | None:
    """Return ``max_episode_steps`` of an environment made with ``kwargs``, ``None`` if unlimited.

    Example:
        >>> time_limit("CartPole-v1", {"max_episode_steps": 7}), time_limit("CartPole-v1", {})
        (7, 500)
    """
    given = kwargs.get("max_episode_steps")
    limit = registered_horizon(env_id) if given is None else given
    return None if limit == -1 else limit  # -1 means no limit in Gymnasium


def wrapper_class(target: str) -> type[gym.Wrapper]:
    """Return a wrapper of Gymnasium or ``PACKAGE_WRAPPERS``, or one of a trusted module.

    Raises:
        ConfigError: the wrapper cannot be used for datasets; the message says why.
        TrustError: the user does not trust the wrapper's module.

    Example:
        >>> wrapper_class("gymnasium.wrappers.TimeAwareObservation").__name__
        'TimeAwareObservation'
    """
    module, name = split_target(target)
    if module.split(".")[0] == "gymnasium" and name in REFUSED_WRAPPERS:
        raise ConfigError(f"env.wrappers: {target!r} is refused: it {REFUSED_WRAPPERS[name]}")
    if module == "gymnasium.wrappers" and name in gym.wrappers.__all__:
        try:
            found = getattr(gym.wrappers, name)
        except ModuleNotFoundError as exc:
            raise MissingDependencyError(
                f"env.wrappers: {target!r} needs the module {exc.name!r}, which is not installed"
            ) from exc
    elif module == "gymnasium.wrappers":
        hint = did_you_mean(name, gym.wrappers.__all__)
        raise ConfigError(f"env.wrappers: gymnasium.wrappers has no {name!r}.{hint}")
    elif name in PACKAGE_WRAPPERS.get(module, ()):
        found = _package_wrapper(module, name)
    elif is_trusted_module(module):
        found = resolve(target, {}, what="env.wrappers")
    else:
        raise TrustError(
            f"env.wrappers: {target!r} is neither gymnasium.wrappers.NAME nor trusted; "
            f"{how_to_trust(module.split('.')[0])}"
        )
    if not (isinstance(found, type) and issubclass(found, gym.Wrapper)):
        raise ConfigError(f"env.wrappers: {target!r} is not a gymnasium.Wrapper")
    return found


def make_environment(
    env_id: str,
    kwargs: Mapping[str, Any] | None = None,
    wrappers: Sequence[Mapping[str, Any]] = (),
) -> gym.Env:
    """Make a registered environment and wrap it.

    Args:
        env_id: see :func:`registered_spec`.
        kwargs: keyword arguments of ``gymnasium.make``, including ``max_episode_steps``.
        wrappers: from innermost to outermost, each ``{"_target_": name, **arguments}``.

    Raises:
        ConfigError: the environment or a wrapper does not take its arguments.
        TrustError: they name files that the user does not trust; see :func:`check_arguments`.

    Example:
        >>> make_environment("CartPole-v1", {"max_episode_steps": 7}).spec.max_episode_steps
        7
    """
    spec = registered_spec(env_id)
    check_arguments(_module(spec), {"kwargs": kwargs, "wrappers": wrappers})
    _load_before(spec)
    try:
        # By its plain name, because the module before a colon is imported by now.
        env = gym.make(env_id.rpartition(":")[2], **dict(kwargs or {}))
    except (gym.error.DependencyNotInstalled, ImportError) as exc:
        raise MissingDependencyError(f"environment {env_id!r} cannot be imported: {exc}") from exc
    except (TypeError, ValueError, AssertionError, gym.error.Error) as exc:
        reason = str(exc).splitlines()[0] if str(exc) else type(exc).__name__
        raise ConfigError(
            f"environment {env_id!r} cannot be created with env.kwargs={dict(kwargs or {})}: "
            f"{reason}"
        ) from exc
    _keep_no_log()  # for a simulator that was imported only now
    return wrapped(env, wrappers)


def wrapped(
    env: gym.Env, wrappers: Sequence[Mapping[str, Any]], where: str = "env.wrappers"
) -> gym.Env:
    """Wrap an environment; arguments and errors as for :func:`make_environment`.

    Example:
        >>> wrapper = {"_target_": "gymnasium.wrappers.TimeAwareObservation"}
        >>> wrapped(make_environment("CartPole-v1"), [wrapper]).observation_space.shape
        (5,)
    """
    for wrapper in wrappers:
        arguments = dict(wrapper)
        target = str(arguments.pop("_target_", ""))
        try:
            _check_dtype(arguments)
            found = wrapper_class(target)
            env = found(env, **_with_tuples(found, arguments))
            if target.rpartition(".")[0] in PACKAGE_WRAPPERS:
                _record_arguments(env, arguments)
        except MinariPipeError:
            raise
        except Exception as exc:  # a wrapper may raise anything for arguments of a wrong type
            reason = str(exc).splitlines()[0] if str(exc) else type(exc).__name__
            raise ConfigError(f"{where}: {target} with {arguments}: {reason}") from exc
    return env


def _with_tuples(wrapper: type[gym.Wrapper], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments with tuples where the wrapper wants them: a config has only lists."""
    known = inspect.signature(wrapper).parameters
    return {
        name: tuple(value)
        if isinstance(value, list) and name in known and "tuple" in str(known[name].annotation)
        else value
        for name, value in arguments.items()
    }


def _package_wrapper(module: str, name: str) -> Any:
    try:
        with importing():
            return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as exc:
        package = next((one.pip for one in PACKAGES if module.startswith(one.module)), module)
        raise MissingDependencyError(
            f"env.wrappers: {module}.{name} needs the module {exc.name!r}, which is not "
            f"installed. Run: pip install '{package}'"
        ) from exc


def _record_arguments(env: gym.Env, arguments: Mapping[str, Any]) -> None:
    """Put the arguments of the outermost wrapper into the spec, as Gymnasium's own wrappers do."""
    spec = env.spec
    if spec is not None:
        *inner, own = spec.additional_wrappers
        spec.additional_wrappers = (*inner, replace(own, kwargs=dict(arguments)))


def _module(spec: EnvSpec) -> str:
    return entry_point_name(spec.entry_point).partition(":")[0]


def _keep_no_log() -> None:
    """Make MuJoCo print its warnings without appending them to ``MUJOCO_LOG.TXT`` as well.

    A symlink of that name may be in the current folder.
    """
    mujoco = sys.modules.get("mujoco")
    if mujoco is not None and mujoco.get_mju_user_warning() is None:
        mujoco.set_mju_user_warning(lambda text: sys.stderr.write(f"WARNING: {text}\n"))


def _check_entry_point(entry_point: Any, trusted: Collection[str], *, what: str) -> None:
    module = str(entry_point).partition(":")[0]
    if not is_trusted_module(module, trusted=trusted):
        raise TrustError(
            f"{what} comes from a file and would import {entry_point!r}; "
            f"{how_to_trust(module.split('.')[0])}, or pass trusted_modules=[{module!r}]"
        )
    try:
        found = _load(entry_point)
    except Exception:  # gym.make reports it
        return
    # A trusted module may have imported anything, and the arguments come from the file.
    home = str(getattr(found, "__module__", ""))
    is_environment = not isinstance(found, type) or issubclass(found, gym.Env)
    if not (is_environment and is_trusted_module(home, trusted=trusted)):
        raise TrustError(
            f"{what} would call {entry_point!r}, which belongs to {home or type(found).__name__}; "
            f"expected an environment, a wrapper or a function that {module} itself defines"
        )


def _check_installed(entry_point: Any, env_id: str) -> None:
    """Raise if an environment's package is missing, which trust would not fix.

    It looks up only the first part of the name, and imports nothing.
    """
    package = str(entry_point).partition(":")[0].partition(".")[0]
    if not package.isidentifier() or package in sys.modules:
        return
    if importlib.util.find_spec(package) is None:
        raise MissingDependencyError(
            f"No module named {package!r}: environment {env_id!r} needs it, and nothing else "
            f"registers that id here. Install the package that provides it; for a module of this "
            f"workspace: {how_to_trust(package)}"
        )


def _check_wrapper(wrapper: WrapperSpec, trusted: Collection[str]) -> None:
    module, _, name = str(wrapper.entry_point).partition(":")
    if module == "gymnasium.wrappers" or module.startswith("gymnasium.wrappers."):
        try:
            found = _load(wrapper.entry_point)
        except (ImportError, AttributeError, ValueError) as exc:
            raise ConfigError(
                f"wrapper {wrapper.name!r}: {wrapper.entry_point!r} cannot be imported from the "
                f"installed Gymnasium: {exc}"
            ) from exc
        home = str(getattr(found, "__module__", ""))
        is_wrapper = isinstance(found, type) and issubclass(found, gym.Wrapper)
        if is_wrapper and home.startswith("gymnasium.wrappers") and name != "RecordVideo":
            try:
                _check_dtype(wrapper.kwargs)
            except TypeError as exc:
                raise ConfigError(f"wrapper {wrapper.name!r}: {exc}") from exc
            return
    if name in PACKAGE_WRAPPERS.get(module, ()):
        _package_wrapper(module, name)
        return
    _check_entry_point(wrapper.entry_point, trusted, what=f"wrapper {wrapper.name!r}")


def _check_dtype(arguments: Any) -> None:
    if isinstance(arguments, Mapping) and isinstance(arguments.get("dtype"), str):
        named_dtype(arguments["dtype"])  # NumPy may crash on others


def recover(env_spec: str, *, trusted_modules: Collection[str] = (), **kwargs: Any) -> gym.Env:
    """Make the environment that a dataset's ``env_spec`` describes.

    The spec is used only if its id is registered in the running process with the same entry
    point, or the module of its entry point is trusted; its wrappers only if they are from
    Gymnasium or a trusted module.

    Wrappers that do not record their arguments cannot be made again; they are left out with a
    warning that names them.

    Args:
        env_spec: JSON of a Gymnasium ``EnvSpec``, of any Gymnasium release.
        trusted_modules: modules to trust for this call.
        kwargs: keyword arguments of ``gymnasium.make``, such as ``render_mode``.

    Raises:
        TrustError: the spec names code or a file that the user does not trust.
        MissingDependencyError: its id is not registered and its package is not installed.
        ConfigError: the text is not a spec, or the environment does not take its arguments.

    Example:
        >>> env = recover(gym.spec("CartPole-v1").to_json(), max_episode_steps=9)
        >>> env.spec.max_episode_steps
        9
    """
    spec = parse_spec(env_spec)
    check_recorded(spec, f"env_spec {spec.id!r}: kwargs", spec.kwargs, trusted_modules)
    for wrapper in spec.additional_wrappers:
        where = f"wrapper {wrapper.name!r}: kwargs"
        check_recorded(spec, where, wrapper.kwargs, trusted_modules)
    _refuse_adapter(spec.id, trusted_modules)
    try:
        if spec.id not in registry:
            _import_package(spec.id)
    except MissingDependencyError:
        if not is_trusted_module(_module(spec), trusted=trusted_modules):
            raise
    known = registry.get(spec.id)
    if known is None or entry_point_name(known.entry_point) != spec.entry_point:
        if known is None:
            _check_installed(spec.entry_point, spec.id)
        _check_entry_point(spec.entry_point, trusted_modules, what=f"env_spec {spec.id!r}")
    else:
        spec.entry_point = known.entry_point
    if known is None or known.vector_entry_point != spec.vector_entry_point:
        spec.vector_entry_point = None  # make_vec would import it
    for wrapper in spec.additional_wrappers:
        if wrapper.kwargs is not None:
            _check_wrapper(wrapper, trusted_modules)
    _load_before(spec)
    try:
        env, lost = _without_lost_wrappers(spec, kwargs)
    except gym.error.DependencyNotInstalled as exc:
        raise MissingDependencyError(f"environment {spec.id!r}: {exc}") from exc
    except ModuleNotFoundError as exc:
        raise MissingDependencyError(
            f"No module named {exc.name!r}: environment {spec.id!r} needs it"
        ) from exc
    except Exception as exc:  # an environment may raise anything for arguments of a wrong type
        reason = str(exc).splitlines()[0] if str(exc) else type(exc).__name__
        raise ConfigError(
            f"environment {spec.id!r} cannot be created from the stored env_spec with the "
            f"arguments {spec.kwargs} and {kwargs}: {reason}"
        ) from exc
    _keep_no_log()
    if lost:
        warnings.warn(
            f"environment {spec.id!r} is recovered without {', '.join(lost)}, which stored no "
            "constructor arguments (gymnasium.utils.RecordConstructorArgs stores them)",
            stacklevel=3,
        )
    return env


def check_recorded(spec: EnvSpec, where: str, arguments: Any, trusted: Collection[str]) -> None:
    """Refuse arguments of a dataset that lead its environment to files the user does not trust.

    Args:
        spec: of the environment.
        where: the key that holds the arguments, for the message.
        arguments: as JSON holds them, nested or not.
        trusted: modules to trust for this call.

    Raises:
        TrustError: an argument may lead to such a file.

    Example:
        >>> check_recorded(gym.spec("Ant-v5"), "kwargs", {"xml_file": "ant.xml"}, ())
    """
    check_files(where, arguments, below=None)
    check_texts(spec, where, arguments, trusted)
    if not is_trusted_module(_module(spec), trusted=trusted):
        check_arguments("", arguments, where=where)


def check_texts(spec: EnvSpec, where: str, values: Any, trusted: Collection[str]) -> None:
    """Refuse texts of a dataset that an environment of an unknown package may take for paths.

    Args: see :func:`check_recorded`.

    Raises:
        TrustError: a text has a character that paths have.
    """
    module = _module(spec)
    package = module.partition(".")[0]
    if package in _KNOWN or is_trusted_module(module, trusted=trusted):
        return
    for key, text in texts(where, values):
        if re.search(r"[/\\~$]", text):
            raise TrustError(
                f"{key} is {text[:80]!r}, which {package} may take for a path; "
                f"{how_to_trust(package)}"
            )


def make_by_spec(spec: EnvSpec) -> gym.Env:
    """Make the environment of a spec, which may be that of a stranger's dataset.

    Raises: see :func:`recover`.

    Example:
        >>> make_by_spec(gym.spec("CartPole-v1")).spec.id
        'CartPole-v1'
    """
    # A class or a function can only be the user's own, as no dataset holds one.
    return gym.make(spec) if callable(spec.entry_point) else recover(spec_json(spec))


def _without_lost_wrappers(spec: EnvSpec, kwargs: Mapping[str, Any]) -> tuple[gym.Env, list[str]]:
    """Make a spec without the wrappers that recorded no arguments; also return their names.

    Wrappers that the entry point applies itself stay. Only Gymnasium can tell them from others: it
    refuses the others once it has called the entry point. They come first, so drop the last one.
    """
    lost: list[str] = []
    while True:
        try:
            return gym.make(spec, **kwargs), lost[::-1]
        except ValueError:
            wrappers = list(spec.additional_wrappers)
            places = [place for place, wrapper in enumerate(wrappers) if wrapper.kwargs is None]
            if not places:
                raise
            lost.append(str(wrappers.pop(places[-1]).name))
            spec.additional_wrappers = tuple(wrappers)


def _require(distributions: tuple[str, ...], env_id: str, pip: str) -> None:
    for name in distributions:
        try:
            importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError as exc:
            raise MissingDependencyError(
                f"environment {env_id!r} needs {name}, which is not installed. "
                f"Run: pip install '{pip}'"
            ) from exc


def pip_of(env_id: str) -> str | None:
    """Return the argument of ``pip install`` for an environment's package, without importing it.

    None if Gymnasium has it, or if nothing is known of it.

    Example:
        >>> pip_of("BabyAI-GoToObj-v0"), pip_of("Ant-v5"), pip_of("CartPole-v1")
        ('minari_pipe[minigrid]', 'gymnasium[mujoco]', None)
    """
    for package in PACKAGES:
        if re.match(package.pattern, env_id):
            return package.pip
    spec = registry.get(env_id)
    entry_point = entry_point_name(spec.entry_point) if spec else ""
    found = (pip for prefix, (_, pip) in SIMULATORS.items() if entry_point.startswith(prefix))
    return next(found, None)


def packages_of(env_id: str) -> dict[str, str]:
    """Return the versions of the distributions that decide what ``env_id`` does, by name.

    Example:
        >>> list(packages_of("CartPole-v1"))
        ['gymnasium']
    """
    entry_point = entry_point_name(registered_spec(env_id).entry_point)
    names = ["gymnasium"]
    for package in PACKAGES:
        if entry_point.startswith(package.module):
            names += package.distributions
            break
    else:
        for prefix, (simulators, pip) in SIMULATORS.items():
            if entry_point.startswith(prefix):
                _require(simulators, env_id, pip)
                names += simulators
        top = entry_point.split(":")[0].split(".")[0]
        names += distributions_of(top) if top not in names else []
    return {name: importlib.metadata.version(name) for name in dict.fromkeys(names)}
