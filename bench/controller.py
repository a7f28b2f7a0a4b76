"""The controller with 125, 250 and 500 trials at once: writes and memory a trial, as a ratio to the smallest run.

Needs KUBEBUILDER_ASSETS (make kube) and the root on the path: `PYTHONPATH=. .venv/bin/python bench/controller.py`.
Linear means ratios near 1.
"""

import re
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

from tests.support import cluster, manifests
from tests.support.cluster import ControlPlane, wait_until
from tests.support.controlling import KINDS, config, controller, kinds, set_phase, trial
from tests.support.programs import Program
from trialtap import crds

COUNTS = (125, 250, 500)


def metric(served: Program, name: str) -> float:
    """The sum of a metric's samples."""
    text = httpx.get(f"http://{served.ready['http']}/metrics").text
    return sum(float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE))


def measure(plane: ControlPlane, database: Program, count: int) -> tuple[float, float, float]:
    """Seconds, writes and bytes, each a trial, from their creation until all have ended."""
    namespace, kind = f"bench-{count}", KINDS[0]
    plane.apply(manifests.namespace(namespace))
    folder = Path(tempfile.mkdtemp())
    config(folder, *kinds())
    served = controller(plane, database, folder).start()
    before, begun = served.memory(), time.monotonic()
    run: Any = {"apiVersion": kind[0], "kind": kind[1], "spec": {}}
    for number in range(count):
        made = trial(namespace, f"t{number}", run=run, metricsCollector={"collector": {"kind": "Push"}})
        plane.create(f"/apis/kubeflow.org/v1beta1/namespaces/{namespace}/trials", made)
    for number in range(count):
        set_phase(plane, kind, namespace, "Broken", f"t{number}")
    wait_until(lambda: _ended(plane, namespace) == count, 300, "all trials to end")
    spent = time.monotonic() - begun
    result = (
        spent / count,
        metric(served, "trialtap_controller_actions_total") / count,
        (served.memory() - before) / count,
    )
    served.stop()
    return result


def _ended(plane: ControlPlane, namespace: str) -> int:
    listed = plane.get(f"/apis/kubeflow.org/v1beta1/namespaces/{namespace}/trials")["items"]
    return sum(item.get("status", {}).get("conditions", [{}])[-1].get("type") == "Failed" for item in listed)


def main() -> None:
    """Measure and print one row a count."""
    assets = cluster.assets()
    if assets is None:
        raise SystemExit(cluster.HOW_TO_GET)
    plane = ControlPlane(assets)
    folder = Path(tempfile.mkdtemp())
    try:
        plane.start()
        definitions = [*crds.definitions().values(), *(manifests.crd(*kind) for kind in KINDS)]
        plane.apply(*definitions)
        for crd in definitions:
            plane.kubectl("wait", "--for=condition=Established", f"crd/{crd['metadata']['name']}")
        address = (
            "--listen",
            "127.0.0.1:0",
            "--http",
            "127.0.0.1:0",
            "--database",
            f"sqlite:///{folder / 'db'}",
        )
        database = Program("dbmanager", folder / "log", *address).start()
        first: tuple[float, float, float] | None = None
        for count in COUNTS:
            found = measure(plane, database, count)
            first = first or found
            print(
                f"{count} trials: {found[0] * 1000:.0f} ms, {found[1]:.1f} writes and {found[2] / 1024:.0f} KiB a trial; "
                f"ratios {found[0] / first[0]:.2f}, {found[1] / first[1]:.2f}, {found[2] / first[2]:.2f}"
            )
        database.stop()
    finally:
        plane.stop()


if __name__ == "__main__":
    main()
