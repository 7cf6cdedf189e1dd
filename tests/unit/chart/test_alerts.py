"""The alerts and the dashboard: valid PromQL on metrics and labels that there are, which fires when it should."""

import json
import re
from pathlib import Path
from typing import Any

import promql_parser
import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry, Gauge

from charts import helm
from deviceshare.agent.metrics import AgentMetrics, of_devices
from deviceshare.domain.answers.census import measure
from deviceshare.domain.objects.hardware import Hardware, Part
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.usage import Usage
from deviceshare.domain.placement.device_states import Health, Use
from deviceshare.domain.placement.fleet import Fleet
from deviceshare.metrics import Metrics
from docs.generate import gauge_of
from tests.unit.chart.metric_names import Scrape, Vector, exported, selectors
from tests.unit.chart.objects import Json, default_file, named, with_values
from tests.unit.domain.objects import GPU, a_fleet, a_group, a_ledger, a_node, a_pod, gpus
from tests.unit.domain.test_device_quota import a_quota

RULES: Json = {
    "metrics": {"prometheusRule": {"enabled": True}, "serviceMonitor": {"enabled": True}},
    "agent": {"enabled": True},
}
RUNBOOK = Path("docs/runbook.md")
NOON = "2026-01-01T12:00:00Z"


def alerts(*changes: Json) -> dict[str, Any]:
    """By name."""
    spec = named(helm.render(with_values(RULES, *changes)), "PrometheusRule")["spec"]
    return {each["alert"]: each for group in spec["groups"] for each in group["rules"]}


def expressions() -> list[str]:
    """Of every alert and every panel, the latter's variables as Grafana fills them in."""
    panels = json.loads(default_file("files/dashboard.json"))["panels"]
    asked = [re.sub(r"\$\w+", ".*", target["expr"]) for panel in panels for target in panel.get("targets", ())]
    without = alerts({"metrics": {"groups": 0}})
    return asked + [each["expr"] for each in (*alerts().values(), *without.values())]


def fires(alert: str, scrape: Scrape) -> Vector:
    return scrape.ask(promql_parser.parse(alerts()[alert]["expr"]))


def created(pod: Pod, since: str) -> Pod:
    """The pod, created then."""
    return replace(pod, metadata=replace(pod.metadata, creation_timestamp=since))


def of_groups(pods: tuple[str, ...] = (), *, leading: bool = True, phase: str = "Bound", idle: str = "") -> Metrics:
    """The metrics at noon of a group that has held two GPUs, with these waiting pods, created by then."""
    group = a_group("team", node="n1", status={"phase": phase, "idleSince": idle})
    waiting = [created(a_pod(f"p{at}", "team"), since) for at, since in enumerate(pods)]
    fleet = a_fleet(a_node(), ledgers=(a_ledger(team=gpus(0, 1)),))
    metrics = Metrics()
    metrics.watch(lambda: measure(fleet, [group], waiting, [], leads=leading, most_groups=10, now=NOON))
    return metrics


@pytest.mark.parametrize("expression", expressions())
def test_every_expression_asks_for_metrics_and_labels_that_there_are(expression: str) -> None:
    """By the names that Prometheus stores them under; a label that no metric has would match nothing for ever."""
    known = exported()
    asked = selectors(promql_parser.parse(expression))
    assert asked
    for each in asked:
        assert each.name in known
        assert {matcher.name for matcher in each.matchers.matchers} <= known[each.name]
    aggregated = {
        label for words in re.findall(r"\b(?:by|on) \(([^)]*)\)", expression) for label in words.split(", ") if label
    }
    assert aggregated <= {label for each in asked for label in known[each.name or ""]}


def test_every_alert_says_what_it_means_and_where_to_read_on() -> None:
    """The runbook has a section on each, and on none that there isn't."""
    sections = set(re.findall(r"^## (Deviceshare\w+)$", RUNBOOK.read_text(), re.MULTILINE))
    assert sections == set(alerts())
    served = alerts({"metrics": {"prometheusRule": {"runbookURL": "https://docs.example/runbook"}}})
    for name, alert in alerts().items():
        assert alert["labels"]["severity"] in ("critical", "warning", "info")
        assert alert["annotations"]["summary"] and alert["annotations"]["description"]
        assert alert["annotations"]["runbook"] == f"docs/runbook.md#{name.lower()}"
        assert served[name]["annotations"]["runbook_url"] == f"https://docs.example/runbook#{name.lower()}"


def test_alerts_name_only_labels_that_their_expression_leaves() -> None:
    """Else the text has a gap where the group's name should be."""
    for alert in alerts().values():
        named_labels = set(re.findall(r"\$labels\.(\w+)", json.dumps(alert["annotations"])))
        first = re.search(r"\bby \(([^)]*)\)", alert["expr"])
        assert named_labels <= set(first.group(1).split(", ") if first else ())


