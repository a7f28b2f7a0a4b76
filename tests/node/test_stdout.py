"""The main job: a Trial by `kubectl apply`, its training's prints in the database while it runs, its end."""

from tests.support.running import Trial, get, training, trial


def test_a_trial_of_an_image_without_a_shell_is_seen_while_it_runs_and_ends_with_its_observation(
    hpo: str,
) -> None:
    submitted = Trial(trial(hpo, "prints", training("/training", "40", "250")))
    submitted.training_runs()
    submitted.has_rows(3, 30)
    assert not submitted.conditions("job"), "rows came only when the training had ended"

    assert submitted.ended().type == "Succeeded"
    numbers = [str(number) for number in range(1, 41)]
    assert submitted.wrote() == numbers, "the training's own log is not whole"
    assert submitted.rows() == numbers
    assert submitted.observation() == {"loss": {"name": "loss", "min": "1", "max": "40", "latest": "40"}}

    (pod,) = submitted.pods()
    statuses = pod["status"]["initContainerStatuses"] + pod["status"]["containerStatuses"]
    assert [(s["state"]["terminated"]["exitCode"], s["restartCount"]) for s in statuses] == [(0, 0), (0, 0)]
    assert "Complete" in {c.type for c in submitted.conditions("job")}
    assert get(hpo, "pod", submitted.pod())["metadata"]["annotations"]["trialtap/decision"] == "injected"


def test_a_training_that_prints_no_metric_is_told_so(hpo: str) -> None:
    submitted = Trial(trial(hpo, "silent", training("/training", "3", "10"), metrics=["accuracy"]))
    assert submitted.ended().type == "MetricsUnavailable"
    log = "\n".join(submitted.log("metrics-logger-and-collector"))
    assert "accuracy" in log
    assert "loss" in log, "the collector does not say what it saw"
