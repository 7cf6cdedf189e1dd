"""No text of the cluster commands the terminal or breaks a view, whatever field it stands in."""

import ast
import types
import typing
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from click.testing import CliRunner

import deviceshare.cli
from deviceshare.cli import doctor, top
from deviceshare.cli.explain import view as explanation
from deviceshare.cli.inspect_view import view as inspection
from deviceshare.cli.main import main
from deviceshare.cli.output import JSON, YAML, FilteringConsole, Part, encoded, say, screen, show, table
from deviceshare.cli.plan import view as planned
from deviceshare.cli.top import NodeNow
from deviceshare.doctor.findings import Check
from deviceshare.domain.answers.explanation import Explanation
from deviceshare.domain.answers.picture import DeviceView, Picture
from deviceshare.domain.answers.plan import Plan
from deviceshare.domain.answers.pod_view import POD_COLUMNS, PodDeviceView, pod_rows
from deviceshare.domain.placement.device_states import Health, Use
from deviceshare.domain.wording import printable, quoted
from deviceshare_sandbox import SandboxStatus
from deviceshare_sandbox.cli import _print

HOSTILE = "[/x][red]:bug:\x1b]0;title\x07\x1b[2J\r\n\x00\x9b31m\x7f\u202eabc\u2066\u2028\t\ud800"
SHOWN = "[/x][red]:bug:\\x1b]0;title\\x07\\x1b[2J\\r\\n\\x00\\x9b31m\\x7f\\u202eabc\\u2066\\u2028\\t\\ud800"
IN_JSON = HOSTILE[:-1]
"""No encoder takes half a surrogate pair."""


def filled(type_: Any, text: str, *, flag: bool = True) -> Any:
    """A value of this type in which every text is `text`, and every list has an item."""
    origin, arguments = typing.get_origin(type_), typing.get_args(type_)
    if type_ is str:
        return text
    if type_ in (int, float):
        return 1
    if type_ is bool:
        return flag
    if isinstance(type_, type) and issubclass(type_, Enum):
        return next(iter(type_))
    if origin in (typing.Union, types.UnionType):
        return filled(arguments[0], text, flag=flag)
    if origin is list:
        return [filled(arguments[0], text, flag=flag)]
    if origin is tuple:
        return tuple(filled(each, text, flag=flag) for each in arguments if each is not Ellipsis)
    if origin is dict:
        return {filled(arguments[0], text, flag=flag): filled(arguments[1], text, flag=flag)}
    if issubclass(type_, Enum):
        return next(iter(type_))
    hints = typing.get_type_hints(type_)
    return type_(**{name: filled(hints[name], text, flag=flag) for name in _fields(type_)})


def _fields(type_: Any) -> Iterable[str]:
    fields: Iterable[str] = type_.__struct_fields__ if issubclass(type_, msgspec.Struct) else type_._fields
    return fields


NOW = datetime(2026, 11, 21, 2, 0, tzinfo=UTC)


def pictures() -> Iterator[Picture]:
    """One for each use of a device in each health, with and without a holder."""
    for use in Use:
        for flag in (True, False):
            whole = filled(Picture, HOSTILE, flag=flag)
            device = msgspec.structs.replace(filled(DeviceView, HOSTILE, flag=flag), use=use)
            devices = [
                msgspec.structs.replace(device, health=health, unhealthy=text, group=text)
                for health in Health
                for text in (HOSTILE, "")
            ]
            nodes = [msgspec.structs.replace(node, devices=devices) for node in whole.nodes]
            yield msgspec.structs.replace(whole, nodes=nodes)


VIEWS: dict[str, Callable[[], Iterable[Part]]] = {
    "inspect": lambda: [part for each in pictures() for part in inspection(each, now=NOW, details=False, wide=True)],
    "inspect -d": lambda: [part for each in pictures() for part in inspection(each, now=NOW, details=True, wide=True)],
    "explain": lambda: explanation(filled(Explanation, HOSTILE), details=True),
    "explain what doesn't fit": lambda: explanation(filled(Explanation, HOSTILE, flag=False), details=True),
    "plan": lambda: planned(filled(Plan, HOSTILE), details=True),
    "plan of what waits": lambda: planned(filled(Plan, HOSTILE, flag=False), details=True),
    "top": lambda: top._drawn(
        [filled(NodeNow, HOSTILE), msgspec.structs.replace(filled(NodeNow, HOSTILE), silent="")], HOSTILE
    ),
    "smi": lambda: [table(POD_COLUMNS, pod_rows([filled(PodDeviceView, HOSTILE)]))],
    "doctor": lambda: [
        line
        for mark in doctor._COLOURS
        for check in (filled(Check, HOSTILE),)
        for line in (doctor._line(mark, check.name, check.said), doctor._line(mark, HOSTILE, check.findings[0].cure))
    ],
}


@pytest.mark.parametrize("name", VIEWS)
def test_every_view_shows_hostile_texts_and_obeys_none(name: str) -> None:
    """In a pipe, on a terminal and while watching: names, messages, reasons, models, processes."""
    with CliRunner().isolation() as (out, _, _):
        show(*VIEWS[name]())
        with screen() as draw:
            draw(VIEWS[name]())
        piped = out.getvalue().decode()
    console = FilteringConsole(width=120, force_terminal=True, color_system=None)
    with console.capture() as captured:
        console.print(*VIEWS[name](), sep="\n")

    assert piped.count(SHOWN) >= 2
    assert "[/x][red]:bug:" in captured.get()
    for line in [*piped.split("\n"), *captured.get().split("\n")]:
        assert line.isprintable()


