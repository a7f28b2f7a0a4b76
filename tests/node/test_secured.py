"""Writers prove who they are: TLS by the chart's CA and the kubelet's projected tokens, turned on by an upgrade."""

from collections.abc import Iterator

import pytest

from tests.support import nodeimages
from tests.support.running import HOME, Trial, training, trial, upgrade

SECURED = ("dbManager.tls.enabled=true", "dbManager.auth=token", "networkPolicy.enabled=true")
# What one without a token tries: to write a row of another's trial.
INTRUDER = f"""
import kubeflow.katib as katib
katib.report_metrics({{"loss": 0}}, db_manager_address="trialtap-db-manager.{HOME}:6789", timeout=10)
"""


@pytest.fixture
def secured(release: float) -> Iterator[None]:
    upgrade(*SECURED)
    yield
    upgrade()


def test_rows_arrive_and_trials_are_stopped_early_under_tls_and_tokens(secured: None, hpo: str) -> None:
    prints = Trial(trial(hpo, "prints", training("/training", "40", "50")))
    rule = {"name": "loss", "value": "0.5", "comparison": "greater", "startStep": 10}
    stopped = Trial(trial(hpo, "stopped", training("/training", "10000", "200"), earlyStoppingRules=[rule]))
    intruder = training(
        "python3",
        "-c",
        INTRUDER,
        image=nodeimages.PYTHON,
        env=[{"name": "PYTHONPATH", "value": "/opt/katib"}],
    )
    pushed = Trial(trial(hpo, "pushed", intruder, {"collector": {"kind": "Push"}}))

    assert prints.ended().type == "Succeeded"
    assert prints.observation()["loss"] == {"name": "loss", "min": "1", "max": "40", "latest": "40"}
    assert stopped.ended().type == "EarlyStopped"
    assert pushed.ended().type in {"Failed", "MetricsUnavailable"}
