"""The files that follow from others, and how values.yaml becomes a schema and a table."""

from pathlib import Path

import pytest

from charts import generate, values


def test_generated_files_are_up_to_date() -> None:
    """From the table of vendors, from the CRDs and from values.yaml."""
    assert [file for file, _ in generate.stale()] == [], "run: python -m charts.generate"


SAMPLE = """\
# Not of any value: an empty line follows.

# How many.
# @schema {minimum: 1}
count: 2

group:
  # What it is called | or not.
  name: ""
  # Free.
  # @schema {additionalProperties: {type: string}}
  labels: {a: b}
"""


@pytest.fixture
def described(tmp_path: Path) -> list[values.Value]:
    file = tmp_path / "values.yaml"
    file.write_text(SAMPLE)
    return values.read(file)


def test_a_comment_above_a_value_describes_it(described: list[values.Value]) -> None:
    """Nothing else does."""
    assert values.table(described).splitlines()[2:] == [
        "| `count` | `2` | How many. |",
        '| `group.name` | `""` | What it is called \\| or not. |',
        '| `group.labels` | `{"a": "b"}` | Free. |',
    ]


def test_a_default_tells_its_type_and_the_comment_more(described: list[values.Value]) -> None:
    """Keys that aren't there are refused, but for those of free maps."""
    assert values._schema(described[0]) == {"description": "How many.", "type": "integer", "minimum": 1}
    assert values._schema(described[1]) == {
        "type": "object",
        "properties": {
            "name": {"description": "What it is called | or not.", "type": "string"},
            "labels": {"description": "Free.", "type": "object", "additionalProperties": {"type": "string"}},
        },
        "additionalProperties": False,
    }


def test_a_value_without_a_description_is_refused(tmp_path: Path) -> None:
    """The table would have a hole."""
    file = tmp_path / "values.yaml"
    file.write_text("group:\n  name: x\n")

    with pytest.raises(ValueError, match=r"group\.name has no comment above it"):
        values.read(file)
