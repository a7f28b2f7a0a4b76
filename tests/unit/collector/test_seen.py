"""What comes closest to a metric that never appeared."""

import pytest

from collector.seen import advice, closest, look, most_seen
from collector.source import Findings

CASES = [
    ("another case", "accuracy", "epoch=1 Accuracy=0.9", "'Accuracy=0.9'"),
    ("a longer name", "accuracy", "val-accuracy=0.9", "'val-accuracy=0.9'"),
    ("another sign between the words", "val_acc", "val-acc=0.9", "'val-acc=0.9'"),
    ("a colon with blanks", "accuracy", "accuracy : 0.9", "'accuracy : 0.9'"),
    ("blanks alone", "accuracy", "[3/10] accuracy 0.9", "'accuracy 0.9'"),
    ("a dict as Python prints it", "eval_loss", "{'eval_loss': 0.4, 'epoch': 1.0}", "eval_loss"),
    ("a slip of the finger", "accuracy", "acuracy=0.9", "'acuracy=0.9'"),
    ("nothing alike: what was seen instead", "accuracy", "lr=0.1 time=3", "seen instead: lr, time"),
    ("nothing at all", "accuracy", "training has begun", "nor anything else"),
]


@pytest.mark.parametrize(("name", "wanted", "line", "expect"), CASES, ids=[case[0] for case in CASES])
def test_advice_names_what_comes_closest(name: str, wanted: str, line: str, expect: str) -> None:
    findings = Findings()
    look(line, [wanted], findings)
    (sentence,) = advice([wanted], (), findings)
    assert repr(wanted) in sentence
    assert expect in sentence


def test_the_same_name_written_otherwise_comes_with_the_next_step() -> None:
    findings = Findings()
    look("accuracy : 0.9", ["accuracy"], findings)
    assert "filter" in advice(["accuracy"], (), findings)[0]


def test_a_name_that_was_found_needs_no_advice() -> None:
    assert len(advice(["loss", "acc"], {"loss"}, Findings())) == 1


def test_the_most_frequent_name_comes_first() -> None:
    findings = Findings()
    for line in ("a=1", "b=1", "b=2"):
        look(line, ["x"], findings)
    assert most_seen(findings) == ["b", "a"]


def test_the_best_of_many_comes_first() -> None:
    assert closest("acc", ["val_acc", "ACC", "lr", "top1-acc-of-all"]) == [
        "ACC",
        "val_acc",
        "top1-acc-of-all",
    ]
