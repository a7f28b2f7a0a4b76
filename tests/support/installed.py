"""The chart installed on a control plane without a kubelet.

helm does what it does; then the commands of the rendered pods are run here, as processes with tokens of
their service accounts, and the webhook's Service leads to them through a small balancer.
"""

import contextlib
import json
import os
import queue
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.support import helm
from tests.support.cluster import ControlPlane, wait_until

JSON = dict[str, Any]
REPOSITORY = Path(__file__).parents[2]
LABEL = {"katib.kubeflow.org/metrics-collector-injection": "enabled"}


class Program:
    """A process whose lines on stdout and stderr are kept."""

    def __init__(self, arguments: list[str], env: dict[str, str]) -> None:
        self.lines: list[str] = []
        self._changed = threading.Condition()
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=REPOSITORY,
            env={**os.environ, **env},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            with self._changed:
                self.lines.append(line.rstrip())
                self._changed.notify_all()

    def wait_for(self, start: str, seconds: float = 60) -> str:
        """The first line that begins so."""

        def found() -> str | None:
            return next((line for line in self.lines if line.startswith(start)), None)

        with self._changed:
            self._changed.wait_for(lambda: found() or self.process.poll() is not None, seconds)
        line = found()
        assert line, f"no line {start!r} within {seconds:g} s:\n" + "\n".join(self.lines[-20:])
        return line

    def stop(self, number: int = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(20)
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            self._reader.join(5)


class Balancer:
    """What a Service is: connections to its address go to one of the ready replicas."""

    def __init__(self) -> None:
        self.backends: list[int] = []
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # An address of the loopback network of our own, so that the port can be the Service's.
        while True:
            self.address = ".".join(["127", *(str(random.randint(1, 254)) for _ in range(3))])
            with contextlib.suppress(OSError):
                self._listener.bind((self.address, 443))
                break
        self._listener.listen(256)
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        for port in random.sample(self.backends, len(self.backends)):
            try:
                server = socket.create_connection(("127.0.0.1", port), 2)
            except OSError:
                continue
            server.settimeout(None)
            threading.Thread(target=_pump, args=(server, client), daemon=True).start()
            _pump(client, server)
            return
        client.close()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            sink.sendall(data)
    except OSError:
        pass
    for end in (source, sink):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()


def may_bind_low_ports() -> bool:
    with socket.socket() as listener:
        try:
            listener.bind(("127.77.77.77", 443))
        except PermissionError:
            return False
        except OSError:
            return True
    return True


@dataclass
class Replica:
    """One pod of the webhook's Deployment: its two programs."""

    folder: Path
    certs: Program
    probes: str
    webhook: Program | None = None
    port: int = 0

    def is_ready(self) -> bool:
        """What the kubelet would find."""
        return probe(f"http://{self.probes}/readyz") and (
            self.webhook is None or probe(f"https://127.0.0.1:{self.port}/readyz")
        )

    def stop(self) -> None:
        for program in (self.webhook, self.certs):
            if program:
                program.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


def probe(url: str) -> bool:
    try:
        return httpx.get(url, verify=False, timeout=5).status_code == 200  # noqa: S501 - as the kubelet does
    except httpx.HTTPError:
        return False


@dataclass
class Release:
    """A release of the chart in a namespace of its own."""

    plane: ControlPlane
    namespace: str
    name: str = "trialtap"
    flags: tuple[str, ...] = ("--lead-seconds=2",)
    """For `certs serve`, behind those of the chart."""
    replicas: list[Replica] = field(default_factory=list)
    balancer: Balancer = field(default_factory=Balancer)
    home: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="trialtap-helm-")))

    @property
    def configuration(self) -> str:
        return f"trialtap-{self.namespace}"

    def helm(self, *arguments: str) -> str:
        env = {f"HELM_{kind}_HOME": str(self.home / kind) for kind in ("CACHE", "CONFIG", "DATA")}
        done = helm.run(
            *arguments, "--namespace", self.namespace, "--kubeconfig", self.plane.kubeconfig(), env=env
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def install(self, *more: str) -> str:
        said = self.helm("install", self.name, str(helm.CHART), "--create-namespace", *more)
        spec = {
            "type": "ExternalName",
            "externalName": self.balancer.address,
            "clusterIP": None,
            "clusterIPs": None,
        }
        patched = self.plane.kubectl(
            "-n", self.namespace, "patch", "service", "trialtap-webhook", "-p", json.dumps({"spec": spec})
        )
        assert patched.returncode == 0, patched.stderr
        return said

    def pod(self) -> JSON:
        path = f"/apis/apps/v1/namespaces/{self.namespace}/deployments/trialtap-webhook"
        spec: JSON = self.plane.get(path)["spec"]["template"]["spec"]
        return spec

    def start_certs(self) -> Replica:
        """The pod's first container."""
        (container,) = [c for c in self.pod()["initContainers"] if c["name"] == "certs"]
        folder = Path(tempfile.mkdtemp(prefix="trialtap-pod-"))
        values = {
            "$(NAMESPACE)": self.namespace,
            "$(POD)": folder.name,
            "/etc/trialtap/tls": str(folder),
            "0.0.0.0:8081": "127.0.0.1:0",
        }
        arguments = [*container["command"][1:], *replaced(container["args"], values), *self.flags]
        program = Program([*arguments, f"--kubeconfig={self._account()}"], {})
        address = program.wait_for("certs ready http=").partition("http=")[2]
        replica = Replica(folder, program, address)
        self.replicas.append(replica)
        return replica

    def start_webhook(self, replica: Replica) -> None:
        """The pod's second container, once the first has passed its startupProbe."""
        wait_until(lambda: probe(f"http://{replica.probes}/readyz"), 60, f"certs: {replica.certs.lines[-5:]}")
        (container,) = self.pod()["containers"]
        path = f"/api/v1/namespaces/{self.namespace}/configmaps/trialtap-webhook"
        settings = replica.folder / "settings.yaml"
        settings.write_text(self.plane.get(path)["data"]["settings.yaml"])
        values = {
            "/etc/trialtap/settings/settings.yaml": str(settings),
            "/etc/trialtap/tls": str(replica.folder),
            "0.0.0.0:8443": "127.0.0.1:0",
            "0.0.0.0:8080": "127.0.0.1:0",
        }
        arguments = [*container["command"][1:], *replaced(container["args"], values)]
        replica.webhook = Program([*arguments, f"--kubeconfig={self._account()}"], {})
        line = replica.webhook.wait_for("webhook ready https=")
        replica.port = int(line.partition("https=127.0.0.1:")[2].split()[0])
        wait_until(replica.is_ready, 60, f"the replica to become ready: {replica.webhook.lines[-5:]}")
        self.balancer.backends.append(replica.port)

    def start(self, count: int = 2) -> None:
        """Replicas at once, as a Deployment does."""
        new = [self.start_certs() for _ in range(count)]
        for replica in new:
            self.start_webhook(replica)

    def retire(self, replica: Replica) -> None:
        """A pod's end: out of the Service, the preStop's pause, then TERM."""
        if replica.port in self.balancer.backends:
            self.balancer.backends.remove(replica.port)
            time.sleep(1)
        self.replicas.remove(replica)
        replica.stop()

    def secret(self) -> dict[str, str]:
        path = f"/api/v1/namespaces/{self.namespace}/secrets/trialtap-certificates"
        data: dict[str, str] = self.plane.get(path).get("data") or {}
        return data

    def configurations(self) -> list[JSON]:
        base = "/apis/admissionregistration.k8s.io/v1"
        return [
            self.plane.get(f"{base}/{kind}webhookconfigurations/{self.configuration}")
            for kind in ("mutating", "validating")
        ]

    def bundles(self) -> set[str]:
        """The distinct caBundles (base64) of all our webhooks."""
        webhooks = [webhook for item in self.configurations() for webhook in item["webhooks"]]
        return {webhook["clientConfig"].get("caBundle", "") for webhook in webhooks}

    def close(self) -> None:
        for replica in list(self.replicas):
            self.retire(replica)
        self.balancer.close()
        with contextlib.suppress(AssertionError):
            self.helm("uninstall", self.name)
        self.plane.client.delete(f"/api/v1/namespaces/{self.namespace}")
        shutil.rmtree(self.home, ignore_errors=True)

    def _account(self) -> Path:
        return self.plane.kubeconfig(self.plane.token(self.namespace, "trialtap-webhook"))


def replaced(arguments: list[str], values: dict[str, str]) -> list[str]:
    """Flags of a pod as they are right for a process here."""
    for old, new in values.items():
        arguments = [argument.replace(old, new) for argument in arguments]
    return arguments


@contextlib.contextmanager
def released(plane: ControlPlane, namespace: str) -> Iterator[Release]:
    """A release that is not installed yet, and taken away at the end."""
    release = Release(plane, namespace)
    try:
        yield release
    finally:
        release.close()


def crds() -> list[JSON]:
    """The chart's CRDs as somebody else would have installed them."""
    return [yaml.safe_load(path.read_text()) for path in sorted((helm.CHART / "crds-source").glob("*.yaml"))]


def make_trial(plane: ControlPlane, namespace: str, name: str) -> JSON:
    """A labelled namespace with a Trial whose workload is a Job."""
    plane.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": LABEL}})
    body = {
        "apiVersion": "kubeflow.org/v1beta1",
        "kind": "Trial",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "objective": {"type": "maximize", "objectiveMetricName": "accuracy"},
            "parameterAssignments": [],
            "metricsCollector": {"collector": {"kind": "StdOut"}},
            "primaryContainerName": "training",
            "successCondition": 'status.conditions.#(type=="Complete")#|#(status=="True")#',
            "failureCondition": 'status.conditions.#(type=="Failed")#|#(status=="True")#',
            "runSpec": {"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": _template()}},
        },
    }
    made = plane.create(f"/apis/kubeflow.org/v1beta1/namespaces/{namespace}/trials", body)
    assert made.status_code == 201, made.text
    trial: JSON = made.json()
    return trial


