"""A whole Kubernetes with one node, in a network namespace of its own with no way out: pods that run.

    python -m tests.support.node up             # start it
    python -m tests.support.node run COMMAND…   # COMMAND inside, with KUBECONFIG; starts one for as long if none is up
    python -m tests.support.node down           # end it and leave nothing behind

etcd, API server, controller manager, scheduler, containerd, kubelet, kube-proxy and CoreDNS are plain processes
of this machine, their state is one scratch folder. Needs root and Linux. With KUBECONFIG set, `run` runs the
command on that cluster and starts none.
"""

import argparse
import contextlib
import datetime as dt
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from certs import issue
from tests.support import nodeimages

NETWORK = "trialtap-node"
ADDRESS = "10.89.0.1"
PODS, SERVICES = "10.88.0.0/24", "10.0.0.0/24"
SCRATCH = Path(tempfile.gettempdir()) / "trialtap-node"
PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy")
TOOLS = ("kubectl", "helm", "coredns")
DEBIAN = {
    "containerd": "containerd", "ctr": "containerd", "runc": "runc", "iptables": "iptables",
    "conntrack": "conntrack", "ip": "iproute2", "nsenter": "util-linux", "podman": "podman",
}  # fmt: skip
CNI = Path("/usr/lib/cni")
# Who speaks with the API server, by bearer token: (user, groups). Nobody outside the namespace reaches it.
USERS = {
    "admin": ("admin", "system:masters"),
    "kcm": ("system:kube-controller-manager", ""),
    "scheduler": ("system:kube-scheduler", ""),
    "node": ("system:node:node1", "system:nodes"),
    "proxy": ("system:kube-proxy", ""),
}


class MissingError(RuntimeError):
    """Something that the node needs is not on this machine; the message says what to do."""


def assets() -> Path:
    """The folder of Kubernetes' programs.

    Raises:
        MissingError: a program is not there.
    """
    folder = Path(os.environ.get("KUBEBUILDER_ASSETS", ""))
    absent = [name for name in (*PROGRAMS, *TOOLS) if not (folder / name).is_file()]
    if absent:
        raise MissingError(f"KUBEBUILDER_ASSETS={folder} holds no {', '.join(absent)}: run `make kube`")
    packages = {package for program, package in DEBIAN.items() if not shutil.which(program)}
    if not (CNI / "ptp").exists():
        packages.add("containernetworking-plugins")
    if packages:
        raise MissingError(f"apt-get install {' '.join(sorted(packages))}")
    if os.geteuid() != 0:
        raise MissingError("a node needs root: containers, network namespaces, mounts")
    return folder


