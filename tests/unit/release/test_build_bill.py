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

from release import archives, build_bill, version, wheels
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
    text = build_bill.of_environment(tmp_path, tmp_path)
    bill = json.loads(text)

    valid(text)
    assert bill["metadata"]["component"]["purl"] == "pkg:pypi/deviceshare@7"
    assert [each["purl"] for each in bill["components"]] == ["pkg:pypi/some-part@1.2", "pkg:pypi/unsaid@3"]
    assert bill["components"][0]["licenses"] == [{"expression": "MIT"}]
    assert bill["dependencies"][0]["dependsOn"] == ["pkg:pypi/some-part@1.2", "pkg:pypi/unsaid@3"]
    assert text == build_bill.of_environment(tmp_path, tmp_path)


def test_the_images_bill_names_the_systems_packages(tmp_path: Path) -> None:
    """Those that dpkg calls installed; one that was removed but for its configuration isn't there."""
    info = tmp_path / "deviceshare-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: deviceshare\nVersion: 7\n")
    for name, text in (
        ("etc/os-release", "NAME=x\nID=debian\n"),
        (
            "var/lib/dpkg/status",
            (
                "Package: libc6\nStatus: install ok installed\nArchitecture: amd64\nVersion: 1:2.36-9+deb12u10\n\n"
                "Package: gone\nStatus: deinstall ok config-files\nArchitecture: amd64\nVersion: 1\n"
            ),
        ),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    text = build_bill.of_environment(tmp_path, tmp_path)

    valid(text)
    [package] = json.loads(text)["components"]
    assert (package["name"], package["version"]) == ("libc6", "1:2.36-9+deb12u10")
    assert package["purl"] == "pkg:deb/debian/libc6@1%3A2.36-9%2Bdeb12u10?arch=amd64"


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


def test_each_wheel_has_a_bill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what it requires, in the versions that it was tested with."""
    monkeypatch.setenv("SOURCE_DATE_EPOCH", str(archives.epoch()))
    wheels.build(tmp_path)
    [wheel] = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        [file] = [each for each in archive.namelist() if "/sboms/" in each]
        assert re.fullmatch(r"deviceshare-[^/]+\.dist-info/sboms/deviceshare\.cdx\.json", file)
        text = archive.read(file).decode()
        numbered = archive.read("deviceshare/_version.py").decode()
    valid(text)
    number = version.version()
    assert numbered == f'__version__ = "{number}"\n'
    bill = json.loads(text)
    assert bill["metadata"]["component"]["version"] == number
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
