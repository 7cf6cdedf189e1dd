"""Which licences packages have, and that all of them are allowed."""

from email.message import Message
from importlib.metadata import Distribution, PackageMetadata, distributions
from os import PathLike
from pathlib import Path
from typing import cast

import pytest

from release import licences
from release.closure import closure, normal


class Said(Distribution):
    """A distribution by its metadata."""

    def __init__(self, name: str, *fields: tuple[str, str]) -> None:
        self._said = Message()
        for field in (("Name", name), ("Version", "1"), *fields):
            self._said[field[0]] = field[1]

    @property
    def metadata(self) -> PackageMetadata:
        return cast("PackageMetadata", self._said)

    def read_text(self, filename: str) -> str | None:
        return None

    def locate_file(self, path: str | PathLike[str]) -> Path:
        raise NotImplementedError


BSD = ("Classifier", "License :: OSI Approved :: BSD License")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ([("License-Expression", "MIT OR Apache-2.0"), ("License", "Old")], "MIT OR Apache-2.0"),
        ([("License", "Apache 2.0")], "Apache-2.0"),
        ([("License", "mit")], "MIT"),
        ([("License", "The whole text"), ("Classifier", "License :: OSI Approved :: MIT License")], "MIT"),
        ([BSD], ""),
        ([("Classifier", "License :: Other/Proprietary License")], ""),
        ([], ""),
    ],
)
def test_a_licence_is_what_the_metadata_surely_mean(fields: list[tuple[str, str]], expected: str) -> None:
    """ "BSD" may be any of several, so a person has to read the text."""
    assert licences.licence_of(Said("any", *fields)) == expected


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("MIT", True),
        ("Apache-2.0 OR GPL-3.0-only", True),
        ("Apache-2.0 AND GPL-3.0-only", False),
        ("Apache-2.0 AND MIT OR GPL-3.0-only", True),
        ("MIT AND (BSD-3-Clause OR GPL-2.0-only)", False),
        ("MIT AND (BSD-3-Clause OR ISC)", True),
        ("LGPL-3.0-or-later", False),
        ("", False),
    ],
)
def test_what_is_allowed_follows_the_expression(expression: str, expected: bool) -> None:
    """Whoever receives it may choose at OR, and has to keep both at AND."""
    assert licences.allowed(expression) is expected


def test_a_licence_that_is_not_allowed_is_named_with_the_way_out() -> None:
    """By package and version."""
    [fault] = licences.faults(
        [Said("copyleft", ("License-Expression", "AGPL-3.0-only")), Said("fine", ("License", "MIT"))]
    )
    assert fault.startswith("copyleft 1: AGPL-3.0-only; read its text")
    assert "release/licences.py" in fault


def test_everything_that_is_installed_here_has_an_allowed_licence() -> None:
    """What is shipped and the tools of the tests alike."""
    assert licences.faults(distributions()) == []


def test_the_page_lists_everything_that_is_shipped() -> None:
    """Each with the licence that its metadata have now. Other platforms may need a package less."""
    shipped = {normal(each.name): licences.licence_of(each) for each in closure("deviceshare")}
    del shipped["deviceshare"]
    assert shipped.items() <= licences.listed().items(), "python -m release.licences writes the page again"
