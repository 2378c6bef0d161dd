"""Every link of a page has a target, every word of the field a module, and the site (`make docs`) has every page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.docs.terminal import ROOT
from tests.docs.test_examples import BLOCK, name_of

PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """The anchors of the headings, as the repository's viewer and the site generate them."""
    headings = HEADING.findall(BLOCK.sub("", page.read_text()))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_has_a_target(page: Path) -> None:
    for link in LINK.findall(BLOCK.sub("", page.read_text())):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.is_relative_to(ROOT), link
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_the_modules_that_words_of_the_field_lead_to_exist() -> None:
    page = (ROOT / "docs" / "reference" / "layers.md").read_text()
    table = page.partition("## Find it by the field's word\n")[2].partition("\n## ")[0]
    modules = re.findall(r"`(\S+\.py)`", table)
    assert len(modules) > len(re.findall(r"^\| ", table, re.MULTILINE)) - 2
    missing = [module for module in modules if not (ROOT / "src" / "triagemq" / module).is_file()]
    assert missing == []


def test_the_site_has_every_page_once() -> None:
    listed = re.findall(r"^ +- (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    renamed = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
    pages = [renamed.get(name_of(page), name_of(page).removeprefix("docs/")) for page in PAGES]
    assert sorted(listed) == sorted(pages)
