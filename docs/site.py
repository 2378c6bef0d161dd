"""Hooks of `make docs`: README.md becomes the first page, blocks get titles, and pages load nothing from other hosts.

Pages are written for the repository, where links point at any of its files, and where the name of a file or
the reason why a block is not executed follows its language (tests/docs/test_examples.py).
"""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
RENAMED = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
SHOWN_WHOLE = ("deploy", "examples")
"""Folders with files that pages link to; the site has copies."""

LINK = re.compile(r"(\]\()([^)\s#:]+)(#[^)\s]*)?\)")
TITLED = re.compile(r"^```(\w+) (\S[^\n]*)$", re.MULTILINE)
BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LOADED_FROM_ELSEWHERE = re.compile(r"""<(?:script|img|link)\b[^>]*(?:src|href)=["']?(?:https?:)?//[^>]*>""")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    outside = {
        **RENAMED,
        **{str(path.relative_to(ROOT)): "" for name in SHOWN_WHOLE for path in (ROOT / name).iterdir()},
    }
    for source, target in outside.items():
        if (ROOT / source).is_file():
            files.append(File.generated(config, target or source, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    written = next(
        (name for name, shown in RENAMED.items() if shown == page.file.src_uri), f"docs/{page.file.src_uri}"
    )
    folder = posixpath.dirname(written)

    def site_link(found: re.Match[str]) -> str:
        there = posixpath.normpath(posixpath.join(folder, found[2]))
        shown = RENAMED.get(there, there.removeprefix("docs/"))
        return f"{found[1]}{posixpath.relpath(shown, posixpath.dirname(page.file.src_uri) or '.')}{found[3] or ''})"

    parts, end = [], 0
    for block in BLOCK.finditer(markdown):
        parts += [
            LINK.sub(site_link, markdown[end : block.start()]),
            TITLED.sub(r'```\1 title="\2"', block[0]),
        ]
        end = block.end()
    return "".join([*parts, LINK.sub(site_link, markdown[end:])])


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    if found := LOADED_FROM_ELSEWHERE.search(output):
        raise PluginError(f"{page.file.src_uri} loads something from another host: {found[0]}")
    return output


def on_post_build(config: MkDocsConfig) -> None:
    site = os.path.relpath(config.site_dir)
    print(f"site: {site}/index.html; its search needs a server: python -m http.server -d {site}")
