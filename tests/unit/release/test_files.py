"""The small files of a release: chart package, bill of materials, krew's manifest, checksums."""

import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path

import click
import pytest
import yaml
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from helm_python import Chart

import deviceshare
from charts import helm
from release import __main__ as release
from release import (
    archives,
    bill_of_materials,
    chart_package,
    checksums,
    hashed_requirements,
    krew_manifest,
    version,
    wheels,
)
from release.closure import closure, normal

ROOT = Path(__file__).parents[3]


def test_the_charts_package_is_a_chart_and_the_same_each_time(tmp_path: Path) -> None:
    """Helm reads it; what .helmignore names isn't in it."""
    (tmp_path / "again").mkdir()
    with chart_package.numbered("1.2.0.dev7+g25e2181") as copy:
        package, again = chart_package.write(tmp_path, copy), chart_package.write(tmp_path / "again", copy)

    assert package.name == "deviceshare-1.2.0-dev.7+g25e2181.tgz"
    assert package.read_bytes() == again.read_bytes()
    with Chart.load_archive(package.read_bytes()) as chart:
        assert chart.name == "deviceshare"
    files = archives.read_tar(package)
    assert "deviceshare/templates/deployment.yaml" in files
    assert not [name for name in files if name.startswith("deviceshare/ci/")]
    said = yaml.safe_load(files["deviceshare/Chart.yaml"])
    assert (said["version"], said["appVersion"]) == ("1.2.0-dev.7+g25e2181", "1.2.0.dev7_g25e2181")


def test_a_releases_chart_and_manifests_name_its_own_image(tmp_path: Path) -> None:
    """Nobody who installs a release has to know its version."""
    release.small(tmp_path, "1.2.0.dev7+g25e2181")
    objects = list(yaml.safe_load_all((tmp_path / "install.yaml").read_text()))

    [deployment] = [each for each in objects if each["kind"] == "Deployment"]
    named = {each["name"]: each["image"] for each in deployment["spec"]["template"]["spec"]["containers"]}
    assert named["deviceshare"] == "localhost/deviceshare:1.2.0.dev7_g25e2181"
    assert deployment["metadata"]["labels"]["app.kubernetes.io/version"] == "1.2.0.dev7_g25e2181"


@pytest.mark.parametrize(
    ("python", "helm"),
    [
        ("0.1.0", "0.1.0"),
        ("1.2.0rc1", "1.2.0-rc.1"),
        ("0.1.0.dev873+g25e2181", "0.1.0-dev.873+g25e2181"),
        ("0.1.0.dev873+g25e2181.d20261128", "0.1.0-dev.873+g25e2181.d20261128"),
    ],
)
def test_a_version_has_a_form_for_helm(python: str, helm: str) -> None:
    """By https://semver.org; versions without such a form are refused."""
    assert version.semantic(python) == helm
    with pytest.raises(ValueError, match="1!2 has no form"):
        version.semantic("1!2")


def test_two_commits_have_two_versions(tmp_path: Path) -> None:
    """As hatchling's settings in pyproject.toml have git say it; a tag is a version."""

    def git(*words: str) -> None:
        identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        subprocess.run(["git", *identity, *words], cwd=tmp_path, check=True, capture_output=True)

    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    git("init")
    git("add", ".")
    git("commit", "-m", "one")
    first = version.version(tmp_path)
    git("commit", "--allow-empty", "-m", "two")
    second = version.version(tmp_path)
    git("tag", "v0.1.0")

    assert re.fullmatch(r"0\.1\.0\.dev1\+g[0-9a-f]+", first)
    assert re.fullmatch(r"0\.1\.0\.dev2\+g[0-9a-f]+", second)
    assert version.version(tmp_path) == "0.1.0"