def test_without_metrics_of_groups_no_alert_asks_for_them() -> None:
    """That a group is degraded is still told, though not which."""
    rules = alerts({"metrics": {"groups": 0}})
    assert "deviceshare_group_" not in json.dumps([each["expr"] for each in rules.values()])
    assert "DeviceshareGroupDegraded" in rules and "DeviceshareGroupIdle" not in rules
    containers = named(helm.render({"metrics": {"groups": 0}}), "Deployment")["spec"]["template"]["spec"]["containers"]
    [container] = [each for each in containers if each["name"] == "deviceshare"]
    assert "--group-metrics=0" in container["args"]


def test_a_degraded_group_is_told() -> None:
    """By its name, while it is."""
    team = {frozenset({("group", "team")}): 1.0}
    assert fires("DeviceshareGroupDegraded", Scrape(of_groups(phase="Degraded").registry)) == team
    assert fires("DeviceshareGroupDegraded", Scrape(of_groups().registry)) == {}


def test_a_group_that_waits_for_long_is_told() -> None:
    """By its oldest pod."""
    late = Scrape(of_groups(("2026-01-01T10:30:00Z", "2026-01-01T11:59:00Z")).registry)
    assert fires("DeviceshareGroupWaiting", late) == {frozenset({("group", "team")}): 5400.0}
    assert fires("DeviceshareGroupWaiting", Scrape(of_groups(("2026-01-01T11:30:00Z",)).registry)) == {}
    assert fires("DeviceshareGroupWaiting", Scrape(of_groups(("2026-01-01T10:30:00Z",), leading=False).registry)) == {}


def test_an_idle_group_is_told() -> None:
    """After a day, unless another time is chosen."""
    idle = Scrape(of_groups(idle="2025-12-30T12:00:00Z").registry)
    assert fires("DeviceshareGroupIdle", idle) == {frozenset({("group", "team")}): 2 * 86400.0}
    assert fires("DeviceshareGroupIdle", Scrape(of_groups(idle="2026-01-01T11:00:00Z").registry)) == {}


def test_nobody_who_leads_is_told() -> None:
    """Also where nothing is scraped at all."""
    metrics = Metrics()
    assert fires("DeviceshareNoLeader", Scrape(metrics.registry)) == {frozenset(): 0.0}
    metrics.leader.set(1)
    assert fires("DeviceshareNoLeader", Scrape(metrics.registry)) == {}


def test_uncovered_pods_count_where_the_leader_saw_them() -> None:
    """What a former leader last saw is out of date."""
    metrics = Metrics()
    metrics.uncovered_pods.set(2)
    assert fires("DeviceshareUncoveredPods", Scrape(metrics.registry)) == {}
    metrics.leader.set(1)
    assert fires("DeviceshareUncoveredPods", Scrape(metrics.registry)) == {frozenset(): 2.0}


def test_a_crd_that_lacks_fields_is_told() -> None:
    """By name; one that has all is not."""
    metrics = Metrics()
    lacks = {"nodedevices.deviceshare.io": 2, "devicequotas.deviceshare.io": 0}
    metrics.watch(lambda: [gauge_of("deviceshare_missing_crd_fields", lacks)])
    assert fires("DeviceshareMissingCrdFields", Scrape(metrics.registry)) == {
        frozenset({("crd", "nodedevices.deviceshare.io")}): 2.0
    }


def test_an_agent_that_is_not_scraped_any_more_is_told() -> None:
    """Where one has reported; a node that never had an agent is left alone."""
    metrics, agent = Metrics(), AgentMetrics()
    agent.watch(lambda: of_devices(Hardware(devices=[Part(GPU, 0, unhealthy="Xid 79")]), Usage("n1"), 1, {}))
    nodes = (("n1", Health.HEALTHY), ("n2", Health.UNKNOWN), ("n2", Health.LOST))
    seen = {(node, GPU, Use.FREE, health): 4 for node, health in nodes}
    metrics.watch(lambda: [gauge_of("deviceshare_devices", seen), gauge_of("deviceshare_groups", {})])
    ours, of_agent = Scrape(metrics.registry), Scrape(agent.registry, node="n1")
    assert fires("DeviceshareAgentSilent", ours).keys() == {frozenset({("node", "n1")})}
    assert fires("DeviceshareAgentSilent", ours + of_agent) == {}
    assert fires("DeviceshareDeviceUnhealthy", of_agent) == {
        frozenset({("node", "n1"), ("resource", GPU), ("index", "0")}): 0.0
    }


