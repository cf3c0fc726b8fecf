"""Provide the package's controllers for :class:`policies.scripted.ScriptedPolicy`."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from minari_pipe.errors import ConfigError

FloatArray = npt.NDArray[np.floating[Any]]
Cell = tuple[int, int]

WALL = 1  # the value in gymnasium_robotics.envs.maze.maps; every other cell can be crossed


class PointMazeWaypoints:
    """Drives the ball of a PointMaze to its goal, cell by cell along a shortest path.

    A breadth-first search from the goal's cell gives the next cell for every cell. A PD controller
    pulls the ball to the centre of the next cell, or to the goal if that is in this or the next.
    """

    def __init__(self, env: gym.Env, p: float = 10.0, d: float = -1.0) -> None:
        """Store the maze of the environment.

        Args:
            env: a PointMaze environment of gymnasium-robotics.
            p: force per metre of distance to the target.
            d: force per metre per second of velocity; negative brakes.

        Raises:
            ConfigError: the environment has no maze.
        """
        self._maze: Any = getattr(env.unwrapped, "maze", None)
        if self._maze is None:
            raise ConfigError(f"PointMazeWaypoints needs a PointMaze environment, got {env}")
        self._p = p
        self._d = d
        self._goal: Cell | None = None
        self._next: dict[Cell, Cell] = {}

    def reset(self) -> None:
        """Forget the goal of the last episode."""
        self._goal = None

    def __call__(self, observation: Mapping[str, FloatArray]) -> npt.NDArray[np.float32]:
        """Return the force on the ball, shape ``(2,)``, each entry within [-1, 1]."""
        position, goal = observation["achieved_goal"], observation["desired_goal"]
        velocity = observation["observation"][2:4]
        target = self._target(position, goal)
        force = self._p * (target - position) + self._d * velocity
        return np.clip(force, -1.0, 1.0).astype(np.float32)

    def _target(self, position: FloatArray, goal: FloatArray) -> FloatArray:
        """Return the next target of the ball, x and y in metres."""
        cell, goal_cell = self._cell(position), self._cell(goal)
        if goal_cell != self._goal:  # reset_target=True moves it within an episode
            self._goal = goal_cell
            self._next = next_cells(self._maze.maze_map, goal_cell)
        step = self._next.get(cell, cell)  # a bounce may put the ball's centre into a wall cell
        if goal_cell in (cell, step):
            return goal
        centre: FloatArray = self._maze.cell_rowcol_to_xy(np.array(step))
        return centre

    def _cell(self, position: FloatArray) -> Cell:
        row, column = self._maze.cell_xy_to_rowcol(position)
        return int(row), int(column)


def next_cells(maze_map: Sequence[Sequence[Any]], goal: Cell) -> dict[Cell, Cell]:
    """Return the next cell on a shortest path to ``goal`` for every cell that can reach it.

    Args:
        maze_map: rows of cells; :data:`WALL` cannot be entered.
        goal: row and column of the goal, which maps to itself.

    Example:
        >>> next_cells([[0, 1], [0, 0]], goal=(0, 0))
        {(0, 0): (0, 0), (1, 0): (0, 0), (1, 1): (1, 0)}
    """
    following = {goal: goal}
    queue = deque([goal])
    while queue:
        row, column = queue.popleft()
        for cell in ((row + 1, column), (row - 1, column), (row, column + 1), (row, column - 1)):
            inside = 0 <= cell[0] < len(maze_map) and 0 <= cell[1] < len(maze_map[0])
            if inside and maze_map[cell[0]][cell[1]] != WALL and cell not in following:
                following[cell] = (row, column)
                queue.append(cell)
    return following