def test_the_charts_annotations_name_its_crds() -> None:
    """Artifact Hub shows them; each by its name and version, and the example is one that the CRD allows."""
    annotations = chart_package.metadata()["annotations"]
    named = {each["name"]: each for each in yaml.safe_load(annotations["artifacthub.io/crds"])}
    defined = [yaml.safe_load(file.read_text()) for file in (helm.CHART / "files/crds").iterdir()]

    assert {crd["metadata"]["name"] for crd in defined} == set(named)
    for crd in defined:
        said = named[crd["metadata"]["name"]]
        assert (said["kind"], said["version"]) == (crd["spec"]["names"]["kind"], crd["spec"]["versions"][0]["name"])
    assert {each["kind"] for each in yaml.safe_load(annotations["artifacthub.io/crdsExamples"])} <= {
        each["kind"] for each in named.values()
    }


def test_the_bill_of_materials_is_valid_and_complete() -> None:
    """Every package that pip installs with deviceshare, with a licence, and none of the tools of its tests."""
    text = bill_of_materials.bill("deviceshare", "1.2.3")
    bill = json.loads(text)
    named = {each["name"].lower(): each for each in bill["components"]}

    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    assert bill["metadata"]["component"]["name"] == "deviceshare"
    assert {"aiohttp", "msgspec", "multidict", "yarl"} <= set(named)
    assert not {"pytest", "ruff", "helm-python-sdk"} & set(named)
    assert [name for name, each in named.items() if not each.get("licenses")] == []
    edges = {each["ref"]: each.get("dependsOn", []) for each in bill["dependencies"]}
    assert any(ref.startswith("pkg:pypi/aiohttp@") for ref in edges[bill["metadata"]["component"]["bom-ref"]])
    assert bill["metadata"]["component"]["version"] == "1.2.3"
    assert text == bill_of_materials.bill("deviceshare", "1.2.3")


def test_krews_manifest_names_its_archive_by_sum_and_place(tmp_path: Path) -> None:
    """For Linux on both machines and macOS; the archive has the program under the plugin's name."""
    program = tmp_path / "deviceshare.pyz"
    program.write_bytes(b"#!/usr/bin/env python3\n")
    archive = krew_manifest.write_archive(tmp_path, program, ROOT / "LICENSE")
    folder = "https://example.org/a/releases/download/v1.2.3"
    manifest = yaml.safe_load(krew_manifest.manifest("1.2.3", archive, f"{folder}/"))

    assert manifest["spec"]["version"] == "v1.2.3"
    assert manifest["spec"]["homepage"] == "https://example.org/a"
    assert len(manifest["spec"]["platforms"]) == len(wheels.MACHINES)
    for platform in manifest["spec"]["platforms"]:
        assert platform["uri"] == f"{folder}/{archive.name}"
        assert platform["sha256"] == hashlib.sha256(archive.read_bytes()).hexdigest()
        assert {each["from"] for each in platform["files"]} == set(archives.read_tar(archive))
        assert platform["bin"] in archives.read_tar(archive)


def test_krew_accepts_the_manifest(tmp_path: Path) -> None:
    """By the rules of its validate-krew-manifest, which can't be built here.

    https://github.com/kubernetes-sigs/krew/blob/master/internal/index/validation/validate.go
    """
    program = tmp_path / "deviceshare.pyz"
    program.write_bytes(b"#!/usr/bin/env python3\n")
    archive = krew_manifest.write_archive(tmp_path, program, ROOT / "LICENSE")
    said = version.semantic("0.1.0.dev873+g25e2181")
    manifest = yaml.safe_load(krew_manifest.manifest(said, archive, "https://example.org"))
    name, extension = krew_manifest.NAME.split(".")
    spec = manifest["spec"]

    assert (manifest["apiVersion"], manifest["kind"]) == ("krew.googlecontainertools.github.com/v1alpha2", "Plugin")
    assert manifest["metadata"]["name"] == name
    assert re.fullmatch(r"[\w-]+", name)
    assert extension == "yaml"
    assert re.fullmatch(r"v\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?", spec["version"])
    assert spec["shortDescription"]
    assert "\n" not in spec["shortDescription"]
    assert all(re.fullmatch(r"[a-f0-9]{64}", each["sha256"]) for each in spec["platforms"])
    assert all(each["uri"] and each["bin"] and each["files"] for each in spec["platforms"])
    assert all(file["from"] and file["to"] for each in spec["platforms"] for file in each["files"])
    pairs = [tuple(each["selector"]["matchLabels"].values()) for each in spec["platforms"]]
    assert set(pairs) == {("linux", "amd64"), ("linux", "arm64"), ("darwin", "arm64")}
    assert len(pairs) == len(set(pairs))
    assert "LICENSE" in archives.read_tar(archive)


