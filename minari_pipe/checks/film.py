"""Film an episode: step its environment again, and show only frames that the recording confirms.

A film is made in a process of its own, ``python -m minari_pipe.checks.film``, because a renderer
may crash or hang, and because MuJoCo chooses its renderer when it is imported. Shadows and smooth
edges are left out, as they take most of the time without a GPU.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from minari_pipe.checks.base import Episode, Options, Subject
from minari_pipe.checks.environment import recorded_fault, recover, spec_fault
from minari_pipe.checks.replay import Replay, reset_arguments
from minari_pipe.checks.stepwise import row_of
from minari_pipe.core.messages import one_line
from minari_pipe.core.spaces import is_image_space, space_leaves
from minari_pipe.core.tree import leaves
from minari_pipe.core.trust import MODULES_VARIABLE, name_places
from minari_pipe.errors import MinariPipeError, MissingDependencyError
from minari_pipe.storage.jpeg import Image  # None if Pillow is not installed

#: a film has at most this many frames, of this width in pixels, and bytes
MOST_FRAMES, WIDTH, MOST_BYTES = 100, 320, 300_000
#: seconds after which a renderer is ended
SECONDS = 60
#: renderers of MuJoCo that need no display, if the user has not chosen one
RENDERERS = ("egl", "osmesa")
#: what to install if none of them is there, on Debian and its relatives
_EGL = "without a display, MuJoCo draws with EGL: apt install libegl1 libegl-mesa0 libgl1-mesa-dri"
#: widths and qualities of a film, until it is small enough
_SIZES = ((WIDTH, 60), (WIDTH, 40), (WIDTH, 20), (240, 20), (160, 20), (96, 20), (64, 10))
#: characters of a reason
_LONGEST = 500
#: exit codes: there can be no film; MuJoCo could not draw with this renderer
_REFUSED, _NOT_DRAWN = 3, 4


class _NoFilmError(MinariPipeError):
    """The data allow no film, whatever draws."""


def film(
    data_path: Path,
    index: int,
    trusted_modules: Sequence[str] = (),
    named: Sequence[Path] = (),
    *,
    process: str = __name__,
) -> bytes:
    """Return a film of an episode, an animated WebP.

    Args:
        data_path: folder of the dataset's data.
        index: number of the episode.
        trusted_modules: modules whose code the dataset's spec may name.
        named: files that it may name, because the user did.
        process: module that calls :func:`main` in the process that films.

    Raises:
        MinariPipeError: it cannot be made; the message says why, and what to do.
    """
    if Image is None:
        raise MissingDependencyError(
            "a film needs the package pillow; run: pip install 'minari_pipe[jpeg]'"
        )
    allowed = json.dumps([list(trusted_modules), list(map(str, named))])
    command = [sys.executable, "-P", "-m", process, str(data_path), str(index), allowed]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "SDL_VIDEODRIVER": "dummy",
        # so that modules of a workspace are found; the process that films trusts no others
        MODULES_VARIABLE: ",".join(
            filter(None, [os.environ.get(MODULES_VARIABLE), *trusted_modules])
        ),
    }
    chosen = os.environ.get("MUJOCO_GL")
    reason = ""
    for renderer in (chosen,) if chosen else RENDERERS:
        environment["MUJOCO_GL"] = renderer
        with tempfile.TemporaryDirectory() as folder:  # the environment may print what it likes
            target, said = Path(folder) / "film.webp", Path(folder) / "said"
            try:
                with open(said, "wb") as output:
                    done = subprocess.run(
                        [*command, str(target)],
                        env=environment,
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=output,
                        timeout=SECONDS,
                        check=False,
                    )
            except subprocess.TimeoutExpired:
                raise MinariPipeError(f"the renderer took longer than {SECONDS} s") from None
            if done.returncode == 0:
                if not target.is_file():
                    raise MinariPipeError("the environment ended the process that films it")
                return target.read_bytes()
            with open(said, "rb") as output:
                output.seek(max(0, said.stat().st_size - 10_000))
                lines = output.read().decode(errors="replace").strip().splitlines() or [""]
        text = one_line(lines[-1][:_LONGEST])
        if done.returncode == _REFUSED:
            raise MinariPipeError(text)
        if done.returncode == _NOT_DRAWN:
            reason = text if chosen else f"{text}; {_EGL}"
        else:
            reason = f"the renderer ended with exit code {done.returncode}"
    raise MinariPipeError(reason)


def main(data_path: str, index: str, allowed: str, target: str) -> int:
    """Write a film to a file, or the reason why there is none to stderr; return the exit code.

    Args:
        data_path: folder of the dataset's data.
        index: number of the episode.
        allowed: modules and files that the dataset may name, as JSON.
        target: the file.
    """
    modules, places = json.loads(allowed)
    name_places(map(Path, places))
    options = Options(trusted_modules=tuple(modules))
    subject = Subject.open(Path(data_path), options=options)
    try:
        film = _webp(list(_frames(subject, int(index))))
    except Exception as error:
        name = "" if isinstance(error, MinariPipeError) else f"{type(error).__name__}: "
        sys.stderr.write(f"\n{name}{one_line(error)}\n")
        # if its import has failed, only parts of MuJoCo are there
        draws = any(module.partition(".")[0] == "mujoco" for module in sys.modules)
        return _NOT_DRAWN if draws and not isinstance(error, _NoFilmError) else _REFUSED
    part = Path(f"{target}.part")
    part.write_bytes(film)
    part.rename(target)
    return 0


def _frames(subject: Subject, index: int) -> Iterator[npt.NDArray[np.uint8]]:
    storage, spec = subject.storage, subject.environment
    if storage is None:
        raise _NoFilmError(subject.fault)
    (buffer,) = storage.get_episodes([index])
    (metadata,) = storage.get_episode_metadata([index])
    names = ("observations", "actions", "rewards", "terminations", "truncations", "infos")
    columns = {name: buffer[name] for name in names}
    episode = Episode(index=index, metadata=metadata, **columns)
    n_steps = len(episode.rewards)
    every = max(1, -(-(n_steps + 1) // MOST_FRAMES))
    if (pictures := _pictures(subject, episode)) is not None:
        yield from pictures[::every]
        return
    if spec is None:
        raise _NoFilmError("the dataset has no environment, and its observations are no images")
    if fault := spec_fault(subject, spec):
        raise MinariPipeError(f"its env_spec {fault}")
    start = reset_arguments(episode, takes_state=False)
    if start is None:
        raise _NoFilmError(f"episode {index} has no seed to start it from again")
    if refused := recorded_fault(subject, episode, start["options"]):
        raise _NoFilmError(refused[1])
    replay = Replay(subject)
    with closing(recover(subject, spec, render_mode="rgb_array")) as env:
        _draw_fast(env)
        for step, observation in enumerate(_steps(env, start, episode)):
            if replay.compare_observation(episode, step - 1, observation):
                raise _NoFilmError(
                    f"the replay of episode {index} leaves the recording at step {step}"
                )
            if step % every == 0:
                yield np.asarray(env.render(), np.uint8)


def _steps(env: gym.Env, start: Any, episode: Episode) -> Iterator[Any]:
    yield env.reset(**start)[0]
    for step in range(len(episode.rewards)):
        yield env.step(row_of(episode.actions, step))[0]


def _pictures(subject: Subject, episode: Episode) -> npt.NDArray[np.uint8] | None:
    """Return the observations of an episode if they are images, or one of them is."""
    space = subject.observation_space
    for path, leaf in () if space is None else space_leaves(space):
        if is_image_space(leaf):
            return dict(leaves(episode.observations))[path]
    return None


def _draw_fast(env: gym.Env) -> None:
    quality = getattr(getattr(getattr(env.unwrapped, "model", None), "vis", None), "quality", None)
    if quality is not None:
        quality.shadowsize = quality.offsamples = 0


def _webp(frames: Sequence[npt.NDArray[np.uint8]]) -> bytes:
    pictures = [Image.fromarray(frame.squeeze()).convert("RGB") for frame in frames]
    width, height = pictures[0].size
    for widest, quality in _SIZES:
        scale = min(widest / width, 1.5 * widest / height)
        size = (max(1, round(width * scale)), max(1, round(height * scale)))
        scaled = [picture.resize(size, Image.Resampling.LANCZOS) for picture in pictures]
        data = io.BytesIO()
        scaled[0].save(
            data, "WEBP", save_all=True, append_images=scaled[1:], duration=60, loop=0,
            quality=quality, method=4,
        )  # fmt: skip
        if data.tell() <= MOST_BYTES:
            return data.getvalue()
    raise _NoFilmError(f"the film is larger than {MOST_BYTES // 1000} kB, however small its frames")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
