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

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.support import running

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
        text = ""
        for line in self._process.stdout:
            text += line
            try:
                event = json.loads(text)
            except ValueError:
                continue  # the event goes on
            text = ""
            labels = event["object"]["metadata"]["labels"]
            self.created.setdefault(labels["batch.kubernetes.io/job-name"], time.time())

    def close(self) -> None:
        """End the watch."""
        self._process.kill()
        self._process.wait()


def run_trial(name: str) -> None:
    """A Trial, to its end: its Job's pod gets a collector."""
    running.Trial(running.trial(NAMESPACE, name, running.training("/training", "1", "10"))).ended()


def run_job(name: str) -> None:
    """The same Job on its own."""
    trial = running.trial(NAMESPACE, name, running.training("/training", "1", "10"))
    running.apply({**trial["spec"]["runSpec"], "metadata": {"name": name, "namespace": NAMESPACE}})
    running.kubectl("-n", NAMESPACE, "wait", "--for=condition=Complete", f"job/{name}", "--timeout=60s")


def first_line(name: str) -> float:
    """When the training's first line was written, in seconds since 1970."""
    arguments = ["-n", NAMESPACE, "logs", f"job/{name}", "-c", "training", "--timestamps"]
    stamp = running.kubectl(*arguments).split(" ", 1)[0]
    return dt.datetime.fromisoformat(stamp[:26] + "+00:00").timestamp()


def main(pods: int) -> None:
    """Measure, print, and remove the namespace."""
    ours = "trialtap" not in running.helm("list", "--short", "-n", running.HOME)
    if ours:
        running.install()
    running.apply(running.namespace(NAMESPACE))
    try:
        watch = Watch()
        took: dict[str, list[float]] = {"with": [], "without": []}
        time.sleep(2)
        for number in range(pods):
            for kind, values in took.items():
                name = f"{kind}-{number}"
                (run_trial if kind == "with" else run_job)(name)
                pod = running.get(NAMESPACE, "pods", "-l", f"batch.kubernetes.io/job-name={name}")["items"][0]
                assert ("initContainers" in pod["spec"]) == (kind == "with"), pod["metadata"].get(
                    "annotations"
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
        running.kubectl("delete", "namespace", NAMESPACE)
        if ours:
            running.helm("uninstall", "trialtap", "-n", running.HOME)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