def test_checksums_are_checked_by_sha256sum(tmp_path: Path) -> None:
    """A changed file is found."""
    (tmp_path / "one").write_text("1")
    (tmp_path / "two").write_text("2")
    checksums.write(tmp_path)

    def check() -> int:
        command = ["sha256sum", "--check", "--quiet", checksums.NAME]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, check=False).returncode

    assert check() == 0
    (tmp_path / "two").write_text("3")
    assert check() == 1


def test_requirements_have_a_hash_for_each_wheel_and_no_address(tmp_path: Path) -> None:
    """A wheel for each platform is one more hash of the same version."""
    part = next(each for each in closure("deviceshare") if normal(each.name) == "msgspec")
    fetched = [
        tmp_path / f"msgspec-{part.version}-cp311-cp311-linux_{machine}.whl" for machine in ("x86_64", "aarch64")
    ]
    for wheel in fetched:
        wheel.write_text(wheel.name)
    text = hashed_requirements.requirements([part], fetched)

    assert f"msgspec=={part.version} \\\n" in text
    assert set(re.findall(r"--hash=sha256:(\w+)", text)) == {
        hashlib.sha256(wheel.read_bytes()).hexdigest() for wheel in fetched
    }
    assert "://" not in text
    with pytest.raises(ValueError, match="no wheel of msgspec"):
        hashed_requirements.requirements([part], [])


def test_a_release_of_another_version_than_the_tags_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is made."""
    release._version(f"v{version.version()}")
    monkeypatch.setenv("SETUPTOOLS_SCM_PRETEND_VERSION", version.UNKNOWN)
    with pytest.raises(click.ClickException, match="git can't say"):
        release._version(None)
    assert f'fallback_version = "{version.UNKNOWN}"' in (ROOT / "pyproject.toml").read_text()
    monkeypatch.delenv("SETUPTOOLS_SCM_PRETEND_VERSION")
    with pytest.raises(click.ClickException, match=r"the tag is v99\.0\.0"):
        release._version("v99.0.0")


def test_the_workflow_makes_a_release_by_tox_and_publishes_what_that_makes() -> None:
    """It knows no step of its own that a person couldn't run."""
    workflow = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())
    making, publishing = (workflow["jobs"][name]["steps"] for name in ("files", "publish"))

    assert "tox run -e release" in "\n".join(step.get("run", "") for step in making)
    assert "[testenv:release]" in (ROOT / "tox.ini").read_text()
    secrets = next(step["with"]["secret-files"] for step in publishing if "build-push" in step.get("uses", ""))
    used = set(re.findall(r"id=([\w-]+)", (ROOT / "Containerfile").read_text()))
    assert {line.split("=")[0] for line in secrets.split()} <= used


def test_the_job_that_runs_the_code_of_packages_may_write_nothing() -> None:
    """Whatever one of them does, it publishes nothing in our name."""
    workflow = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())

    assert workflow["permissions"] == {}
    assert workflow["jobs"]["files"]["permissions"] == {"contents": "read"}
    assert not any("tox" in step.get("run", "") for step in workflow["jobs"]["publish"]["steps"])


def test_the_package_says_that_it_is_typed() -> None:
    """PEP 561: type checkers read the annotations of an installed package with this file only."""
    assert (Path(deviceshare.__file__).parent / "py.typed").is_file()
