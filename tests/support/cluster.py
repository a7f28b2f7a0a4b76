"""A Kubernetes control plane on loopback: etcd, kube-apiserver, kube-controller-manager, and a client for tests.

The programs are found in the folder that KUBEBUILDER_ASSETS names (the convention of envtest). There is no
kubelet: pods are made by controllers and stay Pending.
"""

import datetime as dt
import json
import os
import shutil
import socket
import ssl
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from certs import issue

JSON = dict[str, Any]
PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kubectl")
ADMIN_TOKEN = "admin"  # noqa: S105 - of a server that only this test reaches
HOW_TO_GET = (
    "set KUBEBUILDER_ASSETS to a folder that holds etcd, kube-apiserver, kube-controller-manager and kubectl: "
    "`make kube` builds them, `setup-envtest use -p path` fetches the first two and kubectl"
)


def assets() -> Path | None:
    """The folder of the programs, when all are in it."""
    named = os.environ.get("KUBEBUILDER_ASSETS")
    if not named:
        return None
    folder = Path(named)
    return folder if all((folder / program).is_file() for program in PROGRAMS) else None


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


class ControlPlane:
    """One control plane in a scratch folder. `start`, then `stop`."""

    def __init__(self, folder: Path) -> None:
        self._assets = folder
        self.scratch = Path(tempfile.mkdtemp(prefix="trialtap-kube-"))
        self._processes: list[subprocess.Popen[bytes]] = []
        self.url = ""
        self.client: httpx.Client

    @property
    def kubectl_path(self) -> Path:
        return self._assets / "kubectl"

    @property
    def ca(self) -> Path:
        return self.scratch / "ca.crt"

    def start(self) -> "ControlPlane":
        self._certificates()
        etcd = self._start_etcd()
        self.url = self._start_api_server(etcd)
        self.client = httpx.Client(
            base_url=self.url,
            verify=ssl.create_default_context(cafile=self.ca),
            headers={"Authorization": f"Bearer {ADMIN_TOKEN}"},
            timeout=30,
        )
        wait_until(self._ready, 90, "the API server to become ready")
        self._start_controller_manager()
        wait_until(self._default_account, 60, "the controller manager to make service accounts")
        return self

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.kill()  # nothing of it is kept
            process.wait()
        shutil.rmtree(self.scratch, ignore_errors=True)

    def kubeconfig(self, token: str = ADMIN_TOKEN) -> Path:
        """A kubeconfig for the bearer of a token."""
        path = self.scratch / f"kubeconfig-{abs(hash(token)):x}"
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [
                {"name": "test", "cluster": {"server": self.url, "certificate-authority": str(self.ca)}}
            ],
            "users": [{"name": "test", "user": {"token": token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        }
        path.write_text(yaml.safe_dump(document))
        return path

    def kubectl(self, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.kubectl_path, "--kubeconfig", self.kubeconfig(), *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    def apply(self, *objects: JSON) -> None:
        """Create or change objects."""
        listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
        done = self.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=listed)
        assert done.returncode == 0, done.stderr

    def token(self, namespace: str, account: str, audience: str | None = None) -> str:
        """A token of a service account (TokenRequest)."""
        spec: JSON = {"expirationSeconds": 3600}
        if audience:
            spec["audiences"] = [audience]
        answer = self.client.post(
            f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token",
            json={"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec},
        )
        assert answer.status_code == 201, answer.text
        token: str = answer.json()["status"]["token"]
        return token

    def get(self, path: str) -> JSON:
        answer = self.client.get(path)
        assert answer.status_code == 200, answer.text
        found: JSON = answer.json()
        return found

    def free_trials(self) -> None:
        """Take every Trial's finalizers away: when no controller is left, they would keep it for ever."""
        listed = self.client.get("/apis/kubeflow.org/v1beta1/trials")
        for made in listed.json().get("items", []) if listed.status_code == 200 else ():
            namespace, name = made["metadata"]["namespace"], made["metadata"]["name"]
            self.client.patch(
                f"/apis/kubeflow.org/v1beta1/namespaces/{namespace}/trials/{name}",
                content='{"metadata": {"finalizers": null}}',
                headers={"Content-Type": "application/merge-patch+json"},
            )

    def create(self, path: str, body: JSON, **headers: str) -> httpx.Response:
        return self.client.post(path, json=body, headers=headers)

    def _certificates(self) -> None:
        now, life = dt.datetime.now(dt.UTC), dt.timedelta(days=2)
        authority = issue.authority(now, life)
        served = issue.leaf(
            authority, ["127.0.0.1", "localhost", "10.0.0.1", "kubernetes.default.svc"], now, life
        )
        self.ca.write_bytes(authority.certificate)
        (self.scratch / "tls.crt").write_bytes(served.certificate)
        (self.scratch / "tls.key").write_bytes(served.key)
        key = ec.generate_private_key(ec.SECP256R1())
        (self.scratch / "sa.key").write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.TraditionalOpenSSL,
                serialization.NoEncryption(),
            )
        )
        (self.scratch / "sa.pub").write_bytes(
            key.public_key().public_bytes(
                serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
            )
        )
        (self.scratch / "tokens.csv").write_text(f'{ADMIN_TOKEN},admin,admin,"system:masters"\n')

    def _run(self, name: str, arguments: Sequence[str]) -> None:
        log = (self.scratch / f"{name}.log").open("wb")
        with log:
            process = subprocess.Popen(
                [self._assets / name, *arguments], stdout=log, stderr=subprocess.STDOUT, cwd=self.scratch
            )
        self._processes.append(process)

    def _start_etcd(self) -> str:
        client, peer = f"http://127.0.0.1:{free_port()}", f"http://127.0.0.1:{free_port()}"
        self._run(
            "etcd",
            [
                f"--data-dir={self.scratch / 'etcd'}",
                f"--listen-client-urls={client}",
                f"--advertise-client-urls={client}",
                f"--listen-peer-urls={peer}",
                f"--initial-advertise-peer-urls={peer}",
                f"--initial-cluster=default={peer}",
                "--unsafe-no-fsync",
            ],
        )
        return client

    def _start_api_server(self, etcd: str) -> str:
        port = free_port()
        self._run(
            "kube-apiserver",
            [
                f"--etcd-servers={etcd}",
                "--bind-address=127.0.0.1",
                "--advertise-address=127.0.0.1",
                f"--secure-port={port}",
                f"--tls-cert-file={self.scratch / 'tls.crt'}",
                f"--tls-private-key-file={self.scratch / 'tls.key'}",
                "--endpoint-reconciler-type=none",
                "--authorization-mode=Node,RBAC",
                "--service-cluster-ip-range=10.0.0.0/24",
                "--service-account-issuer=https://kubernetes.default.svc",
                f"--service-account-key-file={self.scratch / 'sa.pub'}",
                f"--service-account-signing-key-file={self.scratch / 'sa.key'}",
                f"--client-ca-file={self.ca}",
                f"--token-auth-file={self.scratch / 'tokens.csv'}",
                "--allow-privileged=true",
            ],
        )
        return f"https://127.0.0.1:{port}"

    def _start_controller_manager(self) -> None:
        self._run(
            "kube-controller-manager",
            [
                f"--kubeconfig={self.kubeconfig()}",
                "--bind-address=127.0.0.1",
                f"--secure-port={free_port()}",
                "--use-service-account-credentials=true",
                "--leader-elect=false",
                f"--service-account-private-key-file={self.scratch / 'sa.key'}",
                f"--root-ca-file={self.ca}",
            ],
        )

    def _ready(self) -> bool:
        for process in self._processes:
            assert process.poll() is None, self._log_ends()
        try:
            return self.client.get("/readyz").status_code == 200
        except httpx.HTTPError:
            return False

    def _default_account(self) -> bool:
        return self.client.get("/api/v1/namespaces/default/serviceaccounts/default").status_code == 200

    def _log_ends(self) -> str:
        return "\n".join(
            f"{log.name}: {log.read_text(errors='replace')[-600:]}" for log in self.scratch.glob("*.log")
        )


def wait_until(condition: Callable[[], Any], seconds: float, what: str) -> Any:
    """Wait for a condition to hold; what it returned."""
    until = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < until, f"waited {seconds} s for {what}"
        time.sleep(0.1)
    return found
