"""How much later a training begins because of trialtap: pods of one Job each, with and without a collector.

    make cluster
    python -m tests.support.node run .venv/bin/python bench/startup.py [PODS]

trialtap must be installed in namespace `trialtap` (the script does it where it is not). Pods are made in turn, with
and without; for each: the time from its creation, as a watch tells it, to the training's first line, as the container
runtime stamps it. The difference of the medians is what trialtap costs.
"""

import datetime as dt
import json
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.support import running
from trialtap import names

NAMESPACE = "startup"


class Watch:
    """When each pod of the namespace was first told of, by its Job's name."""

    def __init__(self) -> None:
        self.created: dict[str, float] = {}
        command = [
            "kubectl",
            "-n",
            NAMESPACE,
            "get",
            "pods",
            "--watch",
            "--output-watch-events",
            "-o",
            "json",
        ]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout
        decoder, text = json.JSONDecoder(), ""
        for line in self._process.stdout:
            text += line
            if line.rstrip() != "}":
                continue
            event, _ = decoder.raw_decode(text)
            text = ""
            labels = event["object"]["metadata"]["labels"]
            self.created.setdefault(labels["batch.kubernetes.io/job-name"], time.time())

    def close(self) -> None:
        """End the watch."""
        self._process.kill()
        self._process.wait()


def job(name: str, owner: dict[str, Any] | None) -> dict[str, Any]:
    """A Job of the Trial's own workload; without an owner, a Job of nobody's."""
    document: dict[str, Any] = running.trial(NAMESPACE, name, running.training("/training", "1", "10"))[
        "spec"
    ]["runSpec"]
    document["metadata"] = {"name": name, "namespace": NAMESPACE}
    if owner:
        document["metadata"]["ownerReferences"] = [owner]
    return document


def first_line(name: str) -> float:
    """When the training's first line was written, in seconds since 1970."""
    arguments = ["-n", NAMESPACE, "logs", f"job/{name}", "-c", "training", "--timestamps"]
    stamp = running.kubectl(*arguments).split(" ", 1)[0]
    return dt.datetime.fromisoformat(stamp[:26] + "+00:00").timestamp()


def main(pods: int) -> None:
    """Measure, print, and remove the namespace."""
    if "trialtap" not in running.kubectl("get", "namespaces"):
        running.install()
    running.apply(running.namespace(NAMESPACE))
    try:
        # Its Job is never made by the controller: it owns ours.
        owner = running.trial(NAMESPACE, "owner", running.training("/training", "1", "10"))
        running.apply(owner)
        uid = running.get(NAMESPACE, "trial", "owner")["metadata"]["uid"]
        reference = {"apiVersion": names.API_VERSION, "kind": "Trial", "name": "owner", "uid": uid}
        time.sleep(15)
        watch = Watch()
        took: dict[str, list[float]] = {"with": [], "without": []}
        time.sleep(2)
        for number in range(pods):
            for kind, values in took.items():
                name = f"{kind}-{number}"
                running.apply(job(name, reference if kind == "with" else None))
                running.kubectl(
                    "-n",
                    NAMESPACE,
                    "wait",
                    "--for=condition=Complete",
                    f"job/{name}",
                    "--timeout=60s",
                    seconds=70,
                )
                values.append(first_line(name) - watch.created[name])
        watch.close()
        for kind, values in took.items():
            print(
                f"{kind:8} collector: median {statistics.median(values):.2f} s, all {[round(v, 2) for v in values]}"
            )
        added = statistics.median(took["with"]) - statistics.median(took["without"])
        print(f"trialtap adds {added:.2f} s to the start of a training")
    finally:
        running.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
