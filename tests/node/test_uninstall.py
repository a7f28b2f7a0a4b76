"""`helm uninstall`: nothing of ours stays, what is the user's does, and pods are made again without us."""

import json

from tests.support import running
from tests.support.running import HOME, Trial, helm, kubectl, training, trial

KINDS = (
    "mutatingwebhookconfigurations,validatingwebhookconfigurations,clusterroles,clusterrolebindings,"
    "deployments,services,configmaps,secrets,leases,serviceaccounts,roles,rolebindings,poddisruptionbudgets"
)


def test_after_uninstall_nothing_of_the_release_is_left_but_what_is_the_user_s(hpo: str) -> None:
    submitted = Trial(trial(hpo, "before", training("/training", "5", "10")))
    assert submitted.ended().type == "Succeeded"
    helm("uninstall", "trialtap", "-n", HOME, "--wait", "--timeout=2m")
    found = json.loads(kubectl("get", KINDS, "-A", "-o", "json"))["items"]
    ours = [
        f"{o['kind']}/{o['metadata']['name']}" for o in found if o["metadata"]["name"].startswith("trialtap")
    ]
    assert ours == []
    assert running.get(hpo, "trial", "before")["status"]["observation"]

    # What was kept is taken up again.
    running.install()
    assert submitted.rows() == ["1", "2", "3", "4", "5"]
