"""The source has no import cycle, no import inside a function without a reason, no assert on input.

Read from the syntax trees: nothing here runs the package.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "minari_pipe"
MODULES = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}

#: packages that a function may import for itself: optional, or slow and rarely needed
DEFERRED = {
    "aiohttp": "optional, with gcsfs",
    "aiobotocore": "optional, with s3fs",
    "botocore": "optional, with s3fs",
    "colorama": "comes with dvc",
    "dvc_data": "comes with dvc",
    "dvc_http": "comes with dvc",
    "yarl": "comes with aiohttp",
    "dulwich": "comes with dvc",
    "dvc": "0.4 s, and only the pipeline's driver goes on to DVC",
    "dvc_objects": "comes with DVC",
    "fsspec": "0.1 s, needed only by the remotes of object stores and engine.storage",
    "gcsfs": "optional, and 0.7 s",
    "hydra": "a private name that only multirun needs",
    "jinja2": "0.03 s, needed only by pages",
    "numpy": "0.1 s, which a run without work has not for checksums",
    "pyarrow": "pyarrow.compute takes 0.1 s, and few files need it",
    "psutil": "not needed by a process that only wants to be stoppable",
    "resource": "not on Windows",
    "ray": "1.6 s, and optional",
    "requests": "0.1 s, needed only to download",
    "s3fs": "optional, and 0.5 s",
    "stable_baselines3": "imports torch",
    "torch": "2 s, needed only by policies that are networks",
    "tqdm": "needed only for a progress bar",
    "voluptuous": "comes with DVC",
    "xxhash": "a run without work compares no digests",
}

#: modules whose functions may import the package's own modules, so that a command starts quickly
QUICK_STARTERS = ("minari_pipe.__main__", "minari_pipe.cli", "minari_pipe.pipeline")


@cache
def tree(name: str) -> ast.Module:
    return ast.parse(MODULES[name].read_text(encoding="utf-8"), filename=str(MODULES[name]))


def top_level(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what runs when a module is imported; what only type checkers see does not."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            continue
        yield child
        yield from top_level(child)


@cache
def imports_of_functions() -> list[tuple[str, int, str]]:
    """The module of each, its line, and what it imports."""
    found = set()
    for name in MODULES:
        for function in ast.walk(tree(name)):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                for node in (node for part in function.body for node in ast.walk(part)):
                    found |= {(name, node.lineno, module) for module in imported(node)}
    return sorted(found)


def imported(node: ast.AST) -> list[str]:
    """Return the modules that a statement imports; a name may be a module too."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        assert node.level == 0, "imports name the whole module"
        return [str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)]
    return []


def own_imports(name: str) -> set[str]:
    found = {module for node in top_level(tree(name)) for module in imported(node)}
    return {module for module in found if module in MODULES and module != name}


def test_no_module_imports_itself_through_others() -> None:
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join((*path[path.index(name) :], name))
        if name not in done:
            for other in sorted(own_imports(name)):
                visit(other, (*path, name))
            done.add(name)

    for name in MODULES:
        visit(name, ())
    assert len(done) > 90


def test_functions_import_only_what_is_slow_or_optional() -> None:
    allowed = {"minari_pipe": QUICK_STARTERS} | dict.fromkeys(DEFERRED, ("",))
    assert [
        f"{MODULES[name]}:{line}: {module}"
        for name, line, module in imports_of_functions()
        if not name.startswith(allowed.get(module.partition(".")[0], ()))
    ] == []


def test_every_reason_is_needed() -> None:
    used = {module.partition(".")[0] for _, _, module in imports_of_functions()}
    assert used - {"minari_pipe"} == set(DEFERRED)


def test_assertions_only_narrow_types() -> None:
    """``python -O`` drops them, so none may judge what a user gave."""
    assert [
        f"{MODULES[name]}:{node.lineno}: {ast.unparse(node.test)}"
        for name in MODULES
        if not name.startswith("minari_pipe.testing")
        for node in ast.walk(tree(name))
        if isinstance(node, ast.Assert) and not narrows(node.test)
    ] == []


def narrows(test: ast.expr) -> bool:
    """Whether a condition is ``x is not None`` or ``isinstance(...)``."""
    if isinstance(test, ast.Compare):
        is_none = ast.unparse(test.comparators[0]) == "None"
        return isinstance(test.ops[0], ast.IsNot) and is_none and len(test.ops) == 1
    return isinstance(test, ast.Call) and ast.unparse(test.func) == "isinstance"


def test_programs_escape_what_they_print() -> None:
    """Text of a stranger may hold codes that a terminal obeys."""
    programs = {name for name in MODULES if any(map(is_program, tree(name).body))}
    assert {"minari_pipe.__main__", "minari_pipe.pipeline.run.sync"} <= programs
    printing = {name for name in programs if "print" in called(name)} | {"minari_pipe.__main__"}
    assert [name for name in sorted(printing) if "escaped_stdout" not in called(name)] == []


def is_program(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'"


def called(name: str) -> set[str]:
    calls = (node for node in ast.walk(tree(name)) if isinstance(node, ast.Call))
    return {ast.unparse(call.func) for call in calls}
