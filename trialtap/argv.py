"""The collector's command line, written by the webhook and read by the collector. Standard library only.

Katib's flags keep their names and meaning, so that either side may be Katib's own; ours come on top.

A sidecar is paid for once per pod: argparse and dataclasses would cost each of them 2 MiB of memory, so
argv is read from the table below, and argparse is imported only to print `--help`.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    import argparse

KINDS: Final = ("StdOut", "File", "TensorFlowEvent", "PrometheusMetric", "Custom")
"""Collector kinds that have a sidecar."""
COMPARISONS: Final = ("equal", "less", "greater")


class StopRule(NamedTuple):
    """One early-stopping rule; training is stopped once every rule is met."""

    name: str
    value: str
    comparison: str
    start_step: int = 0

    @classmethod
    def parse(cls, text: str) -> "StopRule":
        """Read `name;value;comparison;startStep`.

        A name may hold `;`, so the fields are taken from the right.

        Raises:
            ValueError: a field is missing or wrong; the message names it.
        """
        fields = text.rsplit(";", 3)
        if len(fields) != 4 or not fields[0]:
            raise ValueError(f"stop rule {text!r}: write name;value;comparison;startStep")
        name, value, comparison, start = fields
        if comparison not in COMPARISONS:
            raise ValueError(
                f"stop rule {text!r}: comparison {comparison!r} is not one of {', '.join(COMPARISONS)}"
            )
        try:
            float(value)
        except ValueError:
            raise ValueError(f"stop rule {text!r}: value {value!r} is no number") from None
        if not start.isascii() or not start.isdigit():
            raise ValueError(f"stop rule {text!r}: startStep {start!r} is no whole number from 0")
        return cls(name, value, comparison, int(start))

    def __str__(self) -> str:
        """Write it as `parse` reads it."""
        return f"{self.name};{self.value};{self.comparison};{self.start_step}"


class CollectorArgs(NamedTuple):
    """What a collector is told.

    `kind` is set by our webhook and selects the native sidecar's lifecycle. It is None when Katib's own
    webhook injected the pod: then Katib's lifecycle holds (shared process namespace, `.pid` markers) and
    the source follows from `format` (set: text or JSON lines; None: TensorFlow events).
    """

    trial: str
    metrics: tuple[str, ...]
    """Names asked for, the objective first."""
    objective_type: str = "minimize"
    db_address: str = ""
    path: str = ""
    """File or directory; PrometheusMetric: the URL's path; StdOut of ours: PREFIX of tap's segments."""
    filters: tuple[str, ...] = ()
    format: str | None = None
    wait_all: bool = True
    poll: float = 1.0
    """Seconds between looks at foreign processes (Katib's lifecycle) or scrapes (PrometheusMetric)."""
    timeout: float = 0.0
    """Seconds to wait for the training to begin (Katib's lifecycle); 0: for ever."""
    stop_rules: tuple[StopRule, ...] = ()
    early_stop_address: str = ""
    kind: str | None = None
    namespace: str = ""
    port: int = 0
    """PrometheusMetric: the port on 127.0.0.1 to scrape."""
    grace: float = 30.0
    """Seconds that the pod has from SIGTERM to SIGKILL."""
    attempt: int = 0
    keep: int = 1 << 30
    """Bytes of StdOut's copy to keep while the database is away."""
    stream: bool = False
    """Report to Katib's own DB manager as points come, not only at the end."""
    echo: bool = False
    """Repeat the training's lines on the collector's own stdout."""


class _Flag(NamedTuple):
    flags: tuple[str, ...]
    attribute: str
    read: Callable[[str], object]
    help: str
    repeated: bool = False


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(";") if name)


def _bool(text: str) -> bool:
    if text.lower() in {"true", "1", "t"}:
        return True
    if text.lower() in {"false", "0", "f"}:
        return False
    raise ValueError(f"{text!r} is neither true nor false")


