"""The bills of materials that builds make: the image's and the wheel's."""

import json
import re
import subprocess
import sys
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

import deviceshare
from release import build_bill, wheels
from release.closure import closure, normal

ROOT = Path(__file__).parents[3]


def valid(text: str) -> None:
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None


def test_the_images_bill_names_all_that_is_installed_there(tmp_path: Path) -> None:
    """With versions and licences, in the form of its specification; the same environment gives the same bill."""
    for name, fields in (
        ("deviceshare", "Version: 7\nLicense-Expression: Apache-2.0"),
        ("Some_Part", "Version: 1.2\nLicense: MIT"),
        ("unsaid", "Version: 3"),
    ):
        info = tmp_path / f"{name}-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\n{fields}\n")
    text = build_bill.of_environment(tmp_path)
    bill = json.loads(text)

    valid(text)
    assert bill["metadata"]["component"]["purl"] == "pkg:pypi/deviceshare@7"
    assert [each["purl"] for each in bill["components"]] == ["pkg:pypi/some-part@1.2", "pkg:pypi/unsaid@3"]
    assert bill["components"][0]["licenses"] == [{"expression": "MIT"}]
    assert bill["dependencies"][0]["dependsOn"] == ["pkg:pypi/some-part@1.2", "pkg:pypi/unsaid@3"]
    assert text == build_bill.of_environment(tmp_path)


def test_an_environment_without_deviceshare_has_no_bill(tmp_path: Path) -> None:
    """The wrong directory must not give an empty one."""
    with pytest.raises(ValueError, match="has no deviceshare; it has nothing"):
        build_bill.of_environment(tmp_path)


def test_the_bill_of_what_is_installed_here_is_valid() -> None:
    """Real metadata have every form of licence there is."""
    text = build_bill.of_environment(Path(str(distribution("deviceshare").locate_file(""))))
    valid(text)
    named = {normal(each["name"]) for each in json.loads(text)["components"]}
    assert {normal(each.name) for each in closure("deviceshare")} - {"deviceshare"} <= named


def test_each_wheel_has_a_bill(tmp_path: Path) -> None:
    """Of what it requires, in the versions that it was tested with."""
    wheels.build(tmp_path)
    [wheel] = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        [file] = [each for each in archive.namelist() if "/sboms/" in each]
        assert re.fullmatch(r"deviceshare-[^/]+\.dist-info/sboms/deviceshare\.cdx\.json", file)
        text = archive.read(file).decode()
    valid(text)
    bill = json.loads(text)
    assert bill["metadata"]["component"]["version"] == deviceshare.__version__
    assert bill["metadata"]["component"]["licenses"] == [{"expression": "Apache-2.0"}]
    [tested] = re.findall(r"^aiohttp==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert f"pkg:pypi/aiohttp@{tested}" in {each["purl"] for each in bill["components"]}


def test_the_image_is_built_with_a_bill() -> None:
    """By the command that this repository has, where the documentation says; the standard library is enough for it."""
    containerfile = (ROOT / "Containerfile").read_text()
    assert "python -m release.build_bill" in containerfile
    assert "/opt/deviceshare/share/sbom/deviceshare.cdx.json" in (ROOT / "docs" / "licences.md").read_text()
    command = [
        sys.executable,
        "-I",
        "-S",
        "-c",
        f"import sys; sys.path.append({str(ROOT)!r}); import release.build_bill",
    ]
    assert subprocess.run(command, check=False, capture_output=True).stderr == b""
