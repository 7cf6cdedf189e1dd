"""MkDocs hooks that turn links between files of the repository into links between pages of the site.

The pages are written to be read in the repository, and some of them are outside docs/. They are added to the site
under their own paths, and links to and from them are rewritten, so that nothing is written twice.
https://www.mkdocs.org/user-guide/configuration/#hooks
"""

import posixpath
import re
from pathlib import Path
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).parent.parent
DOCS: Final = "docs/"
OUTSIDE: Final = (
    "README.md",
    "README.zh-CN.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "LICENSE",
    "charts/deviceshare/README.md",
)
DECISIONS: Final = "decisions/"
_LINK: Final = re.compile(r"(?<=]\()(?!\w+:|#)[^)#\s]+")
_TITLE: Final = re.compile(r"^# (.*)", re.MULTILINE)


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Adds the pages outside docs/, and a list of the decisions."""
    for path in OUTSIDE:
        files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    decisions = sorted((ROOT / DOCS / DECISIONS).glob("*.md"))
    lines = [f"- [{_title(file)}]({file.name})\n" for file in decisions]
    listing = "# Decisions\n\nWhy it is as it is, a page each.\n\n" + "".join(lines)
    files.append(File.generated(config, f"{DECISIONS}README.md", content=listing))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Turns the page's links."""
    here = page.file.src_uri
    return _LINK.sub(lambda link: _turned(link.group(), here), markdown)


def _turned(link: str, here: str) -> str:
    """The link on the site's page `here` that leads where `link` does in the repository."""
    there = posixpath.normpath(posixpath.join(posixpath.dirname(_in_repository(here)), link))
    if (ROOT / there).is_dir():
        there += "/README.md"
    if there not in OUTSIDE and not there.startswith(DOCS):
        return link
    return posixpath.relpath(there.removeprefix(DOCS), posixpath.dirname(here) or ".")


def _in_repository(page: str) -> str:
    return page if page in OUTSIDE else DOCS + page


def _title(file: Path) -> str:
    found = _TITLE.search(file.read_text())
    return found[1] if found else file.stem