def _choice(*allowed: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in allowed:
            raise ValueError(f"{text!r} is not one of {', '.join(allowed)}")
        return text

    return read


_FLAGS: Final = (
    _Flag(("-t", "--trial"), "trial", str, "name of the Trial"),
    _Flag(("-m", "--metrics"), "metrics", _names, "metric names joined by ';', the objective first"),
    _Flag(
        ("-o-type", "--objective-type"),
        "objective_type",
        _choice("minimize", "maximize"),
        "minimize or maximize",
    ),
    _Flag(("-s-db", "--db"), "db_address", str, "HOST:PORT of the DB manager"),
    _Flag(("-path", "--path"), "path", str, "file, directory or URL path to read"),
    _Flag(("-f", "--filter"), "filters", str, "RE2 pattern with two groups, name and value", repeated=True),
    _Flag(("-format", "--format"), "format", _choice("TEXT", "JSON"), "TEXT or JSON"),
    _Flag(
        ("-w", "--wait-all"),
        "wait_all",
        _bool,
        "true: wait for all processes of the training (Katib's lifecycle)",
    ),
    _Flag(("-p", "--poll"), "poll", float, "seconds between two looks or scrapes"),
    _Flag(
        ("-timeout", "--timeout"), "timeout", float, "seconds to wait for the training to begin; 0: for ever"
    ),
    _Flag(
        ("-stop-rule", "--stop-rule"),
        "stop_rules",
        StopRule.parse,
        "name;value;comparison;startStep",
        repeated=True,
    ),
    _Flag(
        ("-s-earlystop", "--early-stopping"),
        "early_stop_address",
        str,
        "HOST:PORT of the EarlyStopping service",
    ),
    _Flag(("--kind",), "kind", _choice(*KINDS), f"collector kind: {', '.join(KINDS)}"),
    _Flag(("--namespace",), "namespace", str, "namespace of the Trial"),
    _Flag(("--port",), "port", int, "PrometheusMetric: port on 127.0.0.1 to scrape"),
    _Flag(("--grace",), "grace", float, "seconds the pod has from SIGTERM to SIGKILL"),
    _Flag(("--attempt",), "attempt", int, "number of the attempt that this pod is, from 0"),
    _Flag(("--keep",), "keep", int, "bytes of the training's output to keep while the database is away"),
    _Flag(("--stream",), "stream", _bool, "true: report to Katib's DB manager as points come"),
    _Flag(("--echo",), "echo", _bool, "true: repeat the training's lines on stdout"),
)
_JOINED: Final = {"metrics"}


def parser() -> "argparse.ArgumentParser":
    """Build the parser that prints `--help`; argv itself is read by `parse`."""
    import argparse  # noqa: PLC0415 - see the module's docstring

    result = argparse.ArgumentParser(
        prog="trialtap-collector",
        description="Reads a training's metrics and reports them.",
        allow_abbrev=False,
    )
    for flag in _FLAGS:
        action = "append" if flag.repeated else "store"
        result.add_argument(*flag.flags, dest=flag.attribute, action=action, metavar="VALUE", help=flag.help)
    return result


def parse(argv: Sequence[str]) -> CollectorArgs:
    """Read an argv that `write` or Katib's webhook wrote.

    `-flag value`, `-flag=value` and `--flag=value` are all taken, as Go's flag package does.

    Raises:
        ValueError: a flag is unknown, lacks its value or has a wrong one; the message names it.
    """
    values: dict[str, object] = {}
    for name, text in _given(argv):
        flag = _BY_NAME[name]
        try:
            value = flag.read(text)
        except ValueError as error:
            raise ValueError(f"{flag.flags[0]}: {error}") from None
        if flag.repeated:
            value = (*values.get(flag.attribute, ()), value)  # type: ignore[misc]
        values[flag.attribute] = value
    for needed in ("trial", "metrics"):
        if not values.get(needed):
            raise ValueError(f"{next(f.flags[0] for f in _FLAGS if f.attribute == needed)}: missing or empty")
    return CollectorArgs(**values)  # type: ignore[arg-type]


def write(args: CollectorArgs) -> list[str]:
    """Write the argv that `parse` reads as the same `args`; values equal to the default are left out."""
    argv: list[str] = []
    for flag, place, default in _PLACES:
        value: Any = args[place]
        if value == default:
            continue
        for item in value if flag.repeated else (value,):
            argv += [flag.flags[0], _text(flag, item)]
    return argv


def _text(flag: _Flag, value: object) -> str:
    if flag.attribute in _JOINED:
        return ";".join(value)  # type: ignore[arg-type]
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


_DEFAULT: Final = CollectorArgs(trial="", metrics=())
_PLACES: Final = tuple(
    (flag, place, _DEFAULT[place])
    for flag in _FLAGS
    for place in (CollectorArgs._fields.index(flag.attribute),)
)
"""Each flag with where its value stands in `CollectorArgs`, and the value that needs no flag."""
_BY_NAME: Final = {
    name: flag
    for flag in _FLAGS
    for long in flag.flags
    for name in (long, f"-{long.lstrip('-')}", f"--{long.lstrip('-')}")
}


def _given(argv: Sequence[str]) -> list[tuple[str, str]]:
    """Pair each flag with its value, whatever the value begins with."""
    result: list[tuple[str, str]] = []
    rest = iter(argv)
    for word in rest:
        name, equals, value = word.partition("=")
        if name not in _BY_NAME:
            raise ValueError(f"{word}: no such flag; --help lists them")
        if not equals:
            following = next(rest, None)
            if following is None:
                raise ValueError(f"{name}: a value must follow")
            value = following
        result.append((name, value))
    return result
