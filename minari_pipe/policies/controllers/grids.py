"""Controllers for the grids of minigrid."""

from __future__ import annotations

from collections import deque
from typing import Any

import gymnasium as gym
from minigrid.utils.baby_ai_bot import BabyAIBot

from minari_pipe.errors import ConfigError

State = tuple[int, int, int]


class GridShortestPath:
    """Walks to the goal of a MiniGrid on a shortest path, around walls, lava and other objects."""

    def __init__(self, env: gym.Env) -> None:
        """Store the grid.

        Raises:
            ConfigError: the environment is no MiniGrid.
        """
        self._grid = _grid_of(env, "GridShortestPath")
        self._plan: deque[tuple[State, int]] = deque()

    def __call__(self, observation: Any) -> int:
        """Return the next action: 0 and 1 turn left and right, 2 walks forward.

        Raises:
            ConfigError: there is no way to a goal.
        """
        state = _state(self._grid)
        if not self._plan or self._plan[0][0] != state:  # at first, and after noise
            self._plan = deque(_shortest(self._grid, state))
        return self._plan.popleft()[1]


def _state(grid: Any) -> State:
    """Return the agent's column, row and direction."""
    return int(grid.agent_pos[0]), int(grid.agent_pos[1]), int(grid.agent_dir)


def _shortest(grid: Any, start: State) -> list[tuple[State, int]]:
    """Return the states and actions on a shortest way from a state, by breadth-first search."""
    came_from: dict[State, tuple[State, int] | None] = {start: None}
    queue = deque([start])
    while queue:
        state = queue.popleft()
        x, y, direction = state
        cell = grid.grid.get(x, y)
        if cell is not None and cell.type == "goal":
            way = []
            while (last := came_from[state]) is not None:
                way.append(last)
                state = last[0]
            return way[::-1]
        dx, dy = ((1, 0), (0, 1), (-1, 0), (0, -1))[direction]
        ahead = grid.grid.get(x + dx, y + dy)
        walks = ahead is None or (ahead.can_overlap() and ahead.type != "lava")
        forward = (x + dx, y + dy, direction) if walks else state
        turns = ((x, y, (direction - 1) % 4), (x, y, (direction + 1) % 4))
        for action, following in enumerate((*turns, forward)):
            if following not in came_from:
                came_from[following] = (state, action)
                queue.append(following)
    raise ConfigError(f"GridShortestPath: {grid} has no way from {start[:2]} to a goal")


class BabyAIExpert:
    """The bot that minigrid ships for BabyAI, which explores and plans as its level asks.

    It fails where the bot does, such as with levels that hide a key in a box. Some levels make
    the bot plan for ever: after ``max_plans`` changes of its plan for one action it gives up, so
    that an episode fails at the same step on every machine.
    """

    def __init__(self, env: gym.Env, max_plans: int = 1000) -> None:
        """Make a bot for the episode's mission.

        Args:
            env: a BabyAI environment of minigrid.
            max_plans: how often the bot may look at its plan for one action.

        Raises:
            ConfigError: the environment is no BabyAI level.
        """
        level = _grid_of(env, "BabyAIExpert")
        if not hasattr(level, "instrs"):
            raise ConfigError(f"BabyAIExpert needs a BabyAI level, got {env}")
        self._bot = BabyAIBot(level)
        self._plan = self._bot.stack = _Plan(self._bot.stack)
        self._max_plans = max_plans
        self._last: int | None = None

    def __call__(self, observation: Any) -> int:
        """Return the next action, from 0 to 6.

        Raises:
            RuntimeError: the bot does not decide on one.
            AssertionError: the bot cannot solve the level.
        """
        self._plan.left = self._max_plans
        self._last = int(self._bot.replan(self._last))
        return self._last


class _Plan(list[Any]):
    """The bot's subgoals, which it looks at each time that it plans again."""

    left = 0

    def __getitem__(self, place: Any) -> Any:
        self.left -= 1
        if self.left < 0:
            raise RuntimeError("the bot plans for ever")
        return super().__getitem__(place)


def _grid_of(env: gym.Env, user: str) -> Any:
    grid: Any = env.unwrapped
    if not hasattr(grid, "agent_pos"):
        raise ConfigError(f"{user} needs an environment of minigrid, got {env}")
    return grid
