"""Generator of the documentation's tables that follow from the code; a test fails while any of them is stale.

    python -m docs.generate

Each stands in its page between `<!-- generated -->` and `<!-- end of generated -->`: the metrics from the registry, the
settings from the command's options, the rights from the chart as Helm renders it, the house from the packages'
docstrings in the order of the import contracts, the devices from the table of vendors, Kubernetes' versions from the
chart and the sandbox. In both READMEs the devices stand in a sentence, between `<!-- devices -->` and `<!-- end of
devices -->`.
"""

import ast
import re
import sys
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, cast

import click
import yaml

from charts import helm
from deviceshare.agent.memory_limits import LimitsOutcome
from deviceshare.agent.metrics import AgentMetrics, of_devices, of_limits, of_turns
from deviceshare.cli.run import run
from deviceshare.domain import vendors
from deviceshare.domain.answers.census import Measured, measure
from deviceshare.domain.device_health.examination import Xid
from deviceshare.domain.objects.hardware import Hardware, Part
from deviceshare.domain.objects.shares import DIALECTS, WHOLE, Dialect, in_gib
from deviceshare.domain.objects.usage import DeviceProcess, DeviceUsage, ShareMemory, TurnProgram, TurnQueue, Usage
from deviceshare.domain.placement.fleet import Fleet
from deviceshare.kube.api import Api
from deviceshare.kube.connection import Connection
from deviceshare.metrics import Metrics, ServerMetrics
from deviceshare.run.process import Process
from deviceshare.run.settings import Settings
from docs import kubernetes_versions

ROOT: Final = Path(__file__).parent.parent
REFERENCE: Final = ROOT / "docs" / "reference"
ARCHITECTURE: Final = ROOT / "docs" / "architecture.md"
VERSIONS: Final = ROOT / "docs" / "kubernetes.md"
ALL_ROLES: Final = {"agent": {"enabled": True, "enforce": "evict"}, "openshift": True}
"""The values with which the chart has every role and every rule, besides those of its defaults."""
READMES: Final = {ROOT / "README.md": ("{} ({})", ", ", " and "), ROOT / "README.zh-CN.md": ("{}（{}）", "、", "和 ")}
"""How each lists devices: one of them, what stands between two, and before the last."""
_GENERATED: Final = re.compile(r"(?<=<!-- generated -->\n).*(?=<!-- end of generated -->)", re.DOTALL)
_DEVICES: Final = re.compile(r"(?<=<!-- devices -->).*(?=<!-- end of devices -->)")


def generated() -> dict[Path, str]:
    """Each page as it should be."""
    tables = {
        "devices": devices(),
        "metrics": metrics(),
        "settings": settings(),
        "rbac": rights(helm.render_files(ALL_ROLES)),
    }
    pages = {REFERENCE / f"{name}.md": table for name, table in tables.items()}
    pages |= {ARCHITECTURE: house(), VERSIONS: _versions()}
    filled = {page: _filled(page, table) for page, table in pages.items()}
    return filled | {page: _DEVICES.sub(_listed_devices(*words), page.read_text()) for page, words in READMES.items()}


def _listed_devices(one: str, link: str, last: str) -> str:
    named = [one.format(vendor.label, f"`{vendor.resource}`") for vendor in vendors.VENDORS]
    return link.join(named[:-1]) + last + named[-1]


def _filled(page: Path, table: str) -> str:
    return _GENERATED.sub(lambda _: f"\n{table}\n", page.read_text())


def devices() -> str:
    """The devices that groups may ask for, with the variables of their runtimes, and how pods ask for parts of them."""
    rows = [
        (vendor.label, *map(_code, ([vendor.resource], [vendor.env], [vendor.annotation], vendor.kinds)))
        for vendor in vendors.VENDORS
    ]
    whole = _table(("device", "resource", "variable", "annotation that it refers to", "CDI kinds"), rows)
    return f"{whole}\n## Parts of devices\n\n{_shares()}"


def _shares() -> str:
    """The limits by which containers ask for parts of devices."""
    rows = [
        (_code([each.resource]), each.system or "deviceshare", _unit(each), _code(each.devices))
        for each in DIALECTS.values()
    ]
    return _table(("limit of a container", "of", "one unit is", "devices that serve it"), rows)


def _unit(dialect: Dialect) -> str:
    return f"{in_gib(dialect.mib)} of device memory" if dialect.mib else f"1/{WHOLE} of a device"


def metrics() -> str:
    """All metrics, after one of each kind of thing has been counted: a label is known only by what it was used for."""
    all_of_them = Metrics()
    with all_of_them.request("filter"):
        pass
    all_of_them.watch(lambda: [gauge_of(name, {tuple(labels): 1}) for name, _, labels, _ in gauges().values()])
    of_all = {family.name for family in ServerMetrics().registry.collect()}
    agents = _families(_agents_metrics(), but=of_all)
    return f"## Of deviceshare\n\n{_families(all_of_them)}\n## Of the agents, besides those of any process\n\n{agents}"


@cache
def gauges() -> dict[str, Measured]:
    """What a process of all roles measures, and what the leader does, by their names, without figures."""
    with run.make_context("run", ["--ca-secret", "ca"]) as context:
        process = Process(Settings(**context.params), Api(cast("Connection", None)))
    of_leader = measure(Fleet(), [], [], [], leads=True, most_groups=1, now="")
    return {name: (name, text, labels, ()) for name, text, labels, _ in (*process.measure(), *of_leader)}


