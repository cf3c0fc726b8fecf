"""Counts what a reader of the code has to find their way through.

``python -m tests.structure`` prints three tables, of the checkout it is run in:

1. folders and modules, lines of code, imports that point upward, cycles of files, tiers;
2. how far the config is typed: annotations and string subscripts in ``pipeline/``;
3. the modules that a call passes: ``create_dataset_from_buffers`` of three episodes, and the value
   ``ref_scores.expert`` on its way from YAML to ``metadata.json``.

A line of code is one that holds a token of a statement: no docstring, comment or blank line.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

CHECKOUT = Path(__file__).parents[1]
PACKAGE = CHECKOUT / "minari_pipe"
#: from top to bottom; folders of one line do not import each other
LAYERS = (
    ("__main__", "alias", "testing"),
    ("cli",),
    ("pipeline",),
    ("checks",),
    ("policies",),
    ("recording", "remotes"),
    ("datasets",),
    ("storage",),
    ("core",),
    ("errors", "_version"),
)
#: names under which the pipeline hands on a config, or a part of it
CONFIG_NAMES = {"config", "params", "scores", "policy", "collect", "engine", "settings", "values"}
#: annotations that say nothing of what is handed on
LOOSE = re.compile(r"\b(Any|object|Mapping)\b")
SKIPPED = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
TOKEN = "traced_expert_token"


def modules() -> dict[str, Path]:
    """The modules of the package by their dotted names."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(CHECKOUT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def docstring_lines(tree: ast.Module) -> set[int]:
    """The lines of strings that stand alone: docstrings, and those below attributes."""
    return {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }


def code_lines(path: Path) -> int:
    lines: set[int] = set()
    with tokenize.open(path) as file:
        text = file.read()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in SKIPPED and token.string:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - docstring_lines(parsed(path)))


def statements(path: Path) -> int:
    return sum(isinstance(node, ast.stmt) for node in ast.walk(parsed(path)))


def is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def imports(name: str, path: Path, known: dict[str, Path]) -> Iterator[tuple[str, bool]]:
    """The package's modules that one imports; whether as it is imported itself."""

    def walk(node: ast.AST, at_import: bool) -> Iterator[tuple[str, bool]]:
        for child in ast.iter_child_nodes(node):
            if is_for_types(child):
                continue
            if isinstance(child, ast.Import):
                for alias in child.names:
                    if alias.name in known:
                        yield alias.name, at_import
            elif isinstance(child, ast.ImportFrom) and child.module and not child.level:
                for alias in child.names:
                    for target in (f"{child.module}.{alias.name}", child.module):
                        if target in known:
                            yield target, at_import
                            break
            inner = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from walk(child, at_import and not inner)

    yield from walk(parsed(path), True)


