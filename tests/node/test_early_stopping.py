"""A training that is going nowhere is ended early, and its Trial says so."""

import pytest

from tests.support.cluster import wait_until
from tests.support.running import JSON, Trial, python, training, trial

PRINTS = training("/training", "10000", "200")
WRITES = python("""
import time
for number in range(1, 10000):
    with open("/var/log/katib/metrics.log", "a") as file:
        print(f"loss={number}", file=file)
    time.sleep(0.2)
""")


@pytest.mark.parametrize(("kind", "container"), [("StdOut", PRINTS), ("File", WRITES)])
def test_a_training_whose_rule_is_met_is_ended_and_its_trial_is_early_stopped(
    hpo: str, kind: str, container: JSON
) -> None:
    # From the tenth report on, the best (the least, 1) is looked at.
    rule = {"name": "loss", "value": "0.5", "comparison": "greater", "startStep": 10}
    collector = {"collector": {"kind": kind}}
    submitted = Trial(trial(hpo, kind.lower(), container, collector, earlyStoppingRules=[rule]))
    end = submitted.ended()
    assert end.type == "EarlyStopped", end

    wait_until(lambda: submitted.pods()[0]["status"]["phase"] == "Succeeded", 60, "the pod to succeed")
    statuses = submitted.pods()[0]["status"]["containerStatuses"]
    assert statuses[0]["state"]["terminated"]["exitCode"] == 0
    rows = submitted.rows()
    assert 10 <= len(rows) < 1000
    assert rows == [str(number) for number in range(1, len(rows) + 1)]
    assert submitted.observation()["loss"]["min"] == "1"
