"""What a report may hold, the same on every database; pure."""

import re
from collections.abc import Mapping
from typing import Final

from dbmanager.rows import NAME_CHARACTERS, VALUE_BYTES, RefusedError, Report

INT64: Final = 2**63
_STREAM_ID = re.compile(r"[!-~]{1,255}", re.ASCII)


def check_name(field: str, name: str, *, empty: bool = False) -> None:
    """A name fits a column of 255 characters and holds no NUL (PostgreSQL stores none).

    Raises:
        RefusedError: it does not.
    """
    if not name and not empty:
        raise RefusedError(field, "is empty")
    if len(name) > NAME_CHARACTERS:
        raise RefusedError(field, f"has {len(name)} characters; at most {NAME_CHARACTERS} can be stored")
    if "\0" in name:
        raise RefusedError(field, "holds a NUL character")


def check(report: Report, codecs: Mapping[str, str]) -> None:
    """All of a report's limits; `codecs` are those of `Database.codecs`.

    Raises:
        RefusedError: names the first field that breaks one.
    """
    check_name("trial_name", report.trial_name)
    origin = report.origin
    if origin is not None:
        check_name("origin.namespace", origin.namespace, empty=True)
        check_name("origin.pod", origin.pod, empty=True)
        if not _STREAM_ID.fullmatch(origin.stream):
            raise RefusedError("origin.stream", "must be 1-255 printable ASCII characters without blanks")
        if origin.first + len(report.rows) >= INT64:
            raise RefusedError("origin.first", "ordinals end at 2^63")
    known: set[str] = set()
    for index, row in enumerate(report.rows):
        if row is None:
            continue
        name, value = row[2], row[3]
        if name not in known:
            check_name(f"observation_log.metric_logs[{index}].metric.name", name)
            known.add(name)
        # A character takes at most 4 bytes: only long values are encoded to be measured.
        if len(value) > VALUE_BYTES // 4 and (size := len(value.encode())) > VALUE_BYTES:
            raise RefusedError(
                f"observation_log.metric_logs[{index}].metric.value",
                f"of metric {name!r} has {size} bytes; at most {VALUE_BYTES} can be stored",
            )
        if "\0" in value:
            raise RefusedError(
                f"observation_log.metric_logs[{index}].metric.value",
                f"of metric {name!r} holds a NUL character",
            )
    if codecs:
        _check_characters(report, codecs)


def _check_characters(report: Report, codecs: Mapping[str, str]) -> None:
    _fits("trial_name", report.trial_name, codecs.get("trial_name"))
    for index, row in enumerate(report.rows):
        if row is None:
            continue
        field = f"observation_log.metric_logs[{index}].metric"
        _fits(f"{field}.name", row[2], codecs.get("metric_name"))
        _fits(f"{field}.value", row[3], codecs.get("value"))


def _fits(field: str, text: str, codec: str | None) -> None:
    if codec is None or text.isascii():
        return
    for character in text:
        fits = ord(character) <= 65535 if codec == "utf8mb3" else character.encode(codec, "ignore") != b""
        if not fits:
            raise RefusedError(
                field,
                f"the character {character!r} does not fit the table's character set ({codec}); "
                "start the DB manager with --convert-character-set to convert the table to utf8mb4",
            )