def gauge_of(name: str, figures: Mapping[Any, float]) -> Measured:
    """The gauge of that name, with these figures."""
    _, text, labels, _ = gauges()[name]
    return name, text, labels, figures.items()


def _agents_metrics() -> AgentMetrics:
    of_an_agent = AgentMetrics()
    of_an_agent.count_xid(Xid("uuid", 79, ""))
    used = DeviceUsage("resource", 0, utilization=1, processes=[DeviceProcess(1)], shares=[ShareMemory("ns/p", "c")])
    hardware, usage = Hardware(devices=[Part("resource", 0)]), Usage("node", devices=[used])
    of_an_agent.watch(lambda: of_devices(hardware, usage, 1, {}))
    of_an_agent.watch(lambda: of_limits(LimitsOutcome("agent")))
    of_an_agent.watch(lambda: of_turns([TurnQueue("group", TurnProgram("pod", 1))]))
    return of_an_agent


def _versions() -> str:
    """Kubernetes' versions, and the runs of the tests on them."""
    return f"{kubernetes_versions.versions(_table)}\n## What was run\n\n{kubernetes_versions.runs(_table)}"


def house() -> str:
    """Every package and top-level module with the first line of its docstring, in the order of the import contracts."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    floors = {contract["containers"][0]: contract["layers"] for contract in contracts if contract["type"] == "layers"}
    return "\n".join(["```", *_rooms("deviceshare", floors), "```"])


def _rooms(container: str, floors: dict[str, list[str]], depth: int = 0) -> Iterator[str]:
    folder = ROOT / container.replace(".", "/")
    for floor in floors[container]:
        for name in re.findall(r"\w+", floor):
            package = folder / name / "__init__.py"
            module = package if package.exists() else folder / f"{name}.py"
            if depth == 0 or module == package:
                first = (ast.get_docstring(ast.parse(module.read_text())) or "").split("\n")[0]
                label = "    " * depth + (f"{name}/" if module == package else module.name)
                yield f"{label:<22}{first}"
            if f"{container}.{name}" in floors:
                yield from _rooms(f"{container}.{name}", floors, depth + 1)


def _families(counted: ServerMetrics, but: Collection[str] = ()) -> str:
    rows = []
    for family in (each for each in counted.registry.collect() if each.name not in but):
        labels = {label: None for sample in family.samples for label in sample.labels if label != "le"}
        name = f"{family.name}_total" if family.type == "counter" else family.name
        rows.append((f"`{name}`", family.type, _code(labels), family.documentation))
    return _table(("metric", "type", "labels", "meaning"), rows)


def settings() -> str:
    """The flags of `deviceshare run`."""
    rows = [
        (f"`{flag.opts[0]}`", f"`{flag.envvar}`", f"`{flag.default}`" if flag.show_default else "", _help(flag))
        for flag in run.params
        if isinstance(flag, click.Option)
    ]
    return _table(("flag", "environment", "default", "meaning"), rows)


def _help(flag: click.Option) -> str:
    choices = f"One of {_code(flag.type.choices)}." if isinstance(flag.type, click.Choice) else ""
    return " ".join(filter(None, [flag.help, choices]))


def rights(files: dict[str, str]) -> str:
    """The rules of each role in the chart, with the comments that say what they are for."""
    roles = []
    for _, text in sorted(item for item in files.items() if "rbac" in item[0]):
        documents = yaml.compose_all(text, Loader=yaml.SafeLoader)
        found = (each for each in documents if _field(each, "kind").value in ("Role", "ClusterRole"))
        roles += [_role(role, text.splitlines()) for role in found]
    return "\n".join(roles)


def _role(role: yaml.Node, lines: Sequence[str]) -> str:
    kind = _field(role, "kind").value
    name = _field(_field(role, "metadata"), "name").value
    rows = []
    why = ""
    for rule in _field(role, "rules").value:
        words = {key.value: [each.value for each in value.value] for key, value in rule.value}
        # Rules that share a purpose stand together under one comment.
        why = _comment_above(lines, rule.start_mark.line) or why
        groups = _code(group or "core" for group in words["apiGroups"])
        resources, names = _code(words["resources"]), _code(words.get("resourceNames", ()))
        named = f"{resources} named {names}" if names else resources
        rows.append((groups, named, ", ".join(words["verbs"]), why))
    table = _table(("API group", "resources", "verbs", "for what"), rows)
    return f"### {kind} {name}\n\n{table}"


def _field(node: yaml.Node, name: str) -> yaml.Node:
    fields: dict[str, yaml.Node] = {key.value: value for key, value in node.value}
    return fields[name]


def _comment_above(lines: Sequence[str], line: int) -> str:
    start = line
    while start and lines[start - 1].strip().startswith("#"):
        start -= 1
    return " ".join(each.strip().removeprefix("#").strip() for each in lines[start:line])


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *([_cell(cell) for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _code(words: Iterable[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)


def stale() -> Iterator[Path]:
    """The pages that differ from what they should be."""
    return (page for page, text in generated().items() if page.read_text() != text)


def main() -> None:
    """Writes what is stale, and names it."""
    for page, text in generated().items():
        if page.read_text() != text:
            page.write_text(text)
            sys.stdout.write(f"{page.relative_to(ROOT)}\n")


if __name__ == "__main__":
    main()
