"""Commands behind tap: whatever the kubelet would have run before, it runs now, byte for byte."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trialtap import names
from webhook import command
from webhook.command import Entrypoint

TAP = command.tap_argv(copy=True, keep=command.DEFAULT_KEEP)

WORDS = st.one_of(
    st.text(max_size=12),
    st.text(alphabet="$()AB_ \n'\";#\\", max_size=16),
    st.sampled_from(
        ["", " ", "$HOME", "$(HOME)", "$$(HOME)", "$$", "$", "$(", "a;b # c\n", "--", "-c", "$(HOME"]
    ),
)
ARGV = st.lists(WORDS, max_size=5)
ENVIRONMENT = st.dictionaries(st.sampled_from(["HOME", "A", "B", "A B", ""]), st.text(max_size=5), max_size=4)


def expanded(text: str, environment: dict[str, str]) -> str:
    """`$(VAR)` and `$$` as the kubelet reads them in command and args (Kubernetes API, Container.command).

    `$$` gives `$`; `$(NAME)` the variable, or stays as it is when there is none; any other `$` stays.
    """
    out, place = "", 0
    while place < len(text):
        if text[place] != "$" or place + 1 == len(text):
            out, place = out + text[place], place + 1
        elif text[place + 1] == "$":
            out, place = out + "$", place + 2
        elif text[place + 1] == "(" and (end := text.find(")", place + 2)) >= 0:
            name = text[place + 2 : end]
            out, place = out + environment.get(name, f"$({name})"), end + 1
        else:
            out, place = out + text[place : place + 2], place + 2
    return out


def run_by_kubelet(container: dict[str, Any], image: Entrypoint, environment: dict[str, str]) -> list[str]:
    """The argv of a container's process: its command, else the image's entrypoint; its args, else the CMD.

    The CMD counts only where there is neither command nor args (Kubernetes docs, "Define a Command").
    What the image says is not expanded.
    """
    words = [expanded(word, environment) for word in container.get("command") or ()]
    args = [expanded(word, environment) for word in container.get("args") or ()]
    if words:
        return words + args
    return [*image.entrypoint, *(args or image.cmd)]


@given(ARGV, ARGV, ARGV, ARGV, ENVIRONMENT)
@example(["sh", "-c"], ["a; b # c\n"], [], [], {})
@example([], [], ["/bin/sh", "-c"], ["echo $(HOME) $$(HOME)"], {"HOME": "/root"})
@example(["/bin/bash", "-lc", "x && y"], [], [], [], {})
@example(["tini", "--", "sh", "-c", 'exec "$0"'], ["$$(A)"], [], [], {"A": "b"})
@example([], ["$(A)"], ["$$(A)"], ["unused"], {"A": "b"})
def test_the_kubelet_runs_the_same_argv_as_before(
    words: list[str], args: list[str], entrypoint: list[str], cmd: list[str], environment: dict[str, str]
) -> None:
    container = {"name": "c", "command": words, "args": args}
    image = Entrypoint(tuple(entrypoint), tuple(cmd))
    before = run_by_kubelet(container, image, environment)
    wrapped = command.wrap(container, TAP, image)
    if not before:
        assert wrapped is None
        return
    assert wrapped is not None
    after = {"command": list(wrapped[0]), "args": args if wrapped[1] is None else list(wrapped[1])}
    assert run_by_kubelet(after, Entrypoint(("other",), ("cmd",)), environment) == [*TAP, *before]


@given(st.text(alphabet="$()ab", max_size=20), ENVIRONMENT)
def test_escaping_is_undone_by_the_kubelet(text: str, environment: dict[str, str]) -> None:
    assert expanded(command.escape(text), environment) == text


@given(st.text(alphabet="$()ab", max_size=20))
def test_nothing_is_escaped_without_need(text: str) -> None:
    if expanded(text, {}) == text and "$$" not in text and "$(" not in text:
        assert command.escape(text) == text


@given(ARGV.filter(bool), ARGV)
def test_what_the_spec_holds_stays_in_its_field(words: list[str], args: list[str]) -> None:
    wrapped = command.wrap({"command": words, "args": args}, TAP, None)
    assert wrapped == ((*TAP, *words), None)


@pytest.mark.parametrize("container", [{}, {"command": []}, {"command": None, "args": ["x"]}])
def test_without_command_and_image_there_is_nothing_to_wrap(container: dict[str, Any]) -> None:
    assert command.wrap(container, TAP, None) is None


@pytest.mark.parametrize(
    ("copy", "keep", "argv"),
    [
        (True, 1 << 30, [names.TAP, "--to", names.TAP_OUTPUT, "--control", names.TAP_CONTROL, "--"]),
        (True, 5, [names.TAP, "--to", names.TAP_OUTPUT, "--control", names.TAP_CONTROL, "--keep", "5", "--"]),
        (False, 5, [names.TAP, "--control", names.TAP_CONTROL, "--"]),
    ],
)
def test_tap_is_told_what_to_copy_and_how_much_to_keep(copy: bool, keep: int, argv: list[str]) -> None:
    assert list(command.tap_argv(copy=copy, keep=keep)) == argv


@pytest.mark.parametrize(
    ("words", "wrapped"), [(None, False), ([], False), (["python"], False), ([names.TAP, "--"], True)]
)
def test_a_wrapped_command_is_known(words: list[str] | None, wrapped: bool) -> None:
    assert command.is_wrapped({"command": words}) is wrapped
