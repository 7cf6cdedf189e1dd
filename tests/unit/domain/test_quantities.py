"""Kubernetes quantities are read exactly, however they are written, and never at any length."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceshare.domain.objects.quantities import MAX, Quantity, amount, is_some, whole

SUFFIXES = {"": "1", "k": "1000", "M": "1000000", "Ki": "1024", "m": "1/1000", "e3": "1000", "E-1": "1/10"}


@pytest.mark.parametrize(
    ("written", "number"),
    [
        *[("0", 0), ("1", 1), ("+1", 1), ("1k", 1000), ("1Ki", 1024), ("1e0", 1), ("1E3", 1000), ("1E", 10**18)],
        *[("4.", 4), ("2000m", 2), (" 4 ", 4), (4, 4), (2.0, 2)],
        *[(None, 0), ("0e999999999999", 0), ("-0", 0), ("0.000Ki", 0)],
    ],
)
def test_a_number_of_devices_is_read_however_it_is_written(written: Quantity, number: int) -> None:
    """The API server writes the short form, manifests have any."""
    assert whole(written) == number
    assert is_some(written) == (number != 0)


@pytest.mark.parametrize("written", ["", "many", "Ki", "1 2", "0x10", "1e", "1ki", "--1", ".", "٣", "0" * 65, "1.5.2"])
def test_what_cannot_be_read_counts_as_some(written: str) -> None:
    """A device whose request can't be read must not be allocated to another pod."""
    assert amount(written) is None
    assert is_some(written)
    assert whole(written) is None


@pytest.mark.parametrize("written", [".5", "100m", "1e-9", "1e-99999999999", "-1", "1n"])
def test_what_is_no_number_of_devices_is_some_all_the_same(written: str) -> None:
    """A part of one is not none."""
    assert is_some(written)
    assert whole(written) is None


def test_no_exponent_costs_more_than_another() -> None:
    """The API server caps what is too large and rounds up what is too small."""
    assert amount("1e999999999999999999999999999999") == MAX
    assert amount("-1e999999999999") == -MAX
    assert amount("1e-999999999999") == Fraction(1, 10**9)


@given(st.integers(0, 10**6), st.integers(0, 999), st.sampled_from(sorted(SUFFIXES)))
def test_an_amount_is_exact(before: int, after: int, suffix: str) -> None:
    """No digit is lost on the way, as it would be in binary floating point."""
    exact = (before + Fraction(after, 1000)) * Fraction(SUFFIXES[suffix])
    assert amount(f"{before}.{after:03}{suffix}") == min(exact, MAX)
