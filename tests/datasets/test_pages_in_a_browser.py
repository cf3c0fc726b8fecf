"""Pages in a real browser: they ask for nothing, run nothing of strangers, and all can use them.

Debian's Chromium is enough: ``apt install chromium``. Without a browser these tests are skipped, or
fail if ``MINARI_PIPE_BROWSER=required``.
"""

from __future__ import annotations

import importlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minari_pipe.datasets.cards.comparison import comparison
from minari_pipe.datasets.cards.facts import Outcomes
from minari_pipe.datasets.cards.folder import facts_at, report_of
from minari_pipe.datasets.cards.site import Entry, write_site
from tests.datasets.test_cards import HOSTILE, episode, stored
from tests.datasets.test_site import entry, film, given

NAMES = ("chromium", "chromium-browser", "google-chrome")
ATTACK = f"{HOSTILE} </script></style><script>window.attacked = 1</script> " + "long " * 200_000
LONG = f"zz/{'montezuma_revenge_expert_' * 4}-v0"
PAGES = (
    "report.html",
    "both.html",
    "site/index.html",
    "site/datasets/aa/b-v3.html",
    f"site/datasets/{LONG}.html",
)
VIEWS = [(1100, "light"), (1100, "dark"), (390, "light"), (390, "dark")]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    is_required = os.environ.get("MINARI_PIPE_BROWSER") == "required"
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        (pytest.fail if is_required else pytest.skip)(f"there is none of {', '.join(NAMES)}")
    if is_required:
        importlib.import_module("axe_playwright_python.sync_playwright")
    api = pytest.importorskip("playwright.sync_api")
    with api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report, two datasets side by side, and a site, all with texts of a stranger."""
    folder = tmp_path_factory.mktemp("pages")
    metadata = dict.fromkeys(("description", "algorithm_name", "code_permalink"), ATTACK)
    buffers = [episode([float(n), 2.0] * (n % 3 + 1), success=n > 6) for n in range(9)]
    dataset = stored(
        folder / "b-v3", buffers, ref_min_score=1.0, ref_max_score=99.0, license="MIT", **metadata
    )
    facts = facts_at(dataset / "data")
    (folder / "report.html").write_text(report_of(facts, film()))
    (folder / "both.html").write_text(
        comparison((facts, film()), (replace(facts, dataset_id=LONG), None))
    )
    returns = Outcomes([0, 1], [1, None], np.array([3, 4]), np.array([0.5, 0.75]))
    other = entry("door/human-v2", license="CC-BY-4.0", ref_min_score=0.0, ref_max_score=1.0)
    object.__setattr__(other.facts, "outcomes", returns)
    long = entry(LONG, license="LicenseRef_" + "Research_Only_" * 4, author="y" * 99)
    entries = [Entry(facts, {"name": ATTACK}, film()), other, long]
    write_site(folder / "site", given(*entries), ATTACK[:90])
    return folder


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize(("width", "scheme"), VIEWS)
def test_a_page_asks_for_nothing_and_everybody_can_use_it(
    browser: Any, pages: Path, name: str, width: int, scheme: str
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    size = {"width": width, "height": 900}
    page = browser.new_page(viewport=size, color_scheme=scheme)
    asked: list[str] = []
    told: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: told.append(str(error)))
    page.on("console", lambda message: told.append(message.text))
    page.on("dialog", lambda dialog: told.append(dialog.message) or dialog.dismiss())
    page.goto((pages / name).as_uri())
    assert told == []
    assert page.evaluate("window.attacked") is None
    place = pages.as_uri()
    assert [url for url in asked if not url.startswith((place, "data:image/webp;"))] == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    violations = axe.run(page).response["violations"]
    assert [(one["id"], one["nodes"][0]["html"][:100]) for one in violations] == []
    page.close()


def shown(page: Any) -> list[str]:
    links = page.locator("table.list tbody tr:visible a").all_inner_texts()
    assert isinstance(links, list)
    return links


def test_a_site_is_searched_filtered_and_sorted_by_clicks_and_keys(
    browser: Any, pages: Path
) -> None:
    page = browser.new_page()
    page.goto((pages / "site" / "index.html").as_uri())
    everything = ["aa/b-v3", "door/human-v2", LONG]
    assert shown(page) == everything
    page.keyboard.press("Tab")  # to the search field
    page.keyboard.type("HUMAN door")
    assert shown(page) == ["door/human-v2"]
    assert page.locator("#count").inner_text() == "1 of 3"
    page.locator("#q").fill("")
    page.get_by_label("License").select_option("MIT")
    assert shown(page) == ["aa/b-v3"]
    page.get_by_label("License").select_option("")
    page.get_by_label("Sort by").select_option("normalized score")
    assert shown(page) == ["door/human-v2", "aa/b-v3", LONG]
    page.get_by_label("Sort by").focus()
    page.keyboard.press("n")  # the order named so
    assert shown(page)[0] in everything
    page.locator("text=door/human-v2").click()
    assert page.locator("h1").inner_text() == "door/human-v2"
    page.locator("text=All datasets").click()
    assert len(shown(page)) == 3
    page.close()


def test_a_site_can_be_read_without_scripts(browser: Any, pages: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto((pages / "site" / "index.html").as_uri())
    assert len(shown(page)) == 3
    assert not page.locator("form").is_visible()
    context.close()