def layer(name: str) -> int | None:
    parts = name.split(".")
    top = parts[1] if len(parts) > 1 else ""
    return next((place for place, names in enumerate(LAYERS) if top in names), None)


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """The groups of modules that import each other, by Tarjan's algorithm."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for target in sorted(graph[node]):
            if target not in index:
                visit(target)
            if target in stack:
                low[node] = min(low[node], low[target])
        if low[node] == index[node]:
            group = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(group) > 1:
                found.append(sorted(group))

    sys.setrecursionlimit(10_000)
    for node in sorted(graph):
        if node not in index:
            visit(node)
    return found


def tiers(graph: dict[str, set[str]]) -> int:
    """The length of the longest chain of imports; a cycle counts as one."""
    group_of: dict[str, tuple[str, ...]] = {name: (name,) for name in graph}
    for group in cycles(graph):
        group_of.update(dict.fromkeys(group, tuple(group)))

    @cache
    def depth(group: tuple[str, ...]) -> int:
        below = {group_of[t] for name in group for t in graph[name]} - {group}
        return 1 + max((depth(other) for other in below), default=0)

    return max(depth(group) for group in group_of.values())


def tree() -> None:
    known = modules()
    folders: defaultdict[str, Counter[str]] = defaultdict(Counter)
    longest = []
    for name, path in known.items():
        below = path.relative_to(PACKAGE).parts
        folder = below[0] if len(below) > 1 else "."
        code = code_lines(path)
        lines = path.read_text(encoding="utf-8").count("\n")
        folders[folder].update(
            modules=1, lines=lines, code=code, docs=len(docstring_lines(parsed(path)))
        )
        folders[folder]["statements"] += statements(path)
        if lines > 600:
            longest.append(f"{name} {lines}")
    print(f"{'folder':12} {'modules':>8} {'lines':>8} {'code':>8} {'docs':>8} {'statements':>11}")
    total: Counter[str] = Counter()
    for folder, counts in sorted(folders.items(), key=lambda item: -item[1]["code"]):
        print_row(folder, counts)
        total.update(counts)
    print_row("total", total)
    everything: dict[str, set[str]] = {}
    at_import: dict[str, set[str]] = {}
    for name, path in known.items():
        found = list(imports(name, path, known))
        everything[name] = {target for target, _ in found} - {name}
        at_import[name] = {target for target, first in found if first} - {name}
    upward = [
        f"{name} -> {target}"
        for name, targets in everything.items()
        for target in targets
        if (a := layer(name)) is not None
        and (b := layer(target)) is not None
        and (b < a or (a == b and name.split(".")[1] != target.split(".")[1]))
    ]
    deferred = sum(len(everything[name] - at_import[name]) for name in known)
    print(f"\nfolders {len(folders) - 1}, modules at the top {folders['.']['modules']}")
    print(f"modules above 600 lines: {', '.join(longest) or 'none'}")
    print(f"upward imports between folders: {len(upward)}")
    for line in sorted(upward):
        print(f"  {line}")
    found_cycles = cycles(everything)
    print(f"cycles of files: {len(found_cycles)}")
    for group in found_cycles:
        print(f"  {' '.join(group)}")
    print(f"tiers of imports: {tiers(everything)}; deferred imports: {deferred}")


def print_row(folder: str, counts: Counter[str]) -> None:
    print(
        f"{folder:12} {counts['modules']:8,} {counts['lines']:8,} {counts['code']:8,} "
        f"{counts['docs']:8,} {counts['statements']:11,}"
    )


def root_name(node: ast.expr) -> str:
    """``config`` of ``run.config["a"]["b"]``: what the outermost subscript is of."""
    while isinstance(node, ast.Subscript):
        node = node.value
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def typing_of_config() -> None:
    """Print how often the pipeline hands on what no type names."""
    counts: Counter[str] = Counter()
    for path in sorted((PACKAGE / "pipeline").rglob("*.py")):
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                texts = [ast.unparse(a.annotation) for a in arguments if a.annotation is not None]
                texts += [ast.unparse(node.returns)] if node.returns is not None else []
                loose = [t for t in texts if LOOSE.search(t)]
                counts["signatures with Any, object or Mapping"] += bool(loose)
                counts["signatures with dict[str, Any]"] += any(
                    "dict[str, Any]" in t for t in texts
                )
            if isinstance(node, ast.Name) and node.id in ("Any", "object", "Mapping"):
                counts[f"uses of {node.id}"] += 1
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("cast", "getattr"):
                counts[f"calls of {ast.unparse(node.func)}"] += 1
            if (
                isinstance(node, ast.Subscript)
                and isinstance(node.slice, ast.Constant)
                and isinstance(node.slice.value, str)
            ):
                counts["string subscripts"] += 1
                if root_name(node) in CONFIG_NAMES:
                    counts["string subscripts on config"] += 1
    for name, number in sorted(counts.items()):
        print(f"{name:42} {number:5}")


class Passed:
    """The modules of the package whose functions are called, as ``sys.setprofile`` tells."""

    def __init__(self, token: str | None = None) -> None:
        self.names: set[str] = set()
        self.changes = 0
        self._token = token
        self._last = ""

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        if event != "call":
            return
        name = frame.f_globals.get("__name__", "")
        if not name.startswith("minari_pipe") or frame.f_code.co_name == "<module>":
            return
        if self._token is not None and not self._holds(frame):
            return
        self.names.add(name)
        self.changes += name != self._last
        self._last = name

    def _holds(self, frame: FrameType) -> bool:
        """Whether an argument of the call has the token in it."""
        code = frame.f_code
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        return any(self._within(frame.f_locals[n], 6) for n in names if n in frame.f_locals)

    def _within(self, value: Any, depth: int) -> bool:
        if isinstance(value, str):
            return self._token is not None and self._token in value and len(value) < 400
        if depth == 0:
            return False
        if isinstance(value, dict):
            return any(self._within(v, depth - 1) for v in list(value.values()))
        if isinstance(value, list | tuple):
            return any(self._within(v, depth - 1) for v in value[:50])
        fields = getattr(type(value), "__dataclass_fields__", None)
        if fields and type(value).__module__.startswith("minari_pipe"):
            return any(self._within(getattr(value, n, None), depth - 1) for n in fields)
        return False


CREATE = """
import sys
import numpy as np
from gymnasium import spaces
from tests.structure import Passed
import minari_pipe
from minari_pipe import EpisodeBuffer, create_dataset_from_buffers
flags = dict(terminations=[False, False, True], truncations=[False] * 3)
buffers = [
    EpisodeBuffer(
        observations=np.arange(4.0).reshape(4, 1), actions=np.zeros((3, 1)), rewards=[0.0] * 3,
        **flags,
    )
    for _ in range(3)
]
passed = Passed()
box = spaces.Box(-9, 9, (1,), np.float64)
sys.setprofile(passed)
create_dataset_from_buffers("structure/x-v0", buffers, observation_space=box, action_space=box)
sys.setprofile(None)
print(len(passed.names), passed.changes, *sorted(passed.names))
"""

CONFIG = f"""\
# @package _global_
defaults: [{{/policy: random}}, {{/policy@ref_scores.expert: scripted}}, _self_]
dataset: {{id: structure/expert-v0, description: d}}
author: {{name: a, email: a@example.com}}
env: {{id: CartPole-v1}}
collect: {{n_episodes: 2, n_envs: 1}}
ref_scores: {{n_episodes: 2, ref_min_score: 0.0, expert: {{controller: {{_target_: {TOKEN}.act}}}}}}
"""

TRACER = """
import atexit, os, sys, threading
folder = os.environ.get("STRUCTURE_TRACES")
if folder and not getattr(sys, "_structure", None):
    sys._structure = True
    import runpy
    sys.path.append(os.environ["STRUCTURE_CHECKOUT"])
    from tests.structure import TOKEN, Passed
    passed = Passed(TOKEN)
    sys.setprofile(passed)
    def write():
        sys.setprofile(None)
        with open(os.path.join(folder, str(os.getpid())), "w") as file:
            file.write(" ".join(sorted(passed.names)))
    atexit.register(write)
