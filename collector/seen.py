"""What metric-like names went by, and which of them comes closest to a name that never appeared.

Only messages need it: import it when one is to be written, or when looking at a line for a dry run.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from collector.source import Findings

SAMPLE: Final = 2_000
"""Records of a file that are looked at for names: enough to tell what a training writes, at no cost later."""
_LONGEST_NAME: Final = 120
_LONGEST_LINE: Final = 4_096
_ALIKE: Final = 0.65

_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[Ee][+-]?\d+)?|[+-]?(?:nan|inf(?:inity)?)\b"
# A name, perhaps quoted, then `=` or `:` or blanks, then a number: wider than any pattern that counts,
# since what a pattern missed is just what is looked for.
_LOOSE: Final = re.compile(
    rf"""(?P<shape>["']?(?P<name>[^\s=:,;(){{}}"']+)["']?(?P<between>[ \t]*[=:][ \t]*|[ \t]+)["']?(?:{_NUMBER}))""",
    re.IGNORECASE,
)
_PARTS: Final = re.compile(r"[/.]")
_SIGNS: Final = re.compile(r"[\W_]+")


def look(line: str, wanted: Sequence[str], findings: Findings) -> None:
    """Note the names on a line of text: what stands before a number with `=` or `:`.

    With blanks alone between them a word and a number are noted only when the word resembles a wanted name.
    """
    for match in _LOOSE.finditer(line[:_LONGEST_LINE]):
        name, between = match["name"], match["between"]
        if len(name) > _LONGEST_NAME or (between.isspace() and not _resembles(name, wanted)):
            continue
        findings.saw(name, match["shape"].strip()[: 2 * _LONGEST_NAME])


def closest(wanted: str, names: Iterable[str], at_most: int = 3) -> list[str]:
    """Find the names that resemble `wanted` most, the best first; none when none does."""
    # In `train/loss` and `eval.loss` the last part is the metric, what is before it says where.
    ranked = sorted(
        (min(_distance(wanted, name), 0.1 + _distance(wanted, _PARTS.split(name)[-1])), name)
        for name in names
    )
    return [name for distance, name in ranked if distance < 1.0][:at_most]


def advice(wanted: Sequence[str], found: Collection[str], findings: Findings) -> list[str]:
    """Say for each wanted name that is not among `found` what comes closest and what to do; a line each."""
    return [_advise(name, findings) for name in wanted if name not in found]


def listed(names: Iterable[str], at_most: int = 12) -> str:
    """Join names for a message, the first few of many."""
    every = list(names)
    rest = len(every) - at_most
    return ", ".join(every[:at_most]) + (f" and {rest} more" if rest > 0 else "")


def most_seen(findings: Findings) -> list[str]:
    """List the names that were seen, the most frequent first."""
    return sorted(findings.names, key=lambda name: -findings.names[name])


def _advise(name: str, findings: Findings) -> str:
    missing = f"metric {name!r} was not found"
    near = closest(name, findings.names)
    shapes = [findings.shapes.get(other, other) for other in near]
    if near and near[0] == name:
        return (
            f"{missing}, though {shapes[0]!r} was seen, which the pattern does not read: "
            "print NAME=VALUE, or give a filter with two groups, name and value"
        )
    if near:
        quoted = ", ".join(map(repr, shapes))
        return f"{missing}; closest: {quoted}: ask for the name as it is written there"
    if findings.names:
        return f"{missing}; seen instead: {listed(most_seen(findings))}"
    return f"{missing}, nor anything else that looks like a metric: is this what the training writes?"


def _resembles(name: str, wanted: Sequence[str]) -> bool:
    core = _core(name)
    return bool(core) and any(core in one or one in core for one in map(_core, wanted) if one)


def _core(name: str) -> str:
    return _SIGNS.sub("", name).casefold()


def _distance(wanted: str, seen: str) -> float:
    """Compare two names: 0 the same, below 1 alike, 1 strangers."""
    if wanted == seen:
        return 0.0
    if wanted.casefold() == seen.casefold():
        return 0.1
    one, other = _core(wanted), _core(seen)
    if not one or not other:
        return 1.0
    if one == other:
        return 0.2
    if one in other or other in one:
        return 0.3 + 0.3 * (1 - min(len(one), len(other)) / max(len(one), len(other)))
    import difflib  # noqa: PLC0415 - 1 MiB that only this rank of the comparison needs

    ratio = difflib.SequenceMatcher(None, one, other).ratio()
    return 1.4 - ratio if ratio >= _ALIKE else 1.0
