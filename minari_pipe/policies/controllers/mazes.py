"""Controllers for the mazes of gymnasium-robotics."""

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


class _Maze:
    """Finds shortest paths through the cells of a maze of gymnasium-robotics."""

    def __init__(self, env: gym.Env, user: str) -> None:
        maze: Any = getattr(env.unwrapped, "maze", None)
        if maze is None:
            raise ConfigError(f"{user} environment, got {env}")
        self._maze = maze
        self._goal: Cell | None = None
        self._next: dict[Cell, Cell] = {}

    def next(self, cell: Cell, goal: Cell) -> Cell:
        """Return the cell that follows on the way to the goal's, which follows itself.

        A robot's centre may be over a wall, which has no way: the cell is returned itself.
        """
        if goal != self._goal:  # reset_target=True moves it within an episode
            self._goal = goal
            self._next = next_cells(self._maze.maze_map, goal)
        return self._next.get(cell, cell)

    def cell(self, position: FloatArray) -> Cell:
        """Return the row and column of a position, x and y in metres."""
        row, column = self._maze.cell_xy_to_rowcol(position)
        return int(row), int(column)

    def centre(self, cell: Cell) -> FloatArray:
        """Return the centre of a cell, x and y in metres."""
        centre: FloatArray = self._maze.cell_rowcol_to_xy(np.array(cell))
        return centre


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
        self._maze = _Maze(env, "PointMazeWaypoints needs a PointMaze")
        self._p = p
        self._d = d

    def __call__(self, observation: Mapping[str, FloatArray]) -> npt.NDArray[np.float32]:
        """Return the force on the ball, shape ``(2,)``, each entry within [-1, 1]."""
        position, goal = observation["achieved_goal"], observation["desired_goal"]
        velocity = observation["observation"][2:4]
        cell, goal_cell = self._maze.cell(position), self._maze.cell(goal)
        step = self._maze.next(cell, goal_cell)
        target = goal if goal_cell in (cell, step) else self._maze.centre(step)
        force = self._p * (target - position) + self._d * velocity
        return np.clip(force, -1.0, 1.0).astype(np.float32)


class AntMazeGait:
    """Walks the ant of an AntMaze to its goal with a trot, along a shortest path.

    Nobody trained it: its numbers were found by random search, for goals reached in spite of noise.
    Diagonal legs step together. A leg's ankle moves as far as the leg points along the way, so the
    ant walks into any direction without turning; its hips stay where they are. The more the torso
    tilts, the shorter are the steps: an ant that noise throws on its back does not get up.
    """

    #: where the legs point, in radians from the front of the torso
    _LEGS = np.deg2rad([45.0, 135.0, 225.0, 315.0])
    #: sign of the range of each ankle
    _SIGNS = np.array([1.0, -1.0, -1.0, 1.0])
    #: diagonal legs have the same phase
    _PHASES = np.array([0.0, 0.5, 0.0, 0.5])
    #: from joints, hip and ankle of each leg, to actuators, which begin with the fourth leg
    _ACTUATORS = np.array([6, 7, 0, 1, 2, 3, 4, 5])

    #: cosines of the tilt of the torso between which steps get shorter, and their least share
    _FALLS, _STANDS, _SHORTEST = 0.8, 0.9, 0.3

    def __init__(
        self,
        env: gym.Env,
        frequency: float = 3.3,
        duty: float = 0.612,
        stride: float = 0.45,
        lift: float = 0.212,
        ankle: float = 0.759,
        p: float = 2.28,
        d: float = 0.138,
        reach: float = 1.12,
    ) -> None:
        """Store the maze of the environment.

        Args:
            env: an AntMaze environment of gymnasium-robotics.
            frequency: steps of a leg per second.
            duty: share of a step during which the foot is on the ground.
            stride: angle that an ankle moves to each side, in radians.
            lift: angle by which a foot is lifted, in radians.
            ankle: mean angle of an ankle, in radians.
            p: torque per radian of distance to the wanted angle.
            d: torque per radian per second of a joint's velocity.
            reach: distance in metres at which a cell's centre counts as reached.

        Raises:
            ConfigError: the environment has no maze.
        """
        self._maze = _Maze(env, "AntMazeGait needs an AntMaze")
        self._step = float(getattr(env.unwrapped, "dt", 0.05))
        self._frequency, self._duty = frequency, duty
        self._stride, self._lift, self._ankle = stride, lift, ankle
        self._p, self._d, self._reach = p, d, reach
        self.reset()

    def reset(self) -> None:
        """Begin a gait, and forget the way of the last episode."""
        self._time = 0.0
        self._waypoint: Cell | None = None

    def __call__(self, observation: Mapping[str, FloatArray]) -> npt.NDArray[np.float32]:
        """Return the torques of the joints, shape ``(8,)``, each entry within [-1, 1]."""
        position, goal = observation["achieved_goal"], observation["desired_goal"]
        x, y = self._target(position, goal) - position
        body = observation["observation"]  # height, quaternion, joints, then velocities
        w, i, j, k = body[1:5]
        yaw = np.arctan2(2 * (w * k + i * j), 1 - 2 * (j * j + k * k))
        upright = (1 - 2 * (i * i + j * j) - self._FALLS) / (self._STANDS - self._FALLS)
        stride = self._stride * np.clip(upright, self._SHORTEST, 1.0)
        return self._torques(np.arctan2(y, x) - yaw, stride, body[5:13], body[19:27])

    def _torques(
        self, direction: float, stride: float, angles: FloatArray, velocities: FloatArray
    ) -> npt.NDArray[np.float32]:
        """Return the torques that walk into a direction, in radians from the torso's front."""
        self._time += self._step
        phase = (self._frequency * self._time + self._PHASES) % 1.0
        stands = phase < self._duty
        swing = (phase - self._duty) / (1 - self._duty)
        push = np.where(stands, 1 - 2 * phase / self._duty, 2 * swing - 1)
        lift = np.where(stands, 0.0, np.sin(np.pi * swing))
        forward = stride * push * np.cos(direction - self._LEGS)
        wanted = np.zeros(8)
        wanted[1::2] = self._SIGNS * np.clip(self._ankle + forward + self._lift * lift, 0.53, 1.21)
        torques = self._p * (wanted - angles) - self._d * velocities
        return np.clip(torques, -1.0, 1.0)[self._ACTUATORS].astype(np.float32)

    def _target(self, position: FloatArray, goal: FloatArray) -> FloatArray:
        """Return where to walk: the goal, or the centre of the next cell that is not reached."""
        goal_cell, cell = self._maze.cell(goal), self._maze.cell(position)
        waypoint = self._waypoint
        if waypoint is None or not _are_near(cell, waypoint):  # it was pushed off its way
            waypoint = self._maze.next(cell, goal_cell)
        centre = self._maze.centre(waypoint)
        if waypoint != goal_cell and np.linalg.norm(centre - position) < self._reach:
            waypoint = self._maze.next(waypoint, goal_cell)
            centre = self._maze.centre(waypoint)
        self._waypoint = waypoint
        return goal if waypoint == goal_cell else centre


def _are_near(first: Cell, second: Cell) -> bool:
    return abs(first[0] - second[0]) + abs(first[1] - second[1]) <= 1


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
