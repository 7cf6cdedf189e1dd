"""Every write of deviceshare: the stories that reach it, or why none does.

`faulty_deviceshare.py` names them: method, resource, the function that decides, and which of its writes it is.
"""

BOUNDARIES = ("before", "after")

POINTS: dict[str, tuple[str, ...]] = {
    # Bind, for groups and shares.
    "PATCH nodedevices protocol/bind.py _claim": ("groups", "shares", "quota", "idle", "share-rebind"),
    "PATCH shareddevicegroups/status protocol/holders.py settle": ("groups", "quota", "wiped-status"),
    "POST pods/binding protocol/bind.py post_binding": ("groups", "shares", "rebind"),
    "PATCH devicequotas/status protocol/reserve.py _write": ("quota",),
    "DELETE pods replica/impostor_watch.py ImpostorWatch._reconcile": ("impostor",),
    # Release.
    "PATCH nodedevices protocol/release.py release 1": ("groups", "shares", "quota", "idle", "deletion"),
    "PATCH shareddevicegroups/status protocol/release.py release 2": ("loser",),
    "PATCH pods protocol/holders.py fence_pod": ("loser", "kept"),
    "PATCH nodedevices protocol/release.py _leave 1": ("groups", "idle", "deletion", "lost-node"),
    "PATCH shareddevicegroups/status protocol/holders.py unsettle": ("groups", "idle", "deletion", "lost-node"),
    "PATCH nodedevices protocol/release.py _leave 2": ("groups", "idle", "deletion", "lost-node"),
    "PATCH nodedevices protocol/release.py release 3": ("shares", "loser"),
    "PATCH shareddevicegroups/status protocol/release.py _stay 1": ("marked-claim", "recreated-node", "kept"),
    "PATCH nodedevices protocol/release.py _stay 2": ("marked-claim", "recreated-node", "kept"),
    "PATCH shareddevicegroups leader/releaser.py Releaser._keep_finalizer 1": ("deletion",),
    "PATCH shareddevicegroups leader/releaser.py Releaser._keep_finalizer 2": ("groups", "quota", "deletion"),
    "PATCH shareddevicegroups leader/releaser.py Releaser._let_go": ("groups", "quota", "deletion"),
    # Preemption.
    "PATCH pods leader/preemptor.py Preemptor._nominate": ("preemption",),
    "POST pods/eviction leader/preemptor.py Preemptor._refusal": ("preemption",),
    # Rebind.
    "PATCH nodedevices protocol/rebind.py rebind": ("rebind", "share-rebind"),
    "PATCH pods protocol/rebind.py update_pods": ("rebind", "share-rebind", "resize"),
    "PATCH nodedevices protocol/rebind.py release_former": ("former",),
    "PATCH nodedevices leader/rebinder.py Rebinder._resize": ("resize",),
    # Repair.
    "POST nodedevices leader/ledgers.py Ledgers._create": ("lost-ledger",),
    "PATCH nodedevices protocol/repair.py fill": ("lost-ledger",),
    "PATCH nodedevices protocol/repair.py readopt": ("wiped-under-a-mark",),
    "PATCH nodedevices protocol/repair.py cover": ("edited-ledger", "deleted-claim"),
    "PATCH nodedevices leader/ledgers.py Ledgers._convert": ("edited-ledger",),
    "PATCH nodedevices leader/ledgers.py Ledgers._name_by_uuid": ("first-report",),
    "DELETE nodedevices leader/ledgers.py Ledgers._retire": ("lost-node",),
    "PATCH nodedevices leader/ledgers.py Ledgers._let_go": ("lost-node",),
    # What follows.
    "PATCH nodedevices/status leader/ledgers.py Ledgers._keep_devices": ("rebind", "share-rebind"),
    "PATCH nodedevices leader/ledgers.py Ledgers._keep_summary": ("groups", "rebind"),
    "PATCH shareddevicegroups/status leader/group_statuses.py GroupStatuses._reconcile": ("groups", "idle"),
    "PATCH pods leader/waker.py Waker._touch": ("groups", "shares"),
    "PATCH pods leader/controller.py Endings._reconcile": ("ended",),
    "PATCH shareddevicegroups/status protocol/reserve.py recount 1": ("loser",),
    "POST events kube/recorder.py EventRecorder._post 1": ("groups",),
    "PATCH events kube/recorder.py EventRecorder._post 2": ("idle", "wiped-status", "impostor"),
    # The election and the certificates.
    "PATCH leases leadership.py Elector._write": ("groups", "shares"),
    "PATCH secrets certificates/keeper.py Keeper._write_secret 2": ("emptied-secret",),
}
"""Of a replica that places pods by an extender."""

ONCE = frozenset(
    {
        "POST leases leadership.py Elector._take 1",
        "POST secrets certificates/keeper.py Keeper._write_secret 1",
        "PATCH mutatingwebhookconfigurations certificates/keeper.py write",
        "PATCH validatingwebhookconfigurations certificates/keeper.py write",
    }
)
"""Done once, when there is no lease, CA or bundle yet; the tests of deleted leases and new authorities pass them."""

ELSEWHERE: dict[str, str] = {
    "protocol/repair.py restore_claims": "claims that an older CRD pruned: tests/controlplane/test_older_crds.py",
    "protocol/bind.py lift": "placement by gates needs Kubernetes 1.27",
    "leader/gates.py _place": "placement by gates: it binds, as the extender does",
    "leader/gates.py _reconcile": "placement by gates",
    "leader/gates.py _delete": "placement by gates",
    "protocol/holders.py _fence_status": "pods that refuse an annotation: tests/controlplane/rough/test_strangers.py",
    "leader/scaler.py _reconcile 1": "scaling pods, off by default: tests/unit/loops/test_scaler.py",
    "leader/scaler.py _reconcile 2": "the same",
    "leader/scaler.py _show": "the same",
    **{
        f"leader/holds.py {function}": "holds need Kubernetes 1.34: test_holds.py of tests/unit and tests/controlplane"
        for function in (*("_reconcile", "_keep 1", "_keep 2", "_keep 3", "_give_up 1", "_give_up 2"), "_delete_pod")
    },
    "leader/uninjected_pods.py _delete": "pods past admission: tests/controlplane/rough/test_admission_away.py",
    "agent/violations.py _reconcile": "an agent's",
    "agent/own_node.py _reconcile": "an agent's",
    "agent/own_node.py _write": "an agent's",
    "replica/binder.py __call__": "no write: a function of that name",
    "web/extender.py _bind": "no write: it calls the binder",
    "protocol/reserve.py reserve 1": "no write: it calls _write",
    "protocol/reserve.py reserve 2": "no write: it calls _write",
    "protocol/reserve.py recount 2": "no write: it calls _write",
    "protocol/bind.py write_claims": "named by who calls it",
    "protocol/holders.py fence": "named by who calls it",
    "protocol/holders.py _write": "named by who calls it",
    "leader/releaser.py _write_finalizers": "named by who calls it",
    "protocol/release.py let_go": "of holds, as in leader/holds.py",
    "protocol/release.py write_hold": "the same",
    "leader/context.py delete_unchanged": "named by who calls it",
    "leadership.py _take 2": "no write: it calls _write",
    "leadership.py _release": "no write: it calls _write",
}
"""Sites in the source that no story reaches, and why."""
