"""`python -m certs`: certificates for people and for the pods of the chart."""

import argparse
import datetime as dt
import sys
from collections.abc import Sequence
from pathlib import Path

from certs import files, issue


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; 0 when it did its work, 1 with one line on stderr when it could not."""
    parser = argparse.ArgumentParser(prog="python -m certs", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    _add_issue(commands.add_parser("issue", help="write a CA and a serving certificate into a folder"))
    arguments = parser.parse_args(argv)
    try:
        return _issue(arguments)
    except (OSError, ValueError) as error:
        print(f"certs {arguments.command}: {error}", file=sys.stderr)
        return 1


def _add_issue(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="folder, made when absent")
    parser.add_argument(
        "--name", action="append", required=True, dest="names", metavar="NAME", help="DNS name or IP address"
    )
    parser.add_argument("--days", type=int, default=365, help="life of both, in days (default: 365)")


def _issue(arguments: argparse.Namespace) -> int:
    if arguments.days < 1:
        raise ValueError(f"--days {arguments.days}: give at least 1")
    now, life = dt.datetime.now(dt.UTC), dt.timedelta(days=arguments.days)
    ca = issue.authority(now, life)
    served = issue.leaf(ca, arguments.names, now, life)
    files.write(arguments.out, ca=ca.certificate, certificate=served.certificate, key=served.key)
    for name in (files.CA, files.CERTIFICATE, files.KEY):
        print(arguments.out / name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
