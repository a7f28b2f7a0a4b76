"""The chart through helm: found beside the control plane's programs, else on the PATH."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).parents[2] / "charts/trialtap"
HOW_TO_GET = (
    "set KUBEBUILDER_ASSETS to a folder that holds helm too (`make kube` builds it), or put helm on the PATH"
)


def find() -> Path | None:
    """Where helm is."""
    beside = Path(os.environ.get("KUBEBUILDER_ASSETS", "")) / "helm"
    if beside.is_file():
        return beside
    on_path = shutil.which("helm")
    return Path(on_path) if on_path else None


def run(*arguments: str | Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run helm, whatever it returns."""
    helm = find()
    assert helm, HOW_TO_GET
    return subprocess.run(
        [helm, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        env={**os.environ, **(env or {})},
    )


def template(
    values: Path | None = None, *more: str, release: str = "trialtap", namespace: str = "trialtap"
) -> str:
    """The chart rendered.

    Raises:
        AssertionError: helm refused; the message is helm's.
    """
    given: Sequence[str | Path] = ["--values", values] if values else []
    done = run("template", release, CHART, "--namespace", namespace, *given, *more)
    assert done.returncode == 0, done.stderr
    return done.stdout


def objects(render: str) -> list[dict[str, Any]]:
    """The objects of a render."""
    return [document for document in yaml.safe_load_all(render) if document]
