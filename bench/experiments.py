"""Validation of an Experiment with 100 parameters: CPU milliseconds, and as a share of the limit of 5 ms."""

import copy
import time
from pathlib import Path

import yaml

from webhook.experiments import rules

LIMIT_MS = 5.0
ROUNDS = 50
BASE = yaml.safe_load((Path(__file__).parents[1] / "tests/cases/experiments/base.yaml").read_text())


def experiment(parameters: int) -> dict:
    """The base with so many double parameters, each used by the template."""
    made = copy.deepcopy(BASE)
    template = made["spec"]["trialTemplate"]
    made["spec"]["parameters"] = [
        {
            "name": f"p{i}",
            "parameterType": "double",
            "feasibleSpace": {"min": "0.1", "max": "1", "step": "0.1"},
        }
        for i in range(parameters)
    ]
    template["trialParameters"] = [{"name": f"n{i}", "reference": f"p{i}"} for i in range(parameters)]
    container = template["trialSpec"]["spec"]["template"]["spec"]["containers"][0]
    container["command"] = ["train", *(f"--p{i}=${{trialParameters.n{i}}}" for i in range(parameters))]
    return made


def main() -> None:
    """Measure and print one row."""
    asked = experiment(100)
    assert not rules.faults_of(asked).causes
    begun = time.process_time()
    for _ in range(ROUNDS):
        rules.faults_of(asked)
    spent = (time.process_time() - begun) / ROUNDS * 1000
    print(
        f"validate an Experiment of 100 parameters: {spent:.2f} ms of CPU, {spent / LIMIT_MS:.2f} of the limit of {LIMIT_MS:g} ms"
    )


if __name__ == "__main__":
    main()
