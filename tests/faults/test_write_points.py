"""The table of writes is complete: each call in deviceshare's source that writes is in it."""

from pathlib import Path

import pytest

import deviceshare
from tests.faults.faulty_deviceshare import PASSED_THROUGH, resource, writes_in
from tests.faults.repertoire import STORIES
from tests.faults.write_points import ELSEWHERE, ONCE, POINTS

ROOT = Path(deviceshare.__file__).parent
ROOMS = ("agent", "certificates", "kube", "loops", "nvidia", "run", "web")


def sites() -> set[str]:
    """As `faulty_deviceshare.py` would name them, without their classes."""
    found = set()
    for file in (each for room in ROOMS for each in (ROOT / room).rglob("*.py")):
        path = str(file.relative_to(ROOT))
        if path.startswith(PASSED_THROUGH):
            continue
        for function, lines in writes_in(str(file)).items():
            numbers = [""] if len(lines) == 1 else [f" {n + 1}" for n in range(len(lines))]
            found |= {f"{path.removeprefix('loops/')} {function}{number}" for number in numbers}
    return found


def without_class(point: str) -> str:
    """`leadership.py _write` of PATCH leases leadership.py Elector._write."""
    _, _, file, function = point.split(" ", 3)
    return f"{file} {function.rpartition('.')[2]}"


def test_every_write_in_the_source_is_in_the_table() -> None:
    """And nothing else is."""
    named = {without_class(point) for point in (*POINTS, *ONCE)}
    found = sites()
    assert len(found) > 30
    assert sorted(found - named - ELSEWHERE.keys()) == []
    helpers = {each for each in named if each.startswith("protocol/holders.py ")}
    assert sorted((named | ELSEWHERE.keys()) - found - helpers) == []


def test_every_write_has_a_story() -> None:
    """That exists."""
    assert {story for stories in POINTS.values() for story in stories} <= STORIES.keys()


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("/api/v1/namespaces/default/pods/one/binding", "pods/binding"),
        ("/apis/deviceshare.io/v1alpha1/nodedevices/node-1", "nodedevices"),
        ("/apis/deviceshare.io/v1alpha1/shareddevicegroups/one/status", "shareddevicegroups/status"),
        ("/api/v1/namespaces/default/events", "events"),
        ("/api/v1/namespaces/default", "namespaces"),
    ],
)
def test_a_request_is_named_by_its_resource(path: str, named: str) -> None:
    """And its subresource."""
    assert resource(path) == named
