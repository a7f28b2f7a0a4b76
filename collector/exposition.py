"""Prometheus' text formats, classic and OpenMetrics: lines -> samples, and names with label selectors. Pure."""

import re
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from trialtap.points import NANOSECONDS

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_QUOTED = r'"(?:[^"\\]|\\.)*"'
_VALUE = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[Ee][+-]?\d+)?|[+-]?[Ii]nf(?:inity)?|[Nn]a[Nn]"
# An exemplar (`# {trace="1"} 0.5`) may follow in OpenMetrics.
_SAMPLE: Final = re.compile(
    rf"[ \t]*(?P<name>{_NAME})?[ \t]*(?:\{{(?P<labels>(?:[^\"}}]|{_QUOTED})*)\}})?"
    rf"[ \t]*(?<=[ \t}}])(?P<value>{_VALUE})(?:[ \t]+(?P<time>[+-]?\d+(?:\.\d*)?(?:[Ee][+-]?\d+)?))?[ \t]*(?:#.*)?",
    re.DOTALL,
)
_LABEL: Final = re.compile(
    rf"[ \t]*(?:(?P<key>[^\s=!~,{{}}\"]+|{_QUOTED})[ \t]*(?P<sign>=~|!~|!=|=)[ \t]*(?P<value>{_QUOTED})"
    rf"|(?P<alone>{_QUOTED}))[ \t]*(?:,|$)",
    re.DOTALL,
)
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)
_YEAR_10000: Final = 253_402_300_800


class Sample(NamedTuple):
    """One line of an exposition.

    Attributes:
        name: the series' name.
        labels: label -> value.
        value: a number's text; `nan`, `inf` and `-inf` are written so.
        time: nanoseconds since 1970, where the line tells one.
    """

    name: str
    labels: dict[str, str]
    value: str
    time: int | None

    def key(self) -> str:
        """Name the series: `loss{split="val"}`, labels by name."""
        if not self.labels:
            return self.name
        inner = ",".join(f'{label}="{_escape(value)}"' for label, value in sorted(self.labels.items()))
        return f"{self.name}{{{inner}}}"


class Selector(NamedTuple):
    """A metric as it is asked for: `loss`, or `loss{split="val",fold!="0"}`."""

    wanted: str
    name: str
    tests: tuple[tuple[str, Callable[[str], bool]], ...]

    @classmethod
    def parse(cls, wanted: str) -> "Selector":
        """Read a name with or without label selectors, as PromQL writes them: = != =~ !~.

        Raises:
            ValueError: the braces hold no selectors; the message names the metric.
        """
        name, brace, rest = wanted.partition("{")
        if not brace or not rest.endswith("}"):
            return cls(wanted, wanted, ())
        tests: list[tuple[str, Callable[[str], bool]]] = []
        for key, sign, value in _labels(rest[:-1], wanted):
            if not sign:
                name = value
            else:
                tests.append((key, _test(sign, value, wanted)))
        return cls(wanted, name.strip(), tuple(tests))

    def matches(self, sample: Sample) -> bool:
        """Say whether the sample is one of the metric; a label that is not there is empty, as in PromQL."""
        return self.name == sample.name and all(
            test(sample.labels.get(label, "")) for label, test in self.tests
        )


def samples(text: str, openmetrics: bool) -> Iterator[Sample]:
    """Read the samples of an exposition; what is none is passed over.

    Args:
        text: the whole answer, or lines of it.
        openmetrics: times are seconds, not milliseconds.
    """
    for line in text.split("\n"):
        sample = read(line, openmetrics)
        if sample is not None:
            yield sample


def read(line: str, openmetrics: bool) -> Sample | None:
    """Read one line; None for comments, blank lines and garbage."""
    if line.startswith("#"):
        return None
    match = _SAMPLE.fullmatch(line.rstrip("\r"))
    if match is None:
        return None
    name = match["name"] or ""
    labels: dict[str, str] = {}
    try:
        for key, sign, value in _labels(match["labels"] or "", line):
            if sign == "=":
                labels[key] = value
            elif not sign:
                name = value  # a name of other characters stands among the labels
            else:
                return None
    except ValueError:
        return None
    if not name:
        return None
    return Sample(name, labels, _number(match["value"]), _time(match["time"], openmetrics))


def _labels(text: str, whole: str) -> Iterator[tuple[str, str, str]]:
    position = 0
    while position < len(text) and not text[position:].isspace():
        match = _LABEL.match(text, position)
        if match is None:
            raise ValueError(
                f'metric {whole!r}: write label selectors as in loss{{split="val"}}, with = != =~ or !~'
            )
        position = match.end()
        if match["alone"] is not None:
            yield "", "", _unquote(match["alone"])
        else:
            key = match["key"]
            yield (_unquote(key) if key.startswith('"') else key), match["sign"], _unquote(match["value"])


def _test(sign: str, value: str, wanted: str) -> Callable[[str], bool]:
    if sign == "=":
        return lambda label: label == value
    if sign == "!=":
        return lambda label: label != value
    import re2  # noqa: PLC0415 - only a pattern needs it; it keeps a hostile one linear

    try:
        pattern = re2.compile(value)
    except re2.error as error:
        raise ValueError(f"metric {wanted!r}: {value!r} is no RE2 pattern: {error}") from None
    if sign == "=~":
        return lambda label: pattern.fullmatch(label) is not None
    return lambda label: pattern.fullmatch(label) is None


def _unquote(text: str) -> str:
    return _ESCAPED.sub(lambda match: "\n" if match[1] == "n" else str(match[1]), text[1:-1])


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(text: str) -> str:
    lower = text.lower()
    if "nan" in lower:
        return "nan"
    if "inf" in lower:
        return "-inf" if lower.startswith("-") else "inf"
    return text


def _time(text: str | None, openmetrics: bool) -> int | None:
    if text is None:
        return None
    if text.lstrip("+-").isdigit() and len(text) < 20:
        time = int(text) * (NANOSECONDS if openmetrics else 1_000_000)
    else:
        seconds = float(text) / (1 if openmetrics else 1000)
        if not abs(seconds) < _YEAR_10000:
            return None
        whole, _, fraction = f"{seconds:.6f}".partition(".")
        time = int(float(whole)) * NANOSECONDS + int(fraction) * 1000
    return time if 0 <= time < _YEAR_10000 * NANOSECONDS else None
