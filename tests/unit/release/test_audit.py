"""What pip-audit's answer means: an advisory, nothing known, or that it couldn't ask."""

import pytest
from click.testing import CliRunner

from release import audit

PINS = ["One==1.0", "two-parts==2.0"]
SOUND = {"dependencies": [{"name": "one", "version": "1.0", "vulns": []}, {"name": "two_parts", "version": "2.0"}]}
FAULTY = {
    "dependencies": [
        {"name": "one", "version": "1.0", "vulns": [{"id": "PYSEC-1", "fix_versions": ["1.1"]}]},
        {"name": "two-parts", "version": "2.0", "vulns": [{"id": "PYSEC-2", "fix_versions": []}]},
    ]
}
SKIPPED = {
    "dependencies": [
        {"name": "one", "skip_reason": "Dependency not found: one (1.0)"},
        {"name": "two-parts", "version": "2.0", "vulns": []},
    ]
}


def test_packages_without_advisories_are_sound() -> None:
    """However their names are written."""
    assert audit.judge(PINS, SOUND) == audit.Audit([], [], 2)


def test_an_advisory_is_named_with_the_versions_that_are_fixed() -> None:
    """So that the way out is in sight."""
    assert audit.judge(PINS, FAULTY).advisories == [
        "one 1.0: PYSEC-1; fixed in: 1.1",
        "two-parts 2.0: PYSEC-2; fixed in: none yet",
    ]


@pytest.mark.parametrize(
    ("said", "asked", "why"),
    [
        (SKIPPED, 1, "Dependency not found: one (1.0)"),
        ({"dependencies": SOUND["dependencies"][:1]}, 1, "two-parts==2.0: pip-audit didn't mention it"),
        ("no way to the host", 0, "pip-audit failed: no way to the host"),
        ({}, 0, "One==1.0: pip-audit didn't mention it"),
    ],
)
def test_what_could_not_be_asked_about_never_counts_as_sound(
    said: dict[str, object] | str, asked: int, why: str
) -> None:
    """pip-audit itself exits with 0 then."""
    found = audit.judge(PINS, said)
    assert found.asked == asked
    assert why in found.unasked


@pytest.mark.parametrize(("said", "status"), [("nothing", 2), (None, 0), (FAULTY, 1)])
def test_the_exit_status_tells_the_three_apart(
    monkeypatch: pytest.MonkeyPatch, said: dict[str, object] | str | None, status: int
) -> None:
    """And where nothing could be asked, the text says what to do."""

    def answer(pins: list[str], service: str) -> object:
        named = (pin.partition("==") for pin in pins)
        sound = {"dependencies": [{"name": name, "version": version} for name, _, version in named]}
        if isinstance(said, dict):
            return {"dependencies": [*sound["dependencies"], *FAULTY["dependencies"]]}
        return sound if said is None else said

    monkeypatch.setattr(audit, "_pip_audit", answer)
    done = CliRunner().invoke(audit.main)
    assert done.exit_code == status
    assert ("Run it where pip-audit reaches its service" in done.output) == (status == 2)
