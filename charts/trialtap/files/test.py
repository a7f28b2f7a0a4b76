"""`helm test`: asks the API server, as a dry run, for a pod of a Trial, and looks whether it came out injected."""

import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

ACCOUNT = Path(os.environ.get("SERVICE_ACCOUNT", "/var/run/secrets/kubernetes.io/serviceaccount"))
SERVER = f"https://{os.environ['KUBERNETES_SERVICE_HOST']}:{os.environ['KUBERNETES_SERVICE_PORT']}"
NAMESPACE, TRIAL = os.environ["TEST_NAMESPACE"], os.environ["TEST_TRIAL"]
COLLECTORS = {"metrics-logger-and-collector", "metrics-collector"}
SECONDS = 60


def call(path, body=None):
    """One request to the API server; the object it answers with."""
    request = urllib.request.Request(SERVER + path, json.dumps(body).encode() if body else None)  # noqa: S310 - https, above
    request.add_header("Authorization", f"Bearer {(ACCOUNT / 'token').read_text().strip()}")
    request.add_header("Content-Type", "application/json")
    context = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
    with urllib.request.urlopen(request, context=context, timeout=30) as answer:  # noqa: S310
        return json.load(answer)


def pod_of(trial):
    """A pod as the Trial's own workload: all that makes it the Trial's is its owner."""
    owner = {key: trial[key] for key in ("apiVersion", "kind")}
    owner |= {"name": trial["metadata"]["name"], "uid": trial["metadata"]["uid"], "controller": True}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": TRIAL, "namespace": NAMESPACE, "ownerReferences": [owner]},
        "spec": trial["spec"]["runSpec"]["spec"],
    }


def attempt():
    """Why the pod is not injected, or nothing."""
    try:
        trial = call(f"/apis/kubeflow.org/v1beta1/namespaces/{NAMESPACE}/trials/{TRIAL}")
        pod = call(f"/api/v1/namespaces/{NAMESPACE}/pods?dryRun=All", pod_of(trial))
    except urllib.error.HTTPError as error:
        return f"{error.code}: {error.read().decode(errors='replace')[:600]}"
    except OSError as error:
        return f"{SERVER}: {error}"
    names = {container["name"] for container in pod["spec"].get("initContainers") or ()}
    if names & COLLECTORS:
        return ""
    decision = (pod["metadata"].get("annotations") or {}).get(
        "trialtap/decision", "the webhook was not called"
    )
    return f"the pod came out without a collector: {decision}"


def main():
    """0 when the pod came out injected within a minute."""
    until = time.monotonic() + SECONDS
    while reason := attempt():
        if time.monotonic() > until:
            print(
                f"{reason}\nNext: kubectl -n {os.environ['WEBHOOK_NAMESPACE']} logs deployment/{os.environ['WEBHOOK']}"
            )
            return 1
        time.sleep(2)
    print(f"a pod of Trial {NAMESPACE}/{TRIAL} comes out with its collector")
    return 0


sys.exit(main())
