"""The metrics that there are, and a small part of PromQL on one scrape of them, for alerts and dashboard."""

import re
from collections.abc import Callable, Iterable, Mapping
from operator import eq, ge, gt, le, lt, ne, sub
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from promql_parser import (
    AggregateExpr,
    BinaryExpr,
    Call,
    Expr,
    MatchOp,
    MatrixSelector,
    NumberLiteral,
    ParenExpr,
    VectorSelector,
    walk,
)

from docs import generate

Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]

_SCHEDULER: Final = {"scheduler_schedule_attempts_total": {"profile", "result"}}
"""kube-scheduler's own: https://kubernetes.io/docs/reference/instrumentation/metrics/"""
_ROW: Final = re.compile(r"^\| `(\w+)` \| (\w+) \| ([^|]*) \|", re.MULTILINE)
_COMPARISONS: Final = {"==": eq, "!=": ne, ">": gt, ">=": ge, "<": lt, "<=": le}
_AGGREGATES: Final[dict[str, Callable[[list[float]], float]]] = {"max": max, "min": min, "sum": sum, "count": len}


def exported() -> dict[str, set[str]]:
    """Each metric's labels as Prometheus stores them; of agents' with `node`, which their ServiceMonitor adds."""
    ours, _, theirs = generate.metrics().partition("## Of the agents")
    return _SCHEDULER | dict(_rows(ours)) | {name: labels | {"node"} for name, labels in _rows(theirs)}


def _rows(table: str) -> Iterable[tuple[str, set[str]]]:
    for name, kind, labels in _ROW.findall(table):
        words = set(re.findall(r"\w+", labels))
        yield (f"{name}_bucket", words | {"le"}) if kind == "histogram" else (name, words)


def selectors(expression: Expr) -> list[VectorSelector]:
    """Every metric that a PromQL expression reads, with its matchers."""
    found: list[VectorSelector] = []

    def visit(each: Expr) -> None:
        if isinstance(each, VectorSelector):
            found.append(each)
        elif isinstance(each, MatrixSelector):
            found.append(each.vector_selector)

    walk(expression, visit)
    return found


class Scrape:
    """What Prometheus knows after one scrape of one process; `more` are the labels that it adds."""

    def __init__(self, registry: CollectorRegistry, now: float = 0.0, **more: str) -> None:
        self._now = now
        self._samples = [
            (sample.name, sample.labels | more, sample.value)
            for family in text_string_to_metric_families(generate_latest(registry).decode())
            for sample in family.samples
        ]

    def __add__(self, other: "Scrape") -> "Scrape":
        """Of both processes."""
        both = Scrape(CollectorRegistry(), self._now)
        both._samples = self._samples + other._samples
        return both

    def ask(self, expression: Expr) -> Vector:
        """What an instant query answers: its series with their values."""
        match expression:
            case ParenExpr():
                return self.ask(expression.expr)
            case VectorSelector():
                return self._select(expression)
            case AggregateExpr():
                return self._aggregate(expression)
            case BinaryExpr():
                return self._combine(expression)
            case Call() if expression.func.name == "rate" and isinstance(expression.args[0], MatrixSelector):
                return self._select(expression.args[0].vector_selector)  # a gauge of the rate, in these tests
            case Call() if expression.func.name == "vector":
                return {frozenset(): self._scalar(expression.args[0])}
        raise NotImplementedError(expression.prettify())

    def _scalar(self, expression: Expr) -> float:
        if isinstance(expression, Call) and expression.func.name == "time":
            return self._now
        if isinstance(expression, NumberLiteral):
            return float(expression.val)
        raise NotImplementedError(expression.prettify())

    def _select(self, wanted: VectorSelector) -> Vector:
        def fits(labels: Mapping[str, str]) -> bool:
            return all(_matches(each.op, each.value, labels.get(each.name, "")) for each in wanted.matchers.matchers)

        return {
            frozenset(labels.items()): value
            for name, labels, value in self._samples
            if name == wanted.name and fits(labels)
        }

    def _aggregate(self, wanted: AggregateExpr) -> Vector:
        by = set(wanted.modifier.labels) if wanted.modifier else set()
        together: dict[Labels, list[float]] = {}
        for labels, value in self.ask(wanted.expr).items():
            together.setdefault(_only(labels, by), []).append(value)
        return {labels: _AGGREGATES[str(wanted.op)](values) for labels, values in together.items()}

    def _combine(self, wanted: BinaryExpr) -> Vector:
        word, left = str(wanted.op), self.ask(wanted.lhs)
        if word in ("and", "or", "unless"):
            right = self.ask(wanted.rhs)
            on = set(wanted.modifier.matching.labels) if wanted.modifier and wanted.modifier.matching else None
            keys = {_only(labels, on) for labels in right}
            if word == "or":
                return left | {labels: value for labels, value in right.items() if labels not in left}
            return {labels: value for labels, value in left.items() if (_only(labels, on) in keys) == (word == "and")}
        if isinstance(wanted.rhs, AggregateExpr):  # of the same labels
            right = self.ask(wanted.rhs)
            return {at: value for at, value in left.items() if at in right and _COMPARISONS[word](value, right[at])}
        number = self._scalar(wanted.rhs)
        if word == "-":
            return {labels: sub(value, number) for labels, value in left.items()}
        return {labels: value for labels, value in left.items() if _COMPARISONS[word](value, number)}


def _only(labels: Labels, names: set[str] | None) -> Labels:
    return labels if names is None else frozenset(each for each in labels if each[0] in names)


def _matches(operator: MatchOp, wanted: str, value: str) -> bool:
    same = re.fullmatch(wanted, value) is not None if operator in (MatchOp.Re, MatchOp.NotRe) else value == wanted
    return same is (operator in (MatchOp.Equal, MatchOp.Re))