def test_a_crash_of_a_sandbox_process_is_told_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """Its last words are anybody's."""
    _print(filled(SandboxStatus, HOSTILE))
    told = capsys.readouterr()

    assert SHOWN in told.out and "\\x1b" in told.err
    assert all(line.isprintable() for line in (told.out + told.err).split("\n"))


@pytest.mark.parametrize("format", [JSON, YAML])
@pytest.mark.parametrize("type_", [Picture, Explanation, Plan, Check, NodeNow])
def test_programs_get_exact_values_and_terminals_no_commands(type_: Any, format: str) -> None:
    """What is escaped in JSON and YAML means the same."""
    answer = filled(type_, IN_JSON)
    text = encoded(answer, format)

    assert all(line.isprintable() for line in text.split("\n"))
    exact = msgspec.json.decode(msgspec.json.encode(answer))
    assert (yaml.safe_load(text) if format == YAML else msgspec.json.decode(text)) == exact


def test_sentences_keep_their_lines_and_nothing_else() -> None:
    """What `say` prints was put together by us, out of others' words."""
    with CliRunner().isolation() as (out, _, _):
        say(f"Group {HOSTILE[:-1]} is\nbound.")
        assert out.getvalue().decode().count("\n") == 3
        assert all(line.isprintable() for line in out.getvalue().decode().split("\n"))


NAMED = "a[/x]\x1b]0;t\x07\u202e"
MANIFESTS = [
    {
        "kind": "SharedDeviceGroup",
        "metadata": {"name": NAMED},
        "spec": {"resources": {"huawei.com/Ascend[/x]\x1b[2J": 1}, "nodeSelector": {NAMED: NAMED}},
    },
    {
        "kind": "Pod",
        "metadata": {"name": NAMED, "namespace": NAMED, "annotations": {"deviceshare.io/group": NAMED}},
        "spec": {"containers": [{"name": NAMED}]},
    },
]


@pytest.mark.parametrize("options", [["-d"], ["-o", "json"], ["-o", "yaml"]], ids=" ".join)
def test_objects_that_no_webhook_looked_at_are_survived(tmp_path: Path, options: list[str]) -> None:
    """As in a cluster whose webhook was away, or an older one: through the Fleet, the planner and the view."""
    wanted, nodes = tmp_path / "wanted.yaml", tmp_path / "nodes.yaml"
    wanted.write_text(yaml.safe_dump_all(MANIFESTS))
    nodes.write_text(yaml.safe_dump([{"name": NAMED, "devices": {"nvidia.com/gpu": 4, "huawei.com/Ascend[/x]": 4}}]))

    result = CliRunner().invoke(main, ["plan", "-f", str(wanted), "--nodes", str(nodes), *options])

    assert result.exit_code == 3, result.output
    assert "a[/x]" in result.stdout
    assert all(line.isprintable() for line in result.output.split("\n"))


def test_errors_pass_the_filter_too(tmp_path: Path) -> None:
    """Whoever raises them."""
    file = tmp_path / "wanted.yaml"
    file.write_text(yaml.safe_dump({**MANIFESTS[0], "spec": {"resources": NAMED}}))

    result = CliRunner().invoke(main, ["plan", "-f", str(file)])

    assert result.exit_code == 2
    assert "a[/x]\\x1b]0;t\\x07\\u202e" in result.stderr
    assert all(line.isprintable() for line in result.output.split("\n"))


def test_only_output_prints() -> None:
    """A new view can't forget the filter: nothing else of the command line reaches a terminal."""
    folder = Path(deviceshare.cli.__file__).parent
    found = [
        f"{file.name}: {ast.unparse(node)}"
        for file in folder.glob("*.py")
        if file.name != "output.py"
        for node in ast.walk(ast.parse(file.read_text()))
        if _prints(node)
    ]
    assert len(list(folder.glob("*.py"))) > 20
    assert found == []


def _prints(node: ast.AST) -> bool:
    if isinstance(node, ast.ImportFrom):
        return (node.module or "").split(".")[0] == "rich"
    if isinstance(node, ast.Import):
        return any(alias.name.split(".")[0] == "rich" for alias in node.names)
    if not isinstance(node, ast.Call):
        return False
    called = ast.unparse(node.func)
    return (
        called in ("print", "click.echo", "click.secho", "click.style") or ".stdout." in called or ".stderr." in called
    )


@pytest.mark.parametrize(
    "line", ["print(1)", "click.echo(x)", "sys.stdout.write(x)", "from rich.text import Text", "import rich.console"]
)
def test_what_prints_is_recognised(line: str) -> None:
    """The test above must be able to fail."""
    assert any(map(_prints, ast.walk(ast.parse(line))))


def test_a_quotation_is_bounded_and_printable() -> None:
    """A stranger chose its length, too."""
    assert quoted("python") == "'python'"
    assert quoted("\x1b" * 1000) == "'" + ("\\x1b" * 20)[:79] + "…'"
    assert printable(HOSTILE) == SHOWN and printable("Ünïcödé 装置") == "Ünïcödé 装置"
