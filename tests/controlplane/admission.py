"""Webhooks and policies on a control plane: which of them a sandbox has, and a while without them."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from deviceshare.domain.admission.settings import POLICIES
from tests.controlplane.pool import Pool, pod

MUTATION = {
    False: ("mutatingwebhookconfiguration", "deviceshare"),
    True: ("mutatingadmissionpolicybinding", "deviceshare-mutate-pods"),
}
"""What injects pods, by whether policies do."""
VALIDATION = {
    False: ("validatingwebhookconfiguration", "deviceshare"),
    True: ("validatingadmissionpolicybinding", "deviceshare-pods", "deviceshare-groups"),
}
"""What validates pods and groups."""


def refused_with(said: str, text: str) -> bool:
    """Whether the API server refused in our words, which begin with `text`; they come after its own."""
    return re.search(rf"denied (the )?request: {re.escape(text)}", said) is not None


@contextmanager
def injection_away(pool: Pool) -> Iterator[None]:
    """Nothing injects pods, as if deviceshare couldn't be reached before 1.28: the webhook's failurePolicy is Ignore.

    A policy that can't be evaluated refuses; the policies are away only where somebody deleted them, both.
    """
    policies = pool.sandbox.plan.admission == POLICIES
    away = [MUTATION[policies]] + ([VALIDATION[True]] if policies else [])
    dry = json.dumps(pod("probe", "probe"))
    ask = ("create", "--dry-run=server", "-o", "jsonpath={.metadata.labels}", "-n", pool.name, "-f", "-")

    def injected() -> bool:
        done = pool.sandbox.kubectl(*ask, stdin=dry)
        return done.returncode != 0 or bool(done.stdout)

    with _without(pool, away, injected):
        yield


@contextmanager
def validation_away(pool: Pool, user: str) -> Iterator[None]:
    """As if what validates had not been installed; `user` is a pod of a group, by which it is noticed."""

    def refused() -> bool:
        change = ("annotate", "pod", user, "-n", pool.name, "deviceshare.io/pod-uid-", "--dry-run=server")
        return pool.sandbox.kubectl(*change).returncode != 0

    with _without(pool, [VALIDATION[pool.sandbox.plan.admission == POLICIES]], refused):
        yield


@contextmanager
def _without(pool: Pool, away: list[tuple[str, ...]], in_force: Callable[[], bool]) -> Iterator[None]:
    for kind in away:
        pool.kubectl("delete", *kind)
    try:
        # The API server's own watch of them lags a little.
        pool.eventually(in_force, lambda still: not still)
        yield
    finally:
        pool.kubectl("apply", "-f", str(pool.sandbox.admission_manifest))
        pool.eventually(in_force)
