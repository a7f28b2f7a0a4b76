"""`python -m certs`: certificates for people and for the pods of the chart."""

import argparse
import asyncio
import datetime as dt
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from certs import files, issue, people, plan, serve
from certs.cluster import Cluster, Where
from trialtap.kube import API, Status, Unreachable
from trialtap.lease import Lease

_DAY: Final = dt.timedelta(days=1)
_Answer = TypeVar("_Answer")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; 0 when it did its work, 1 with one line on stderr when it could not."""
    arguments = parser().parse_args(argv)
    try:
        code: int = arguments.run(arguments)
    except (OSError, ValueError, Status, Unreachable) as error:
        print(f"certs {arguments.command}: {error}", file=sys.stderr)
        return 1
    return code


def parser() -> argparse.ArgumentParser:
    """The commands and their flags."""
    made = argparse.ArgumentParser(prog="python -m certs", description=__doc__)
    commands = made.add_subparsers(dest="command", required=True)
    _add_issue(commands.add_parser("issue", help="write a CA and a serving certificate into a folder"))
    _add_serve(commands.add_parser("serve", help="keep a folder, a Secret and caBundles right, for ever"))
    status = commands.add_parser("status", help="say what is served, trusted and due in a cluster")
    _add_where(status)
    status.set_defaults(run=_status)
    rotate = commands.add_parser("rotate", help="have the certificates of a cluster renewed now")
    _add_where(rotate)
    rotate.add_argument("--leaf", action="store_true", help="only the serving certificate, not the CA")
    rotate.add_argument("--seconds", type=float, default=180.0, help="how long to wait (default: 180)")
    rotate.set_defaults(run=_rotate)
    return made


def _add_issue(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="folder, made when absent")
    parser.add_argument(
        "--name", action="append", required=True, dest="names", metavar="NAME", help="DNS name or IP address"
    )
    parser.add_argument("--days", type=_days, default=365 * _DAY, help="life of both (default: 365)")
    parser.set_defaults(run=_issue)


def _add_where(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--namespace",
        "-n",
        default=os.environ.get("TRIALTAP_NAMESPACE", "trialtap"),
        help="of Secret and Lease (default: $TRIALTAP_NAMESPACE, else trialtap)",
    )
    parser.add_argument("--secret", default="trialtap-certificates", help="(default: %(default)s)")
    parser.add_argument(
        "--mutating",
        action="append",
        default=[],
        metavar="NAME",
        help="MutatingWebhookConfiguration (status finds those of the namespace by itself)",
    )
    parser.add_argument(
        "--validating",
        action="append",
        default=[],
        metavar="NAME",
        help="ValidatingWebhookConfiguration (likewise)",
    )
    parser.add_argument(
        "--copy", default="", metavar="SECRET", help="hand the certificate to this Secret too"
    )
    parser.add_argument(
        "--kubeconfig", type=Path, metavar="FILE", help="the cluster (default: the one this pod runs in)"
    )


def _add_serve(parser: argparse.ArgumentParser) -> None:
    _add_where(parser)
    parser.add_argument(
        "--out", required=True, type=Path, metavar="DIR", help="where ca.crt, tls.crt, tls.key go"
    )
    parser.add_argument("--lease", default="trialtap-certificates", help="(default: %(default)s)")
    parser.add_argument(
        "--name", action="append", default=[], dest="names", metavar="NAME", help="DNS name or IP address"
    )
    parser.add_argument(
        "--service",
        action="append",
        default=[],
        metavar="NAME",
        help="Service: the four names it is reached by",
    )
    parser.add_argument("--ca-days", type=_days, default=issue.CA_LIFE, help="life of a CA (default: 1095)")
    parser.add_argument(
        "--leaf-days", type=_days, default=issue.LEAF_LIFE, help="life of a serving certificate (default: 90)"
    )
    parser.add_argument(
        "--lead-seconds",
        type=float,
        default=plan.Settings.lead,
        help="how long a new CA is published before anything signed by it is served (default: %(default)g)",
    )
    parser.add_argument(
        "--retire-seconds",
        type=float,
        default=plan.Settings.retire,
        help="how long an old CA stays trusted after the change (default: %(default)g)",
    )
    parser.add_argument(
        "--http",
        default="0.0.0.0:8081",
        metavar="HOST:PORT",
        help="/healthz, /readyz, /metrics (default: %(default)s)",
    )
    parser.add_argument(
        "--identity",
        default=socket.gethostname(),
        help="of this replica in the Lease (default: the host's name)",
    )
    parser.set_defaults(run=_serve)


def _days(text: str) -> dt.timedelta:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of days from 1 on")
    return int(text) * _DAY


def _issue(arguments: argparse.Namespace) -> int:
    now, life = dt.datetime.now(dt.UTC), arguments.days
    ca = issue.authority(now, life)
    served = issue.leaf(ca, arguments.names, now, life)
    files.write(arguments.out, ca=ca.certificate, certificate=served.certificate, key=served.key)
    for name in (files.CA, files.CERTIFICATE, files.KEY):
        print(arguments.out / name)
    return 0


def _serve(arguments: argparse.Namespace) -> int:
    names = [*arguments.names]
    for service in arguments.service:
        names += issue.service_names(service, arguments.namespace)
    for name in names:
        issue.alternative_name(name)
    if not names:
        raise ValueError("give --service or --name: a certificate without names serves nobody")
    if 3 * arguments.leaf_days > arguments.ca_days:
        raise ValueError("--leaf-days: a third of --ca-days at most, else a certificate could outlive its CA")
    settings = plan.Settings(
        tuple(names),
        ca_life=arguments.ca_days,
        leaf_life=arguments.leaf_days,
        lead=arguments.lead_seconds,
        retire=arguments.retire_seconds,
    )
    host, _, port = arguments.http.rpartition(":")

    async def run() -> int:
        api = await API.connect(arguments.kubeconfig)
        try:
            cluster = Cluster(api, _where(arguments))
            lease = Lease(api, arguments.namespace, arguments.lease, arguments.identity)
            keeper = serve.Keeper(cluster, lease, arguments.out, settings)
            async with serve.health(keeper, host, int(port)) as address:
                print(f"certs ready http={address}", flush=True)
                await _until_told_to_stop(keeper.run())
        finally:
            await api.close()
        return 0

    return asyncio.run(run())


async def _until_told_to_stop(work: Awaitable[None]) -> None:
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        return


def _status(arguments: argparse.Namespace) -> int:
    lines, faults = _with_cluster(arguments, lambda api: people.status(api, _where(arguments)))
    for line in lines:
        print(line)
    for fault in faults:
        print(f"fault: {fault}")
    return 1 if faults else 0


def _rotate(arguments: argparse.Namespace) -> int:
    what = "leaf" if arguments.leaf else "ca"
    print(
        _with_cluster(arguments, lambda api: people.rotate(api, _where(arguments), what, arguments.seconds))
    )
    return 0


def _where(arguments: argparse.Namespace) -> Where:
    return Where(
        arguments.namespace,
        arguments.secret,
        tuple(arguments.mutating),
        tuple(arguments.validating),
        arguments.copy,
    )


def _with_cluster(
    arguments: argparse.Namespace, ask: Callable[[API], Coroutine[Any, Any, _Answer]]
) -> _Answer:
    async def run() -> _Answer:
        api = await API.connect(arguments.kubeconfig)
        try:
            return await ask(api)
        finally:
            await api.close()

    return asyncio.run(run())


if __name__ == "__main__":
    sys.exit(main())
