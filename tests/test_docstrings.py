"""Every public name says what it takes, what it raises, and shows how it is used.

A function shows itself in its own docstring. A method, a property or a field may be shown in the
docstring of its class instead. Constants cannot hold a docstring: a comment `#:` above them says
what they are, and the docstring of the package shows them. Examples run in an empty namespace, so
that they can be copied, imports included.
"""

from __future__ import annotations

import ast
import builtins
import dataclasses
import doctest
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any, is_typeddict

import gymnasium.error
import pytest

import minari_pipe
from minari_pipe import alias, errors, testing
from minari_pipe.recording import recovery

CONSTANTS = {
    "METADATA_FILE_NAME": "minari_pipe.storage.formats",
    "__version__": "minari_pipe._version",
    "supported_dataset_versions": "minari_pipe.core.metadata",
}

PUBLIC: dict[str, Any] = {
    # _HOMES also has the names of older Minari, which a star import does not bring
    **{
        name: getattr(minari_pipe, name)
        for name in sorted({*minari_pipe.__all__, *minari_pipe._HOMES} - CONSTANTS.keys())
    },
    "alias.install": alias.install,
    "alias.uninstall": alias.uninstall,
    "recovery.Leftover": recovery.Leftover,
    "recovery.discard": recovery.discard,
    "recovery.list_leftovers": recovery.list_leftovers,
    "recovery.recover": recovery.recover,
    "testing.StorageContract": testing.StorageContract,
}


def members(cls: type) -> Iterator[tuple[str, Any]]:
    """What a class and its bases in this package define for users."""
    for base in reversed(cls.__mro__):
        if base.__module__.startswith("minari_pipe."):
            for name, value in vars(base).items():
                value = getattr(value, "__func__", value)  # of a classmethod or staticmethod
                if not name.startswith("_") and (
                    isinstance(value, property) or inspect.isfunction(value)
                ):
                    yield name, value


MEMBERS: dict[str, Any] = {
    f"{name}.{member}": value
    for name in (
        *("DataCollector", "EpisodeBuffer", "EpisodeData", "MinariDataset", "MinariStorage"),
    )
    for member, value in members(PUBLIC[name])
}
EVERYTHING = PUBLIC | MEMBERS
#: what a new format overrides and no user calls
FOR_FORMATS = ("MinariStorage.open", "MinariStorage.recognises")
FUNCTIONS = {name: value for name, value in EVERYTHING.items() if inspect.isfunction(value)}
CLASSES = {name: value for name, value in PUBLIC.items() if inspect.isclass(value)}


def docstring(value: Any) -> str:
    """The docstring of a value, and not that of its type or of a class that it overrides."""
    text = getattr(value, "__doc__", None)
    return inspect.cleandoc(text) if text else ""


def section(name: str, text: str) -> str:
    """The lines of a section of a docstring, without their indentation."""
    found = re.search(rf"^{name}:\n((?: +.*\n|\n)*)", f"{text}\n", re.MULTILINE)
    return textwrap.dedent(found[1]) if found else ""


def entries(name: str, text: str) -> set[str]:
    """What a section names, one at the beginning of a line each."""
    return set(re.findall(r"^\*{0,2}(\w+):", section(name, text), re.MULTILINE))


def raised(function: Any) -> bool:
    """Whether a function raises something by itself, beyond what its body lets through."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    return any(isinstance(node, ast.Raise) and node.exc is not None for node in ast.walk(tree))


@pytest.mark.parametrize("name", EVERYTHING)
def test_a_public_name_has_a_docstring(name: str) -> None:
    text = docstring(EVERYTHING[name])
    first = text.partition("\n")[0]
    assert first[:1].isupper() or first.startswith("``"), repr(first)
    assert first.endswith((".", "...``.")), repr(first)
    if is_typeddict(EVERYTHING[name]) or dataclasses.is_dataclass(EVERYTHING[name]):
        # the default docstring of both is a signature
        assert not first.startswith(f"{name}("), first


@pytest.mark.parametrize("name", [n for n in EVERYTHING if n not in FOR_FORMATS])
def test_an_example_shows_it(name: str) -> None:
    owner, _, member = name.rpartition(".")
    own = docstring(EVERYTHING[name])
    if ">>>" in own:
        assert member in section("Example", own) or name == "deserialize_space"
        return
    assert name in MEMBERS, f"{name} has no example"
    assert re.search(rf"\.{member}\b", section("Example", docstring(PUBLIC[owner]))), (
        f"neither {name} nor its class has an example that shows it"
    )


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_tells_of_its_arguments_and_errors(name: str) -> None:
    function = FUNCTIONS[name]
    text = docstring(function)
    parameters = set(inspect.signature(function).parameters) - {"self", "cls"}
    assert entries("Args", text) == parameters
    if raised(function):
        assert entries("Raises", text)


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_tells_of_its_fields_or_arguments(name: str) -> None:
    cls = CLASSES[name]
    if dataclasses.is_dataclass(cls) or is_typeddict(cls):
        assert entries("Attributes", docstring(cls)) == set(inspect.get_annotations(cls))
    else:
        for method in ("__init__", "__call__"):
            function = vars(cls).get(method)
            if function is not None:
                parameters = set(inspect.signature(function).parameters) - {"self"}
                text = docstring(function)
                assert entries("Args", text) == parameters, method
                assert entries("Raises", text) or not raised(function), method


@pytest.mark.parametrize("name", EVERYTHING)
def test_the_errors_that_are_named_exist(name: str) -> None:
    value = EVERYTHING[name]
    own_init = vars(value).get("__init__") if inspect.isclass(value) else None
    for text in (docstring(value), docstring(own_init)):
        for error in entries("Raises", text):
            places = (errors, builtins, gymnasium.error)
            found = next(getattr(p, error) for p in places if hasattr(p, error))
            assert issubclass(found, Exception)


@pytest.mark.filterwarnings("ignore::UserWarning")  # about what a published dataset should have
@pytest.mark.parametrize("name", [n for n in EVERYTHING if ">>>" in docstring(EVERYTHING[n])])
def test_an_example_runs_when_it_is_copied(name: str, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = docstring(EVERYTHING[name])
    test = doctest.DocTestParser().get_doctest(text, {}, name, None, 0)
    said: list[str] = []
    doctest.DocTestRunner(verbose=False).run(test, out=said.append)
    assert not said, "".join(said)


@pytest.mark.parametrize("name", CONSTANTS)
def test_a_constant_is_described_above_it_and_shown_by_the_package(name: str) -> None:
    lines = inspect.getsource(importlib.import_module(CONSTANTS[name])).splitlines()
    above = lines[next(i for i, line in enumerate(lines) if line.startswith(f"{name} =")) - 1]
    assert above.startswith("#: ") and above.endswith("."), above
    assert name in section("Example", docstring(minari_pipe))
