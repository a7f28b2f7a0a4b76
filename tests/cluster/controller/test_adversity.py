"""The controller killed, doubled, loaded, and deprived of kinds and rights: each test runs its own."""

import random
import time
from collections.abc import Callable
from pathlib import Path

from tests.support import manifests
from tests.support.cluster import ControlPlane, wait_until
from tests.support.controlling import (
    JSON,
    KINDS,
    LATE,
    TRIALS,
    config,
    controller,
    create,
    kinds,
    report,
    set_phase,
    state,
    trial,
    wait_for,
)
from tests.support.programs import Program


def test_a_crd_installed_later_and_a_kind_added_later_are_run(
    plane: ControlPlane, database: Program, tmp_path: Path, hpo: str
) -> None:
    config(tmp_path, "Job.v1.batch", "Late.v1.late.example.org")
    served = controller(plane, database, tmp_path).start()
    try:
        create(plane, trial(hpo, run={"apiVersion": LATE[0], "kind": LATE[1], "spec": {}}))
        wait_until(
            lambda: "no such kind" in state(plane, hpo).get("message", ""),
            30,
            "the Trial to say that the kind is missing",
        )
        plane.apply(manifests.crd(*LATE))
        wait_for(plane, hpo, "Running", seconds=60)
        create(plane, trial(hpo, "second", run={"apiVersion": KINDS[1][0], "kind": KINDS[1][1], "spec": {}}))
        wait_until(
            lambda: "trialResources" in state(plane, hpo, "second").get("message", ""),
            30,
            "the second Trial to say it",
        )
        config(tmp_path, "Job.v1.batch", "Late.v1.late.example.org", "Beta.v2.beta.example.org")
        wait_for(plane, hpo, "Running", "second", seconds=60)
    finally:
        served.stop()
        plane.client.delete(
            f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{LATE[2]}.late.example.org"
        )


def test_a_right_taken_away_is_said_and_given_back_heals(
    plane: ControlPlane, database: Program, tmp_path: Path, hpo: str
) -> None:
    rbac = "rbac.authorization.k8s.io"
    name = f"controller-{hpo}"

    def role(*groups: str) -> JSON:
        rules = [
            {
                "apiGroups": ["kubeflow.org"],
                "resources": ["trials", "trials/status"],
                "verbs": ["get", "list", "watch", "patch"],
            },
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]},
            {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]},
            {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]},
            *(
                {
                    "apiGroups": [group],
                    "resources": ["*"],
                    "verbs": ["get", "list", "watch", "create", "delete"],
                }
                for group in groups
            ),
        ]
        return {"apiVersion": f"{rbac}/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules}

    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "c", "namespace": hpo}}
    binding = {
        "apiVersion": f"{rbac}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": "c", "namespace": hpo}],
    }
    plane.apply(account, role("batch"), binding)
    config(tmp_path, "Job.v1.batch", "Alpha.v1.alpha.example.org")
    served = controller(plane, database, tmp_path, token=plane.token(hpo, "c")).start()
    try:
        create(plane, trial(hpo, run={"apiVersion": KINDS[0][0], "kind": KINDS[0][1], "spec": {}}))
        wait_until(
            lambda: "forbidden" in state(plane, hpo).get("message", "").lower(),
            30,
            "the Trial to say what is missing",
        )
        plane.apply(role("batch", "alpha.example.org"))
        wait_for(plane, hpo, "Running", seconds=60)
    finally:
        served.stop()


def test_a_controller_killed_again_and_again_makes_one_workload_each(
    plane: ControlPlane, database: Program, tmp_path: Path, hpo: str
) -> None:
    config(tmp_path, *kinds())
    kind = KINDS[2]
    choose = random.Random(7)
    for number in range(10):
        create(plane, trial(hpo, f"t{number}", run={"apiVersion": kind[0], "kind": kind[1], "spec": {}}))
        report(database, hpo, f"t{number}", "1")
    served = controller(plane, database, tmp_path)
    for _ in range(8):
        served.start()
        time.sleep(choose.uniform(0.05, 1.0))
        served.kill()
    served.start()
    try:
        path = f"/apis/{kind[0]}/namespaces/{hpo}/{kind[2]}"
        wait_until(lambda: len(plane.get(path)["items"]) == 10, 30, "ten workloads")
        for number in range(10):
            wait_for(plane, hpo, "Running", f"t{number}")
            set_phase(plane, kind, hpo, "Done", f"t{number}")
        for _ in range(5):
            time.sleep(choose.uniform(0.05, 1.0))
            served.kill()
            served.start()
        for number in range(10):
            wait_for(plane, hpo, "Succeeded", f"t{number}")
            status = plane.get(f"{TRIALS.format(hpo)}/t{number}")["status"]
            assert [c["type"] for c in status["conditions"]] == ["Created", "Running", "Succeeded"]
            assert status["observation"]["metrics"][0]["latest"] == "1"
    finally:
        served.stop()


def test_of_two_replicas_one_acts_and_the_other_takes_over(
    plane: ControlPlane, database: Program, tmp_path: Path, hpo: str
) -> None:
    lease = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "controller", "namespace": hpo},
    }
    plane.apply(lease)
    replicas = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        config(tmp_path / name, *kinds())
        replicas.append(controller(plane, database, tmp_path / name, "--lease", f"{hpo}/controller").start())
    try:
        kind = KINDS[0]
        for number in range(5):
            create(plane, trial(hpo, f"t{number}", run={"apiVersion": kind[0], "kind": kind[1], "spec": {}}))
        for number in range(5):
            wait_for(plane, hpo, "Running", f"t{number}", seconds=60)
        holder = plane.get(f"/apis/coordination.k8s.io/v1/namespaces/{hpo}/leases/controller")["spec"][
            "holderIdentity"
        ]
        leader = next(replica for replica in replicas if holder.endswith(f"-{replica.pid}"))
        leader.kill()
        create(plane, trial(hpo, "late", run={"apiVersion": kind[0], "kind": kind[1], "spec": {}}))
        wait_for(plane, hpo, "Running", "late", seconds=90)
        created = plane.kubectl(
            "get", "events", "-n", hpo, "-o", "jsonpath={.items[*].reason}"
        ).stdout.split()
        assert created.count("JobCreated") == 6
    finally:
        for replica in replicas:
            replica.stop()


def test_many_trials_at_once_cost_calls_and_memory_in_proportion(
    plane: ControlPlane,
    database: Program,
    tmp_path: Path,
    hpo: str,
    record_property: Callable[[str, object], None],
) -> None:
    config(tmp_path, *kinds())
    served = controller(plane, database, tmp_path).start()
    kind = KINDS[1]
    path = f"/apis/{kind[0]}/namespaces/{hpo}/{kind[2]}"
    try:
        before = served.memory()
        for number in range(100):
            create(plane, trial(hpo, f"t{number}", run={"apiVersion": kind[0], "kind": kind[1], "spec": {}}))
        wait_until(lambda: len(plane.get(path)["items"]) == 100, 60, "the workloads")
        text = plane.client.__class__(timeout=10).get(f"http://{served.ready['http']}/metrics").text
        actions = {
            line.split('"')[1]: float(line.rpartition(" ")[2])
            for line in text.splitlines()
            if line.startswith("trialtap_controller_actions_total{")
        }
        record_property("bytes a trial", (served.memory() - before) // 100)
        assert actions["Create"] == 100
        assert sum(actions.values()) <= 100 * 10, actions
    finally:
        served.stop()
