"""Collections by the pipeline's own stage, with the engines that run its blocks."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable
from contextlib import redirect_stderr
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium as gym

from benchmarks import work
from benchmarks.measure import Side
from minari_pipe.pipeline.config import schema
from minari_pipe.pipeline.execution.block_task import BlockPlace
from minari_pipe.pipeline.execution.blocks import BlockStore
from minari_pipe.pipeline.execution.build import PolicyConfig, environment_factory
from minari_pipe.pipeline.execution.collection import CollectBlock, Stop
from minari_pipe.pipeline.execution.engines import make_engine
from minari_pipe.pipeline.execution.engines.base import Engine
from minari_pipe.pipeline.execution.progress import Progress
from minari_pipe.pipeline.execution.scheduler import Scheduler
from minari_pipe.pipeline.stages.collect import SUFFIX, collect

#: where the module of the slow environment is found, also in workers
PLACE = BlockPlace(Path(__file__).parents[1])

_kept: dict[tuple[str, int], Engine] = {}


@dataclass(frozen=True)
class Collected:
    """What is collected: episodes that end with their time limit, one block like another.

    Attributes:
        env: id of the environment.
        policy: ``random``, or the algorithm of an untrained network: ``ppo`` or ``sac``.
        n_envs: environments of a block that step together.
        length: steps of an episode.
        rounds: how many episodes each environment of a block has.
    """

    env: str
    policy: str
    n_envs: int = 1
    length: int = 1000
    rounds: int = 1

    @property
    def block_episodes(self) -> int:
        """Episodes of a block."""
        return self.n_envs * self.rounds

    @property
    def block_steps(self) -> int:
        """Steps of a block."""
        return self.block_episodes * self.length

    @property
    def env_config(self) -> schema.Environment:
        """As under ``env`` in a config."""
        return schema.Environment(self.env, {"max_episode_steps": self.length})

    @property
    def policy_config(self) -> PolicyConfig:
        """As under ``policy`` in a config; a network is sampled from."""
        settings = schema.RANDOM
        if self.policy != "random":
            arguments = {
                "algorithm": self.policy,
                "checkpoint": {"path": str(self.checkpoint())},
                "deterministic": False,
            }
            settings = schema.PolicySettings("minari_pipe.policies.SB3Policy", arguments)
        return PolicyConfig(settings, "policy")

    def make_env(self) -> gym.Env:
        """Make the environment."""
        return environment_factory(self.env_config, PLACE.root)()

    def checkpoint(self) -> Path:
        """Return the file of the network, untrained and of the default size; it is made once."""
        path = work.folder(f"{self.policy}.zip")
        if not path.exists():
            import stable_baselines3

            more = {"buffer_size": 1} if self.policy == "sac" else {}
            algorithm = getattr(stable_baselines3, self.policy.upper())
            algorithm("MlpPolicy", self.make_env(), seed=0, device="cpu", **more).save(path)
        return path

    def block(self) -> CollectBlock:
        """Return what makes the first block."""
        return CollectBlock(
            env=self.env_config,
            policy=self.policy_config,
            first=0,
            last=self.block_episodes,
            seed=0,
            n_envs=self.n_envs,
            record_infos=False,
            record_state=False,
            until=schema.Until(),
            keeps_all=True,
            stop=Stop(),
        )

    def stage(self, engine: Engine, n_blocks: int, folder: Path) -> None:
        """Collect as the stage ``collect`` does, into an empty folder."""
        progress = Progress("collect", print)
        out = folder / "episodes"
        out.mkdir()
        with redirect_stderr(io.StringIO()):  # the bar is for people
            collect(
                env=self.env_config,
                policy=self.policy_config,
                collection=schema.Collect(
                    n_episodes=n_blocks * self.block_episodes,
                    block_episodes=self.block_episodes,
                    n_envs=self.n_envs,
                ),
                scheduler=scheduler(engine, BlockStore(folder / "blocks", SUFFIX), progress),
                out=out,
                files={},
                progress=progress,
            )

    def side(
        self,
        engine: Engine,
        n_blocks: int = 1,
        *,
        n_workers: int = 1,
        result: Callable[[Callable[[], None]], Any] = lambda run: run(),
    ) -> Side:
        """Return a side that collects.

        Args:
            engine: runs the blocks.
            n_blocks: how many.
            n_workers: how many of the engine's workers are used.
            result: calls what it is given, and returns what the run is to return.
        """
        folder = work.folder("collecting")

        def before() -> None:
            after()
            folder.mkdir()
            engine.n_workers = n_workers

        def after() -> None:
            shutil.rmtree(folder, ignore_errors=True)

        def run() -> Any:
            return result(lambda: self.stage(engine, n_blocks, folder))

        return Side(run, before, after, steps=n_blocks * self.block_steps)

    def warm(self, engine: Engine, n_workers: int) -> None:
        """Let each worker start, import what it needs, make the policy and a short block."""
        side = replace(self, length=min(50, self.length), rounds=1).side(
            engine, n_workers, n_workers=n_workers
        )
        assert side.before is not None and side.after is not None
        side.before()
        side.run()
        side.after()


def scheduler(engine: Engine, store: BlockStore, progress: Progress) -> Scheduler:
    """Return what gives blocks to an engine; a block that fails is an error at once."""
    temporary = work.folder("collecting-tmp")
    limits = schema.Engine(max_retries=0, max_failures=0)
    return Scheduler(engine, store, "benchmark", limits, progress, PLACE, temporary)


def engine_fault(name: str) -> str | None:
    """Return why an engine cannot be started here, None if it can."""
    if name == "ray" and find_spec("ray") is None:
        return "ray is not installed; pip install 'minari_pipe[ray]'"
    return None


def new_engine(name: str, n_workers: int) -> Engine:
    """Start an engine."""
    return make_engine(schema.Engine(name, n_workers=n_workers))


def engine(name: str, n_workers: int) -> Engine:
    """Return an engine that stays for further cases, until another one is asked for."""
    if (name, n_workers) not in _kept:
        end_engines()
        _kept[name, n_workers] = new_engine(name, n_workers)
        work.ending.callback(end_engines)
    return _kept[name, n_workers]


def end_engines() -> None:
    """End the engine that stayed."""
    while _kept:
        _kept.popitem()[1].close()
