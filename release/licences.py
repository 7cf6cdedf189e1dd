"""Which licence an installed distribution has, by its metadata, and whether deviceshare may ship or use it.

    python -m release.licences

writes the list of docs/licences.md. The standard library alone, since the image's build uses it, too.
"""

import re
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution
from pathlib import Path
from typing import Final

ALLOWED: Final = frozenset(
    {
        "0BSD",
        "Apache-2.0",
        "BSD-2-Clause",
        "BSD-3-Clause",
        "BSL-1.0",
        "CC0-1.0",
        "ISC",
        "MIT",
        "MIT-0",
        "MPL-2.0",
        "PSF-2.0",
        "Python-2.0",
        "Unlicense",
        "Zlib",
    }
)
"""SPDX identifiers. The permissive ones, and MPL 2.0, which asks only that changed files of its own stay open: none
asks anything of the code beside it."""
EXPLAINED: Final[dict[str, str]] = {}
"""Distributions whose licence isn't allowed and that are used nevertheless: why that is right."""
READ: Final = {
    "axe-playwright-python": "MIT AND MPL-2.0",
    "colorama": "BSD-3-Clause",
    "grimp": "BSD-2-Clause",
    "import-linter": "BSD-2-Clause",
    "jinja2": "BSD-3-Clause",
    "kubernetes-validate": "Apache-2.0",
    "lupa": "MIT",
    "nvidia-ml-py": "BSD-3-Clause",
    "promql-parser": "MIT",
}
"""By their texts, where metadata don't say which licence of a name it is."""

PAGE: Final = Path(__file__).parent.parent / "docs" / "licences.md"
BEGIN, END = "<!-- generated -->\n", "<!-- end of generated -->\n"
_CLASSIFIER: Final = re.compile(r"License :: (?:OSI Approved :: )?(.+)")
_SPDX: Final = {
    "3-clause bsd license": "BSD-3-Clause",
    "apache 2.0": "Apache-2.0",
    "apache license 2.0": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "isc license (iscl)": "ISC",
    "mit license": "MIT",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
    "python software foundation license": "PSF-2.0",
    "the unlicense (unlicense)": "Unlicense",
}
"""What else metadata say for these; "BSD License" may be any of several."""
_IDENTIFIERS: Final = {each.lower(): each for each in ALLOWED}


def licence_of(part: Distribution) -> str:
    """Its SPDX expression: as the metadata have it, else by a name that means one licence; "" where it is unknown.

    https://packaging.python.org/en/latest/specifications/core-metadata/#license-expression
    """
    if expression := _said(part, "License-Expression"):
        return expression
    if known := READ.get(normalized(part.name)):
        return known
    for text in (_said(part, "License"), *_classified(part)):
        name = text.strip().lower()
        if found := _IDENTIFIERS.get(name) or _SPDX.get(name):
            return found
    return ""


def allowed(expression: str) -> bool:
    """Whether a licence is one of the allowed, or all that are joined by AND are, or one of those joined by OR.

    Of nested expressions all must be.
    """
    if "(" in expression:
        words = re.findall(r"[^\s()]+", expression)
        return all(word in ALLOWED for word in words if word not in ("AND", "OR"))
    return any(all(each.strip() in ALLOWED for each in one.split(" AND ")) for one in expression.split(" OR "))


def faults(parts: Iterable[Distribution]) -> list[str]:
    """What is wrong, for each distribution whose licence is unknown or isn't allowed, with the way out."""
    return [
        f"{part.name} {part.version}: {licence_of(part) or 'its metadata name no licence that we know'};"
        " read its text, and add it to ALLOWED, READ or EXPLAINED in release/licences.py, or use something else"
        for part in parts
        if not allowed(licence_of(part)) and normalized(part.name) not in EXPLAINED
    ]


def table(parts: Iterable[Distribution]) -> str:
    """The list for people, without versions: constraints.txt has those."""
    rows = sorted((part.name.lower(), f"| {part.name} | {licence_of(part)} |") for part in parts)
    return "\n".join(["", "| package | licence |", "| --- | --- |", *(row for _, row in rows), "", ""])


def listed() -> dict[str, str]:
    """What the page says: licences by package."""
    rows = re.findall(r"^\| (\S+) \| (.+) \|$", _page()[1], re.MULTILINE)
    return {normalized(name): licence for name, licence in rows if name not in ("package", "---")}


def write() -> None:
    """Puts the list of what is installed with deviceshare here into the page."""
    from release.closure import closure  # noqa: PLC0415 - it needs `packaging`, which the image's build has not

    before, _, after = _page()
    PAGE.write_text(before + table(part for part in closure("deviceshare") if part.name != "deviceshare") + after)


def _page() -> tuple[str, str, str]:
    before, begin, rest = PAGE.read_text().partition(BEGIN)
    inside, end, after = rest.partition(END)
    return before + begin, inside, end + after


def _said(part: Distribution, field: str) -> str:
    said = part.metadata.get_all(field)
    return str(said[0]) if said else ""


def _classified(part: Distribution) -> Iterator[str]:
    for classifier in part.metadata.get_all("Classifier") or ():
        if found := _CLASSIFIER.fullmatch(classifier):
            yield found[1]


def normalized(name: str) -> str:
    """As package indexes compare names (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    write()
