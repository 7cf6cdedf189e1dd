"""Lists of words in a sentence."""

import pytest

from deviceshare.domain.objects.devices import Device, described
from deviceshare.domain.wording import listed


@pytest.mark.parametrize(
    ("words", "most", "said"),
    [
        ([], 0, ""),
        (["a"], 0, "a"),
        (["a", "b"], 0, "a and b"),
        (["a", "b", "c"], 0, "a, b and c"),
        (["a", "b", "c"], 3, "a, b and c"),
        (["a", "b", "c"], 2, "a, b and 1 more"),
        (["a", "b", "c"], 1, "a and 2 more"),
    ],
)
def test_words_are_listed_as_people_do(words: list[str], most: int, said: str) -> None:
    """With commas, and one `and`; what is left out is counted."""
    assert listed(words, most=most) == said
    assert listed(words, most=most, link="or") == said.replace(" and ", " or ")


def test_devices_are_described_by_resource() -> None:
    """As they are, or as a status names them."""
    devices = [Device("nvidia.com/gpu", 1), Device("amd.com/gpu", 2), Device("nvidia.com/gpu", 0)]
    assert described(devices) == "amd.com/gpu 2 and nvidia.com/gpu 0,1"
    assert described({"nvidia.com/gpu": "0,1"}) == "nvidia.com/gpu 0,1"