class Node:
    """The cluster of one scratch folder."""

    def __init__(self, scratch: Path = SCRATCH) -> None:
        self.scratch = scratch
        self.kubeconfig = scratch / "admin.kubeconfig"
        self._pids = scratch / "pids"
        self._socket = scratch / "containerd.sock"

    @property
    def is_up(self) -> bool:
        """Whether one was started and not ended."""
        return self._pids.exists()

    def inside(self, *command: str | Path) -> list[str | Path]:
        """The command, to run in the network namespace."""
        # Not `ip netns exec`: that mounts a new /sys and hides the cgroups.
        return ["nsenter", f"--net=/var/run/netns/{NETWORK}", *command]

    def environment(self) -> dict[str, str]:
        """This process' environment with KUBECONFIG and the tools on the PATH."""
        path = f"{assets()}:{os.environ.get('PATH', '')}"
        hidden = {name: "" for name in os.environ if name.lower().endswith("_proxy")}
        return {**os.environ, **hidden, "KUBECONFIG": str(self.kubeconfig), "PATH": path}

    # --- up

    def up(self) -> None:
        """Start everything; returns when the node is Ready and holds the images."""
        folder = assets()
        self.scratch.mkdir(mode=0o711)
        self._pids.touch()
        begun = time.monotonic()
        archive = nodeimages.build(self.scratch)
        said(begun, "images built")
        begun = time.monotonic()
        self._network()
        self._credentials()
        self._control_plane(folder)
        self._containerd()
        self._import(archive)
        self._kubelet(folder)
        self._services(folder)
        self._wait(
            lambda: self._kubectl("wait", "--for=condition=Ready", "node/node1", "--timeout=1s"), "the node"
        )
        self._volumes()
        said(begun, "node ready")

    def _network(self) -> None:
        """A namespace whose two veth ends both stay inside: the kernel here may have no dummy device."""
        run("ip", "netns", "add", NETWORK)
        for command in (
            "ip link set lo up",
            "ip link add n0 type veth peer name n1",
            f"ip addr add {ADDRESS}/24 dev n0",
            "ip link set n0 up",
            "ip link set n1 up",
            # Addresses of Services are nobody's: without a route to them iptables never sees a packet.
            "ip route add default dev n0",
        ):
            run(*self.inside(*command.split()))
        run(*self.inside("sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"))

    def _credentials(self) -> None:
        now, life = dt.datetime.now(dt.UTC), dt.timedelta(days=30)
        authority = issue.authority(now, life)
        names = ["127.0.0.1", ADDRESS, "10.0.0.1", "localhost", "kubernetes.default.svc"]
        served = issue.leaf(authority, names, now, life)
        key = rsa.generate_private_key(65537, 2048)
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        public = key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        for name, content in {
            "ca.crt": authority.certificate, "tls.crt": served.certificate, "tls.key": served.key,
            "sa.key": private, "sa.pub": public,
        }.items():  # fmt: skip
            self._write(name, content)
        tokens = [f'{name},{user},{user},"{groups}"' for name, (user, groups) in USERS.items()]
        self._write("tokens.csv", "\n".join(tokens).encode())
        for name in USERS:
            self._write(f"{name}.kubeconfig", yaml.safe_dump(self._kubeconfig(name)).encode())

    def _kubeconfig(self, token: str) -> dict[str, Any]:
        cluster = {"server": f"https://{ADDRESS}:6443", "certificate-authority": str(self.scratch / "ca.crt")}
        return {
            "apiVersion": "v1", "kind": "Config", "current-context": "node",
            "clusters": [{"name": "node", "cluster": cluster}],
            "users": [{"name": "node", "user": {"token": token}}],
            "contexts": [{"name": "node", "context": {"cluster": "node", "user": "node"}}],
        }  # fmt: skip

    def _control_plane(self, folder: Path) -> None:
        here = self.scratch
        self._start(folder / "etcd", f"--data-dir={here / 'etcd'}", "--unsafe-no-fsync")
        self._start(
            folder / "kube-apiserver",
            "--bind-address=0.0.0.0",
            f"--advertise-address={ADDRESS}",
            "--etcd-servers=http://127.0.0.1:2379",
            f"--tls-cert-file={here / 'tls.crt'}",
            f"--tls-private-key-file={here / 'tls.key'}",
            f"--token-auth-file={here / 'tokens.csv'}",
            "--authorization-mode=Node,RBAC",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={here / 'sa.pub'}",
            f"--service-account-signing-key-file={here / 'sa.key'}",
            f"--service-cluster-ip-range={SERVICES}",
            "--allow-privileged=true",
            "--enable-aggregator-routing=true",
            "--kubelet-preferred-address-types=InternalIP",
        )
        self._wait(lambda: self._kubectl("get", "--raw", "/readyz"), "the API server")
        self._start(
            folder / "kube-controller-manager",
            f"--kubeconfig={here / 'kcm.kubeconfig'}",
            "--use-service-account-credentials=true",
            "--leader-elect=false",
            f"--service-account-private-key-file={here / 'sa.key'}",
            f"--root-ca-file={here / 'ca.crt'}",
        )
        self._start(
            folder / "kube-scheduler", f"--kubeconfig={here / 'scheduler.kubeconfig'}", "--leader-elect=false"
        )

    def _containerd(self) -> None:
        here = self.scratch
        (here / "cni").mkdir()
        ranges = {"type": "host-local", "dataDir": str(here / "ipam"), "ranges": [[{"subnet": PODS}]]}
        ptp = {"type": "ptp", "ipam": {**ranges, "routes": [{"dst": "0.0.0.0/0"}]}}
        portmap = {"type": "portmap", "capabilities": {"portMappings": True}}
        network = {"cniVersion": "0.4.0", "name": "pods", "plugins": [ptp, portmap]}
        self._write("cni/10.conflist", json.dumps(network).encode())
        # There may be no AppArmor, nor the capability to lower an OOM score, where a test runs.
        config = f"""
            version = 2
            root = "{here}/containerd/root"
            state = "{here}/containerd/state"
            [grpc]
              address = "{self._socket}"
            [plugins."io.containerd.grpc.v1.cri"]
              sandbox_image = "{nodeimages.PAUSE}"
              disable_apparmor = true
              restrict_oom_score_adj = true
              netns_mounts_under_state_dir = true
              [plugins."io.containerd.grpc.v1.cri".cni]
                bin_dir = "{CNI}"
                conf_dir = "{here}/cni"
        """
        self._write("containerd.toml", config.encode())
        self._start("containerd", "-c", here / "containerd.toml")
        self._wait(lambda: self._ctr("version"), "containerd")

    def _import(self, archive: Path) -> None:
        done = self._ctr("images", "import", archive)
        if done.returncode:
            raise RuntimeError(f"ctr images import {archive}: {done.stderr.decode()}")
        archive.unlink()

    def _kubelet(self, folder: Path) -> None:
        here = self.scratch
        config = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            # Whoever reaches it is the API server, or a pod of a test.
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "containerRuntimeEndpoint": f"unix://{self._socket}",
            "cgroupDriver": "cgroupfs", "cgroupsPerQOS": False, "enforceNodeAllocatable": [], "failCgroupV1": False,
            "failSwapOn": False, "evictionHard": {}, "imageGCHighThresholdPercent": 100,
            "clusterDNS": [ADDRESS], "clusterDomain": "cluster.local", "resolvConf": "",
            "podLogsDir": str(here / "pod-logs"), "volumePluginDir": str(here / "volume-plugins"),
        }  # fmt: skip
        self._write("kubelet.yaml", yaml.safe_dump(config).encode())
        self._start(
            folder / "kubelet",
            f"--config={here / 'kubelet.yaml'}",
            f"--kubeconfig={here / 'node.kubeconfig'}",
            f"--root-dir={here / 'kubelet'}",
            f"--cert-dir={here / 'kubelet-pki'}",
            "--hostname-override=node1",
            f"--node-ip={ADDRESS}",
        )

    def _services(self, folder: Path) -> None:
        """Addresses of Services, and their names."""
        config = {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "clientConnection": {"kubeconfig": str(self.scratch / "proxy.kubeconfig")},
            "mode": "iptables", "clusterCIDR": PODS, "hostnameOverride": "node1",
            # The machine's connection tracking is not ours to size.
            "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        }  # fmt: skip
        self._write("proxy.yaml", yaml.safe_dump(config).encode())
        self._start(folder / "kube-proxy", f"--config={self.scratch / 'proxy.yaml'}")
        names = f".:53 {{\n bind {ADDRESS}\n errors\n kubernetes cluster.local {{\n  kubeconfig {self.kubeconfig}\n }}\n}}\n"
        self._write("Corefile", names.encode())
        self._start(folder / "coredns", "-conf", self.scratch / "Corefile")

    def _volumes(self) -> None:
        """Storage for claims without a class, as many as a test session claims."""
        volumes = []
        for number in range(8):
            folder = self.scratch / "volumes" / str(number)
            folder.mkdir(parents=True)
            folder.chmod(0o777)  # hostPath knows no fsGroup
            spec = {
                "capacity": {"storage": "10Gi"},
                "accessModes": ["ReadWriteOnce"],
                "hostPath": {"path": str(folder)},
            }
            metadata = {"name": f"volume-{number}"}
            volumes.append(
                {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": metadata, "spec": spec}
            )
        listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": volumes})
        done = self._kubectl("apply", "-f", "-", stdin=listed.encode())
        if done.returncode:
            raise RuntimeError(f"volumes: {done.stderr.decode()}")

    # --- down

    def down(self) -> None:
        """End everything that `up` started, whatever state it is in; nothing is left behind."""
        if not self.scratch.exists():
            return
        self._end_kubelet_and_pods()
        for name, pid in reversed(self._started()):
            end(name, pid)
        for mount in reversed(self._mounts()):
            subprocess.run(["umount", "-l", mount], check=False, stderr=subprocess.DEVNULL)
        subprocess.run(["ip", "netns", "del", NETWORK], check=False, stderr=subprocess.DEVNULL)
        shutil.rmtree(self.scratch)
        for empty in (*Path("/sys/fs/cgroup").glob("*/k8s.io"), Path("/run/containerd")):
            remove_empty(empty)

    def _end_kubelet_and_pods(self) -> None:
        """The kubelet first, or it would start again what is ended; then containers, then their sandboxes."""
        for name, pid in self._started():
            if Path(name).name == "kubelet":
                end(name, pid)
        for _ in range(30):
            running = self._ctr("tasks", "ls", "-q").stdout.decode().split()
            for task in running:
                self._ctr("tasks", "kill", "-a", "-s", "KILL", task)
                self._ctr("tasks", "rm", "-f", task)
            if not running:
                return
            time.sleep(0.2)
        print(f"node: tasks are still there: {' '.join(running)}", file=sys.stderr)

    def _mounts(self) -> list[str]:
        lines = Path("/proc/mounts").read_text().splitlines()
        return [path for path in (line.split()[1] for line in lines) if path.startswith(f"{self.scratch}/")]

    def kill(self, container: str) -> None:
        """End a container of a pod, `containerd://ID`, as SIGKILL does."""
        done = self._ctr("tasks", "kill", "-s", "KILL", container.removeprefix("containerd://"))
        if done.returncode:
            raise RuntimeError(f"{container}: {done.stderr.decode()}")

    # --- parts

    def _write(self, name: str, content: bytes) -> None:
        path = self.scratch / name
        path.touch(mode=0o600)
        path.write_bytes(content)

    def _start(self, program: str | Path, *arguments: str | Path) -> None:
        log = self.scratch / f"{Path(program).name}.log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                self.inside(program, *arguments),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=self.scratch,
                env=self.environment(),
            )
        with self._pids.open("a") as pids:
            print(process.pid, program, file=pids)

    def _started(self) -> list[tuple[str, int]]:
        lines = self._pids.read_text().splitlines() if self._pids.exists() else []
        return [(name, int(pid)) for pid, name in (line.split(" ", 1) for line in lines)]

    def _kubectl(self, *arguments: str, stdin: bytes | None = None) -> "subprocess.CompletedProcess[bytes]":
        command = self.inside(assets() / "kubectl", "--kubeconfig", self.kubeconfig, *arguments)
        return subprocess.run(command, input=stdin, capture_output=True, check=False, timeout=60)

    def _ctr(self, *arguments: str | Path) -> "subprocess.CompletedProcess[bytes]":
        command = ["ctr", "-a", self._socket, "-n", "k8s.io", *arguments]
        return subprocess.run(command, capture_output=True, check=False, timeout=300)

    def _wait(self, look: Callable[[], "subprocess.CompletedProcess[bytes]"], what: str) -> None:
        until = time.monotonic() + 120
        while (done := look()).returncode:
            ended = [name for name, pid in self._started() if not alive(name, pid)]
            if ended or time.monotonic() > until:
                ends = [
                    f"{log.name}: {log.read_text(errors='replace')[-800:]}"
                    for log in self.scratch.glob("*.log")
                ]
                said_last = done.stderr.decode(errors="replace")[-400:]
                raise RuntimeError(
                    f"{what} did not become ready; ended: {ended}; {said_last}\n" + "\n".join(ends)
                )
            time.sleep(0.2)


def said(begun: float, what: str) -> None:
    """Tell how long something took."""
    print(f"node: {what} in {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)


def run(*command: str | Path) -> None:
    """Run a command that must succeed."""
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)


def remove_empty(folder: Path) -> None:
    """Remove what containerd makes outside its folders, unless somebody else's is in it."""
    for path, _, _ in os.walk(folder, topdown=False):
        with contextlib.suppress(OSError):
            Path(path).rmdir()


def alive(program: str, pid: int) -> bool:
    """Whether the process is there and is still that program: pids are given anew."""
    with contextlib.suppress(OSError):
        # A process that ended and was not waited for has no command line any more.
        return program.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def end(program: str, pid: int) -> None:
    """TERM, and KILL after ten seconds."""
    for number, seconds in ((signal.SIGTERM, 10), (signal.SIGKILL, 5)):
        if alive(program, pid):
            os.kill(pid, number)
        until = time.monotonic() + seconds
        while alive(program, pid) and time.monotonic() < until:
            time.sleep(0.05)


def run_on(node: Node, command: Sequence[str]) -> int:
    """Run a command on the user's cluster, on the node that is up, or on one that is up for as long."""
    if os.environ.get("KUBECONFIG"):
        return subprocess.run(command, check=False).returncode
    ours = not node.is_up
    try:
        if ours:
            node.up()
        return subprocess.run(node.inside(*command), env=node.environment(), check=False).returncode
    finally:
        if ours:
            node.down()


def main() -> int:
    """`up`, `run` or `down`."""
    parser = argparse.ArgumentParser(prog="node", description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("up", help="start it")
    commands.add_parser("down", help="end it and leave nothing behind")
    commands.add_parser("run", help="run a command inside").add_argument("argv", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    node = Node()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        if args.command == "run":
            return run_on(node, args.argv)
        if args.command == "down":
            node.down()
        elif node.is_up:
            print("node: already up", file=sys.stderr)
        else:
            try:
                node.up()
            except BaseException:
                node.down()
                raise
            print(
                f"nsenter --net=/var/run/netns/{NETWORK} env KUBECONFIG={node.kubeconfig} {assets()}/kubectl get pods -A"
            )
    except MissingError as error:
        print(f"node: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
