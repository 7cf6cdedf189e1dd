"""What the tests of the admission send through the domain goes through the admission policies as well."""

import os
from collections import Counter
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, Final

import pytest

from tests.unit.policies import sameness

_MOST: Final = 20
"""Objects of one test, since properties have hundreds."""

Check = Callable[..., object]

_CHECKS: Final[dict[str, dict[str, Check]]] = {
    "test_injection": {"injection": lambda pod, *_: sameness.injected_the_same(pod)},
    "test_share_injection": {"injection": sameness.injected_the_same},
    "test_pod_review": {"read": sameness.reviewed_the_same},
    "test_share_review": {"read": sameness.reviewed_the_same},
    "test_bypasses": {"found": lambda *given, **named: sameness.bypassing_the_same(_a_pod(*given, **named))},
    "test_group_review": {
        "review_new_group": lambda group: sameness.grouped_the_same(None, group),
        "review_changed_group": sameness.grouped_the_same,
        "review_deleted_group": sameness.deleted_the_same,
    },
    "test_allowed_namespaces": {
        "review_new_group": lambda group: sameness.grouped_the_same(None, group),
        "review_changed_group": sameness.grouped_the_same,
    },
    "test_node_devices_review": {
        "review_report": sameness.reported_the_same,
        "review_repair": sameness.repaired_the_same,
        "review_deletion": sameness.deleted_ledger_the_same,
    },
}
"""By module, the functions that its tests give objects to, and what is then asserted of the policies."""


@pytest.fixture(scope="module", autouse=True)
def beside_the_policies(request: pytest.FixtureRequest) -> Iterator[None]:
    """Asserts that the policies agree, whenever one of these functions is called."""
    with pytest.MonkeyPatch.context() as patch:
        for name, check in _CHECKS.get(request.module.__name__.rpartition(".")[2], {}).items():
            patch.setattr(request.module, name, _checked(getattr(request.module, name), check))
        yield


def _checked(function: Callable[..., Any], check: Check) -> Callable[..., Any]:
    times: Counter[str] = Counter()

    @wraps(function)
    def both(*given: Any, **named: Any) -> Any:
        test = os.environ["PYTEST_CURRENT_TEST"]
        times[test] += 1
        if times[test] <= _MOST:
            check(*given, **named)
        return function(*given, **named)

    return both


def _a_pod(spec: Any = None, container: Any = None, annotations: Any = None) -> dict[str, Any]:
    body = {"name": "main", **(container or {})}
    return {"metadata": {"annotations": annotations}, "spec": {"containers": [body], **(spec or {})}}
