"""A cluster whose pods run, as a user has it: kubectl, helm, trials by `kubectl apply`, rows by the DB manager's REST."""

import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.support import nodeimages
from tests.support.cluster import wait_until
from trialtap import names

JSON = dict[str, Any]
CHART = Path(__file__).parents[2] / "charts/trialtap"
HOME = "trialtap"
"""Namespace of the release."""
VALUES = (
    f"image.registry={nodeimages.REGISTRY}",
    # A node of ours has no registry to ask; on another cluster the images may have to be pulled.
    *(f"{key}.pullPolicy={nodeimages.PULL_POLICY}" for key in ("image", "sidecar")),
    "controller.enabled=true",
    "entrypointLookup.enabled=false",
)
RESTRICTED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
"""A container's securityContext, as the level `restricted` wants it."""


class Condition(NamedTuple):
    """One condition of a Trial or Job that holds."""

    type: str
    reason: str
    message: str


def kubectl(*arguments: str, stdin: str | None = None, seconds: float = 60) -> str:
    """Run kubectl; what it printed.

    Raises:
        AssertionError: it failed; the message is kubectl's.
    """
    done = subprocess.run(
        ["kubectl", *arguments], input=stdin, capture_output=True, text=True, check=False, timeout=seconds
    )
    assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}"
    return done.stdout


def helm(*arguments: str | Path, seconds: float = 240) -> str:
    """Run helm, which must succeed; what it printed."""
    done = subprocess.run(["helm", *arguments], capture_output=True, text=True, check=False, timeout=seconds)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{state_of(HOME)}"
    return done.stdout


def state_of(namespace: str) -> str:
    """Pods and latest Events, for a message."""
    found = [
        subprocess.run(
            ["kubectl", "-n", namespace, *arguments], capture_output=True, text=True, check=False
        ).stdout
        for arguments in (["get", "pods,pvc", "-o", "wide"], ["get", "events", "--sort-by=.lastTimestamp"])
    ]
    return "\n".join(text[-3000:] for text in found)


def apply(*objects: JSON) -> None:
    """`kubectl apply`."""
    kubectl(
        "apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
    )


def get(namespace: str, *what: str) -> JSON:
    """An object, or a list of them."""
    found: JSON = json.loads(kubectl("-n", namespace, "get", *what, "-o", "json"))
    return found


def namespace(name: str) -> JSON:
    """A namespace whose trials get their collector, and whose pods must be of level `restricted`."""
    labels = {names.INJECTION_LABEL: "enabled", "pod-security.kubernetes.io/enforce": "restricted"}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def training(*command: str, image: str = nodeimages.STATIC, **more: Any) -> JSON:
    """A training container."""
    return {
        "name": "training", "image": image, "imagePullPolicy": nodeimages.PULL_POLICY, "command": list(command),
        "securityContext": RESTRICTED, **more,
    }  # fmt: skip


def python(script: str, **more: Any) -> JSON:
    """A training container that runs a Python script."""
    return training("python3", "-c", script, image=nodeimages.PYTHON, **more)


def trial(
    namespace: str,
    name: str,
    container: JSON,
    collector: JSON | None = None,
    metrics: Sequence[str] = ("loss",),
    pod: JSON | None = None,
    job: JSON | None = None,
    **spec: Any,
) -> JSON:
    """A Trial whose workload is a Job of one container, as a user writes it."""
    security = {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}}
    template = {
        "restartPolicy": "Never",
        "securityContext": security,
        "containers": [container],
        **(pod or {}),
    }
    objective = {
        "type": "minimize",
        "objectiveMetricName": metrics[0],
        "additionalMetricNames": [*metrics[1:]],
    }
    return {
        "apiVersion": names.API_VERSION,
        "kind": "Trial",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "objective": objective,
            "parameterAssignments": [],
            "metricsCollector": collector or {"collector": {"kind": "StdOut"}},
            "primaryContainerName": container["name"],
            "successCondition": 'status.conditions.#(type=="Complete")#|#(status=="True")#',
            "failureCondition": 'status.conditions.#(type=="Failed")#|#(status=="True")#',
            # The Job and its pod stay, so that tests can look at them.
            "retainRun": True,
            "runSpec": {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "spec": {"backoffLimit": 0, **(job or {}), "template": {"spec": template}},
            },
            **spec,
        },
    }