"""


def environment(place: Path) -> dict[str, str]:
    return {
        **os.environ,
        "HOME": str(place),
        "MINARI_DATASETS_PATH": str(place / "root"),
        "PYTHONPATH": str(CHECKOUT),
    }


def traced_create(place: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CREATE],
        env=environment(place),
        cwd=place,
        capture_output=True,
        text=True,
        check=True,
    )
    number, changes, *names = done.stdout.split()
    print(f"create_dataset_from_buffers, 3 episodes: {number} modules, {changes} changes of module")
    print("  " + " ".join(name.removeprefix("minari_pipe.") for name in names))


def traced_expert(place: Path) -> None:
    work, traces, site = place / "work", place / "traces", place / "site"
    for folder in (work, traces, site):
        folder.mkdir()
    (site / "sitecustomize.py").write_text(TRACER)
    (work / f"{TOKEN}.py").write_text("def act(observation):\n    return 0\n")
    settings = environment(place) | {
        "MINARI_PIPE_TRUSTED_MODULES": TOKEN,
        "PYTHONPATH": f"{site}{os.pathsep}{CHECKOUT}",
    }

    def run(*argv: str, **more: str) -> None:
        subprocess.run(
            [sys.executable, "-m", *argv],
            env=settings | more,
            cwd=work,
            check=True,
            stdout=subprocess.DEVNULL,
        )

    run("minari_pipe", "init")
    (work / "conf" / "dataset").mkdir(parents=True, exist_ok=True)
    (work / "conf" / "dataset" / "expert.yaml").write_text(CONFIG)
    more = {"STRUCTURE_TRACES": str(traces), "STRUCTURE_CHECKOUT": str(CHECKOUT)}
    run("minari_pipe", "+dataset=expert", **more)
    written = json.loads((work / "datasets/structure/expert-v0/data/metadata.json").read_text())
    assert TOKEN in json.dumps(written) or written["ref_max_score"] is not None
    names = {name for file in traces.iterdir() for name in file.read_text().split()}
    print(f"ref_scores.expert, from YAML to metadata.json: {len(names)} modules")
    print("  " + " ".join(name.removeprefix("minari_pipe.") for name in sorted(names)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trace", action="store_true", help="also follow the two ways (10 s)")
    chosen = parser.parse_args()
    tree()
    print()
    typing_of_config()
    if chosen.trace:
        print()
        for trace in (traced_create, traced_expert):
            with tempfile.TemporaryDirectory() as place:
                trace(Path(place))


if __name__ == "__main__":
    main()
