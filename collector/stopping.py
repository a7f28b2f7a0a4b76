"""Early-stopping rules: points in, a state out that says whether to stop. Pure."""

import math
from collections.abc import Sequence

from collector.source import State
from trialtap.argv import CollectorArgs, StopRule
from trialtap.points import MetricPoint


class Rules:
    """Decides from the points that a training reports whether it is to be stopped.

    Katib against us, where they differ on purpose:

    | | Katib | here |
    |---|---|---|
    | a rule is looked at | at the startStep-th report only | from the startStep-th finite report on |
    | `nan`, `inf` | counted, compared | neither |
    | a rule once met | may be forgotten | stays met |

    The objective compares its best value so far, counted from its first report on; every other metric its
    newest value. The counter runs per metric. Training is stopped once every rule is met.

    The state is `{"reports": {metric: how many finite ones}, "best": the objective's best or null,
    "met": [rules, as they are written]}`: rules by their text, so that it outlives a change of the rules.
    """

    def __init__(self, args: CollectorArgs) -> None:
        """Take the rules, the objective (the first of `metrics`) and which of its values is better."""
        self._objective = args.metrics[0] if args.metrics else ""
        self._better = max if args.objective_type == "maximize" else min
        self._needed = frozenset(map(str, args.stop_rules))
        self._rules: dict[str, list[StopRule]] = {}
        for rule in args.stop_rules:
            self._rules.setdefault(rule.name, []).append(rule)

    def begin(self) -> State:
        """Give the state before the first point."""
        return {"reports": {}, "best": None, "met": []}

    def step(self, state: State, points: Sequence[MetricPoint]) -> State:
        """Give the state after `points`, looked at in their order; a value that is no number counts nothing."""
        reports = dict(state["reports"])
        met = set(state["met"])
        best: float | None = state["best"]
        for point in points:
            rules = self._rules.get(point.name)
            value = _number(point.value) if rules is not None else None
            if rules is None or value is None:
                continue
            reports[point.name] = reports.get(point.name, 0) + 1
            if point.name == self._objective:
                value = best = value if best is None else self._better(best, value)
            met.update(str(rule) for rule in rules if _holds(value, rule, reports[point.name]))
        return {"reports": reports, "best": best, "met": sorted(met)}

    def met(self, state: State) -> bool:
        """Say whether every rule, of at least one, is met; once so, it stays so."""
        return bool(self._needed) and self._needed <= set(state["met"])


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None  # text, such as a network architecture
    return value if math.isfinite(value) else None


def _holds(value: float, rule: StopRule, reports: int) -> bool:
    if reports < rule.start_step:
        return False
    limit = float(rule.value)
    if rule.comparison == "less":
        return value < limit
    if rule.comparison == "greater":
        return value > limit
    return value == limit
