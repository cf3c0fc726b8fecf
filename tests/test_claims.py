"""Each claim of ``claims.yaml`` is in the README or a document, and the tests it names exist."""

from __future__ import annotations

import ast
import json
from functools import cache

import yaml

from tests.conftest import CHECKOUT

CLAIMS = yaml.safe_load((CHECKOUT / "tests" / "claims.yaml").read_text(encoding="utf-8"))

#: where tests lie: those of the formats and remotes are shipped with the package
FOLDERS = (CHECKOUT / "tests", CHECKOUT / "minari_pipe" / "testing")


def collapsed(text: str) -> str:
    """Return a text in which any white space is one space."""
    return " ".join(text.split())


@cache
def functions(file_name: str) -> set[str]:
    """Return the names of all functions in files of this name, in whatever folder."""
    return {
        node.name
        for folder in FOLDERS
        for path in folder.rglob(file_name)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
    }


@cache
def cases() -> set[str]:
    """Return the benchmark's cases with their sizes."""
    results = json.loads((CHECKOUT / "benchmarks" / "results.json").read_text(encoding="utf-8"))
    return {f"{case['case']}, {case['size']}" for case in results["cases"]}


def exists(test: str) -> bool:
    if test.startswith("benchmarks: "):
        return test.removeprefix("benchmarks: ") in cases()
    file_name, _, name = test.partition("::")
    return name.startswith("test_") and name in functions(file_name)


def test_every_claim_is_made_to_users() -> None:
    documents = [CHECKOUT / "README.md", CHECKOUT / "CONTRIBUTING.md"]
    documents += (CHECKOUT / "docs").rglob("*.md")
    text = "\n".join(collapsed(path.read_text(encoding="utf-8")) for path in documents)
    assert [entry["claim"] for entry in CLAIMS if collapsed(entry["claim"]) not in text] == []
    assert [entry["claim"] for entry in CLAIMS if not 20 <= len(entry["claim"]) <= 160] == []
    assert len({entry["claim"] for entry in CLAIMS}) == len(CLAIMS)


def test_every_test_of_a_claim_exists() -> None:
    named = {test for entry in CLAIMS for test in entry["tests"]}
    assert sorted(test for test in named if not exists(test)) == []