class Trial:
    """A Trial that was applied."""

    def __init__(self, document: JSON) -> None:
        self.name: str = document["metadata"]["name"]
        self.namespace: str = document["metadata"]["namespace"]
        apply(document)

    def rows(self, metric: str = "loss") -> list[str]:
        """The values of a metric that the database holds, as they were stored."""
        return [row["value"] for row in self.points() if row["name"] == metric]

    def points(self) -> list[JSON]:
        """Every row that the database holds."""
        service = f"/api/v1/namespaces/{HOME}/services/trialtap-db-manager:http/proxy"
        query = f"namespace={self.namespace}&format=ndjson&order=stored"
        try:
            answer = kubectl("get", "--raw", f"{service}/api/v1/trials/{self.name}/metrics?{query}")
        except AssertionError as error:
            if "NotFound" in str(error) or "could not find" in str(error):
                return []  # nothing was reported yet
            raise
        return [json.loads(line) for line in answer.splitlines()]

    def pods(self) -> list[JSON]:
        """Its pods, the oldest first."""
        found: list[JSON] = get(self.namespace, "pods", "-l", f"{names.TRIAL_LABEL}={self.name}")["items"]
        return sorted(found, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))

    def pod(self, seconds: float = 60) -> str:
        """The name of its first pod, once there is one."""
        pods = wait_until(self.pods, seconds, f"a pod of {self.name}; {self.describe()}")
        name: str = pods[0]["metadata"]["name"]
        return name

    def training_runs(self, seconds: float = 90) -> str:
        """Wait until its training runs; the pod's name."""
        self.pod()

        def running() -> str | None:
            pod = self.pods()[0]
            states = [
                s["state"] for s in pod["status"].get("containerStatuses", ()) if s["name"] == "training"
            ]
            return pod["metadata"]["name"] if states and "waiting" not in states[0] else None

        name: str = wait_until(running, seconds, f"the training of {self.name} to run; {self.describe()}")
        return name

    def has_rows(self, count: int, seconds: float = 60) -> None:
        """Wait until that many rows are in the database."""
        wait_until(lambda: len(self.rows()) >= count, seconds, f"{count} rows of {self.name}")

    def conditions(self, kind: str = "trial") -> list[Condition]:
        """What holds of the Trial, or of its `job`."""
        status = get(self.namespace, kind, self.name).get("status", {})
        return [
            Condition(c["type"], c.get("reason", ""), c.get("message", ""))
            for c in status.get("conditions", ())
            if c["status"] == "True"
        ]

    def ended(self, seconds: float = 100) -> Condition:
        """Wait for the Trial to end; the condition that says how."""
        ends = {"Succeeded", "Failed", "Killed", "EarlyStopped", "MetricsUnavailable"}

        def end() -> Condition | None:
            return next((c for c in self.conditions() if c.type in ends), None)

        found: Condition = wait_until(end, seconds, f"the end of {self.name}; {self.describe()}")
        return found

    def observation(self) -> JSON:
        """What the Trial says was observed: metric by name."""
        metrics = get(self.namespace, "trial", self.name)["status"]["observation"]["metrics"]
        return {metric["name"]: metric for metric in metrics}

    def log(self, container: str = "training", pod: str | None = None) -> list[str]:
        """The lines of a container's log."""
        return kubectl("-n", self.namespace, "logs", pod or self.pod(), "-c", container).splitlines()

    def wrote(self, pod: str | None = None) -> list[str]:
        """The values that the training printed: the witness of what must be in the database."""
        return [line.removeprefix("loss=") for line in self.log(pod=pod) if line.startswith("loss=")]

    def describe(self) -> str:
        """What is known of it, for a message."""
        return state_of(self.namespace)


@contextmanager
def following(pod: str, namespace: str, container: str = "training") -> Iterator[Callable[[], list[str]]]:
    """Follow a container's log, which goes with its pod; gives what reads the lines that came so far."""
    with tempfile.NamedTemporaryFile() as lines:
        command = ["kubectl", "-n", namespace, "logs", "-f", pod, "-c", container]
        process = subprocess.Popen(command, stdout=lines, stderr=subprocess.DEVNULL)
        try:
            yield lambda: Path(lines.name).read_text().splitlines()
        finally:
            process.kill()
            process.wait()


def install(*values: str) -> float:
    """`helm install --wait`; the seconds it took."""
    begun = time.monotonic()
    helm("install", "trialtap", CHART, "-n", HOME, "--create-namespace", *_settings(values))
    return time.monotonic() - begun


def upgrade(*values: str) -> None:
    """`helm upgrade --wait` to the tests' values and these, until nothing answers by the old ones any more."""
    helm("upgrade", "trialtap", CHART, "-n", HOME, *_settings(values))

    def settled() -> bool:
        return not any(pod["metadata"].get("deletionTimestamp") for pod in get(HOME, "pods")["items"])

    wait_until(settled, 60, "the old pods to go")


def _settings(values: Sequence[str]) -> list[str]:
    given = [part for value in (*VALUES, *values) for part in ("--set", value)]
    return ["--wait", "--timeout=3m", *given]
