"""`python -m webhook`: reads flags and files, puts the parts together, serves until told to stop."""

import argparse
import asyncio
import contextlib
import datetime as dt
import gc
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import uvloop
import yaml

from trialtap import tls
from webhook import app, metrics, pods, server
from webhook import settings as settings_file
from webhook.cluster import JSON, Cluster, ObjectsCluster
from webhook.dbca import DatabaseCA
from webhook.entrypoint import Entrypoints
from webhook.events import Events
from webhook.experiments import handlers
from webhook.server import Address
from webhook.settings import Settings

if TYPE_CHECKING:
    from trialtap.kube import API


OLDEST_VERSION: Final = (1, 29)
"""The first Kubernetes whose native sidecars are on by default."""
OLDEST: Final = ".".join(map(str, OLDEST_VERSION))


def main(argv: Sequence[str] | None = None) -> int:
    """Serve; 0 when told to stop, 1 with one line on stderr when it cannot start."""
    args = _parser().parse_args(argv)
    try:
        settings = settings_file.load(args.settings) if args.settings else Settings()
        files = tls.Files(args.cert, args.key)
        serving = tls.Serving()
        serving.use(files.read())
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(args, settings, files, serving))
    except (OSError, ValueError, yaml.YAMLError) as error:
        print(f"webhook: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m webhook", description=__doc__)
    parser.add_argument(
        "--listen",
        type=Address.parse,
        default="0.0.0.0:8443",
        metavar="HOST:PORT",
        help="HTTPS (default: %(default)s)",
    )
    parser.add_argument(
        "--metrics-listen",
        type=Address.parse,
        default="0.0.0.0:8080",
        metavar="HOST:PORT",
        help="metrics, plain HTTP (default: %(default)s)",
    )
    parser.add_argument("--cert", required=True, type=Path, metavar="FILE", help="certificate chain, PEM")
    parser.add_argument("--key", required=True, type=Path, metavar="FILE", help="its private key, PEM")
    parser.add_argument(
        "--db-ca",
        type=Path,
        metavar="FILE",
        help="PEM of the CA of the DB manager's certificate, read anew for each pod (default: dbCA of the settings)",
    )
    parser.add_argument("--settings", type=Path, metavar="FILE", help="settings, YAML (default: none needed)")
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--objects",
        type=Path,
        metavar="FILE",
        help="answer from these objects (YAML or JSON), without a cluster",
    )
    where.add_argument(
        "--kubeconfig", type=Path, metavar="FILE", help="the cluster (default: the one this pod runs in)"
    )
    return parser


async def _serve(
    args: argparse.Namespace, settings: Settings, files: tls.Files, serving: tls.Serving
) -> None:
    if args.objects:
        await _answer(args, settings, files, serving, ObjectsCluster(read_objects(args.objects)))
        return
    # Imported here: without a cluster, as for `trialtap run`, a second of start-up is saved.
    from trialtap.kube import API  # noqa: PLC0415
    from webhook.kube import KubeCluster  # noqa: PLC0415

    api = await API.connect(args.kubeconfig)
    cluster = KubeCluster(api, settings.katib_namespace, _log)
    caches, age = asyncio.create_task(cluster.run()), asyncio.create_task(_warn_of_old(api))
    try:
        await _answer(args, settings, files, serving, cluster)
    finally:
        await _stop(age)
        await _stop(caches)
        await api.close()


async def _warn_of_old(api: "API") -> None:
    """Say once that the cluster is older than native sidecars: there the pods would never complete."""
    try:
        found = await api.request("GET", "/version")
    except Exception as error:
        _log(f"/version: {error}; Kubernetes {OLDEST} or newer is needed")
        return
    version = tuple(int(re.sub(r"\D.*", "", str(found.get(part))) or 0) for part in ("major", "minor"))
    if version < OLDEST_VERSION:
        _log(f"this cluster is Kubernetes {found.get('gitVersion')}; native sidecars need {OLDEST} or newer")


async def _answer(
    args: argparse.Namespace,
    settings: Settings,
    files: tls.Files,
    serving: tls.Serving,
    cluster: Cluster,
) -> None:
    events = Events(cluster)
    entrypoints = Entrypoints(settings.entrypoint_lookup, cluster)
    mutate_pod: app.Handler = pods.Pods(events, entrypoints.look_up).mutate
    routes: dict[str, app.Handler] = {
        "/mutate-pod": DatabaseCA(args.db_ca).given_to(mutate_pod) if args.db_ca else mutate_pod,
        "/mutate-experiment": handlers.mutate_experiment,
        "/validate-experiment": handlers.validate_experiment,
        "/validate-trial": handlers.validate_trial,
    }
    metrics_address, stop_metrics = server.serve_metrics(args.metrics_listen)

    def faults() -> list[str]:
        certificate = serving.fault(dt.datetime.now(dt.UTC))
        return [*([certificate] if certificate else []), *cluster.faults()]

    def listening(address: Address) -> None:
        _settle_memory()
        print(f"webhook ready https={address} metrics={metrics_address}", flush=True)

    application = app.create(routes, cluster, settings, faults)
    metrics.CERTIFICATE_EXPIRY.set_function(lambda: serving.expires.timestamp() if serving.expires else 0)
    follow = asyncio.create_task(serving.follow(files, _log))
    try:
        await server.https(application, args.listen, serving.context, listening).serve()
        await events.drain()
    finally:
        await _stop(follow)
        await entrypoints.close()
        stop_metrics()


def _settle_memory() -> None:
    """Let the garbage collector leave alone what was imported, and look for cycles less often.

    A review makes hundreds of containers and no cycles; by default they would be walked several times each,
    and now and then with all of the imported modules (100 ms).
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


async def _stop(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def _log(message: str) -> None:
    print(f"webhook: {message}", file=sys.stderr, flush=True)


def read_objects(path: Path) -> list[JSON]:
    """The objects of a YAML or JSON file, several documents and lists too.

    Raises:
        OSError: it cannot be read.
        ValueError: it holds something that is no Kubernetes object.
    """
    documents = [d for d in yaml.safe_load_all(path.read_text(encoding="utf-8")) if d is not None]
    flat = [item for d in documents for item in (d if isinstance(d, list) else [d])]
    for item in flat:
        if not isinstance(item, dict) or "kind" not in item:
            raise ValueError(f"{path}: holds {str(item)[:60]!r}, which is no Kubernetes object")
    return flat


if __name__ == "__main__":
    sys.exit(main())
