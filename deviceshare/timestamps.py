"""Times in RFC 3339 and UTC, as Kubernetes writes them.

https://github.com/kubernetes/community/blob/master/contributors/devel/sig-architecture/api-conventions.md#units
"""

from datetime import UTC, datetime


def timestamp(moment: datetime) -> str:
    """In whole seconds, as metav1.Time."""
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"


def now() -> str:
    """This moment, in whole seconds."""
    return timestamp(datetime.now(UTC))


def micro_now() -> str:
    """This moment with exactly six digits of the second, as metav1.MicroTime."""
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%fZ}"