def test_a_certificate_that_was_not_renewed_is_told() -> None:
    """Four hours before its end."""
    metrics = Metrics()
    expiries = {"serving": 20_000.0, "authority": 1e9}
    metrics.watch(lambda: [gauge_of("deviceshare_certificate_expiry_timestamp_seconds", expiries)])
    assert fires("DeviceshareCertificateExpiring", Scrape(metrics.registry, now=0)) == {}
    assert fires("DeviceshareCertificateExpiring", Scrape(metrics.registry, now=10_000)) == {
        frozenset({("certificate", "serving")}): 10_000.0
    }


def test_a_quota_that_cannot_be_applied_is_told() -> None:
    """By name; sound ones are not."""
    faulty = a_quota("odd", selector={"matchLabels": {"team": "a b"}})
    metrics, quotas = Metrics(), [a_quota(), faulty]
    metrics.watch(lambda: measure(Fleet(), [], [], quotas, leads=True, most_groups=0, now=NOON))
    assert fires("DeviceshareQuotaInvalid", Scrape(metrics.registry)) == {frozenset({("quota", "odd")}): 1.0}


def test_pods_that_wait_for_shares_are_told() -> None:
    """Those of groups have an alert of their own."""
    registry = CollectorRegistry()
    waiting = Gauge("deviceshare_waiting_pods", "", ["wants"], registry=registry)
    waiting.labels("group").set(3)
    assert fires("DeviceshareSharesWaiting", Scrape(registry)) == {}
    waiting.labels("share").set(2)
    assert fires("DeviceshareSharesWaiting", Scrape(registry)) == {frozenset(): 2.0}


def test_a_scheduler_that_tries_nothing_is_told_while_pods_wait() -> None:
    """Also one of which nothing is scraped; only where it should be."""
    registry = CollectorRegistry()
    waiting = Gauge("deviceshare_waiting_pods", "", ["wants"], registry=registry)
    waiting.labels("group").set(2)
    assert fires("DeviceshareSchedulerStalled", Scrape(registry)) == {frozenset(): 0.0}
    tries = Gauge("scheduler_schedule_attempts_total", "", ["profile", "result"], registry=registry)
    tries.labels("deviceshare-scheduler", "unschedulable").set(0.1)
    assert fires("DeviceshareSchedulerStalled", Scrape(registry)) == {}
    tries.labels("deviceshare-scheduler", "unschedulable").set(0)
    tries.labels("default-scheduler", "scheduled").set(5)
    assert fires("DeviceshareSchedulerStalled", Scrape(registry)) == {frozenset(): 0.0}
    waiting.labels("group").set(0)
    assert fires("DeviceshareSchedulerStalled", Scrape(registry)) == {}
    off: Json = {"metrics": {"serviceMonitor": {"scheduler": False}}}
    assert "DeviceshareSchedulerStalled" not in alerts(off)
    by_claim: Json = {"dra": {"holds": True, "handover": True}, "admission": "webhooks"}
    assert "DeviceshareSchedulerStalled" not in alerts(by_claim)


def test_a_full_quota_is_told_while_pods_wait() -> None:
    """By its name and resource."""
    registry = CollectorRegistry()
    names = ("deviceshare_quota_used", "deviceshare_quota_hard")
    used, hard = (Gauge(name, "", ["quota", "resource"], registry=registry) for name in names)
    waiting = Gauge("deviceshare_waiting_pods", "", ["wants"], registry=registry)
    for gauge, quota, devices in ((used, "red", 4), (hard, "red", 4), (used, "blue", 3), (hard, "blue", 4)):
        gauge.labels(quota, GPU).set(devices)
    waiting.labels("group").set(0)
    assert fires("DeviceshareQuotaFull", Scrape(registry)) == {}
    waiting.labels("group").set(1)
    assert fires("DeviceshareQuotaFull", Scrape(registry)) == {frozenset({("quota", "red"), ("resource", GPU)}): 4.0}


def test_one_prometheus_of_several_clusters_finds_the_one_without_a_leader() -> None:
    """By the label that tells them apart; without any metric at all, too."""
    expression = alerts({"metrics": {"prometheusRule": {"clusterLabel": "cluster"}}})["DeviceshareNoLeader"]["expr"]
    asked = promql_parser.parse(expression)
    registry = CollectorRegistry()
    leader = Gauge("deviceshare_leader", "", ["cluster"], registry=registry)
    assert Scrape(registry).ask(asked) == {frozenset(): 0.0}
    for cluster, leads in (("west", 1), ("east", 0)):
        leader.labels(cluster).set(leads)
    assert Scrape(registry).ask(asked) == {frozenset({("cluster", "east")}): 0.0}