def make_job(plane: ControlPlane, trial: JSON) -> JSON:
    """What a controller makes of the Trial."""
    metadata = {"name": trial["metadata"]["name"], "ownerReferences": [owner(trial)]}
    path = f"/apis/batch/v1/namespaces/{trial['metadata']['namespace']}/jobs"
    made = plane.create(path, {**trial["spec"]["runSpec"], "metadata": metadata})
    assert made.status_code == 201, made.text
    job: JSON = made.json()
    return job


def owner(item: JSON) -> JSON:
    metadata = item["metadata"]
    return {
        "apiVersion": item["apiVersion"],
        "kind": item["kind"],
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
    }


def is_injected(pod: JSON) -> bool:
    names = [container["name"] for container in pod["spec"].get("initContainers", [])]
    return "metrics-logger-and-collector" in names


def _template() -> JSON:
    container = {"name": "training", "image": "training", "command": ["python3", "train.py"]}
    return {"spec": {"restartPolicy": "Never", "containers": [container]}}


class Load:
    """Pods of a trial asked for as dry runs, so many a second, each answer looked at."""

    def __init__(self, plane: ControlPlane, job: JSON, per_second: float) -> None:
        self._plane = plane
        self._pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"generateName": f"{job['metadata']['name']}-", "ownerReferences": [owner(job)]},
            **_template(),
        }
        self._path = f"/api/v1/namespaces/{job['metadata']['namespace']}/pods?dryRun=All"
        self._pause = 1 / per_second
        self._due: queue.Queue[bool] = queue.Queue(maxsize=50)
        self._stop = threading.Event()
        self.answers: Counter[str] = Counter()
        self._lock = threading.Lock()

    @property
    def request(self) -> tuple[str, JSON]:
        """Path and body of one of them."""
        return self._path, self._pod

    def __enter__(self) -> "Load":
        self._threads = [threading.Thread(target=self._work) for _ in range(8)]
        self._threads.append(threading.Thread(target=self._pace))
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _pace(self) -> None:
        while not self._stop.wait(self._pause):
            with contextlib.suppress(queue.Full):  # the machine is slower than that: no more is asked of it
                self._due.put_nowait(True)

    def _work(self) -> None:
        while not self._stop.is_set():
            try:
                self._due.get(timeout=0.2)
            except queue.Empty:
                continue
            try:
                answer = self._plane.create(self._path, self._pod)
                if answer.status_code != 201:
                    said = f"{answer.status_code} {answer.text[:300]}"
                else:
                    said = "injected" if is_injected(answer.json()) else "not injected"
            except httpx.HTTPError as error:
                said = f"{type(error).__name__}: {error}"
            with self._lock:
                self.answers[said] += 1
