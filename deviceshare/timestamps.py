"""Times in RFC 3339 and UTC, as Kubernetes writes them.

https://github.com/kubernetes/community/blob/master/contributors/devel/sig-architecture/api-conventions.md#units
"""

from datetime import UTC, datetime

from deviceshare.domain.objects.quantities import seconds_between


def timestamp(moment: datetime) -> str:
    """In whole seconds, as metav1.Time."""
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"


def now() -> str:
    """This moment, in whole seconds."""
    return timestamp(datetime.now(UTC))


def micro_now() -> str:
    """This moment with exactly six digits of the second, as metav1.MicroTime."""
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%fZ}"


def seconds_since(written: str, now: datetime) -> float | None:
    """How long ago a time in RFC 3339 was; None where it is none."""
    return seconds_between(written, now.isoformat())
