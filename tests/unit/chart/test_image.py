"""The Containerfile, as far as it can be read without building it."""

import re
from pathlib import Path

from charts import helm
from tests.unit.chart.objects import named

ROOT = Path(__file__).parents[3]
CONTAINERFILE = (ROOT / "Containerfile").read_text()


def test_image_and_chart_agree_on_the_user() -> None:
    """A number, so that a kubelet can tell that it isn't root."""
    security = named(helm.render({}), "Deployment")["spec"]["template"]["spec"]["securityContext"]

    assert f"\nUSER {security['runAsUser']}:{security['runAsGroup']}\n" in CONTAINERFILE


def test_the_build_sees_exactly_what_it_copies() -> None:
    """What .containerignore lets through."""
    copied = {
        name for line in re.findall(r"^COPY (?!--from)(.*) \S+$", CONTAINERFILE, re.MULTILINE) for name in line.split()
    }
    lines = (ROOT / ".containerignore").read_text().splitlines()

    assert "*" in lines
    assert {line.removeprefix("!") for line in lines if line.startswith("!")} == copied
    assert all((ROOT / name).exists() for name in copied)


def test_the_last_stage_brings_nothing_that_installs() -> None:
    """It copies the environment, and takes away pip and what it could be unpacked from."""
    last = CONTAINERFILE.split("\nFROM ")[-1]

    assert "pip install" not in last
    assert "COPY --from=build /opt/deviceshare /opt/deviceshare" in last
    assert "ensurepip" in last.split("RUN rm -rf")[1]
