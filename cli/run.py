"""Run a trial on this machine, with no cluster.

FILE holds a Trial whose runSpec is a Job, or a Trial plus the Pod that its CRD would create. What
happens is what happens in a cluster: the pod goes as an AdmissionReview over HTTPS to the webhook, the
JSON Patch that comes back is applied, and the patched pod runs: its native sidecar first, then the
training, then the sidecar's end. What the patched pod says runs, and nothing else: without the sidecar
in it no metric arrives.

What differs from a cluster: images are ignored and commands run on this machine, starting in FILE's
folder; a container needs its command set. Mount paths are real in a mount namespace of their own, where
this machine allows one; where not, kinds that need them say so and stop. Containers are not started
again, probes, preStop hooks, resources and securityContext have no effect; Secrets, ConfigMaps and
claims cannot be had.

The exit status is the training's (128+n when signal n ended it); 1 when it could not be run.
"""

import argparse
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

from cli import manifests, outcome, sandbox, trialpod
from cli.local import LocalError, Services, Watcher, admit
from cli.localpod import LocalPod, Machine, PodError
from controller.conditions import Condition
from trialtap import names
from trialtap.observation import Summary

_WIDTH = 10
"""Columns for a container's name before its output."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "-f", "--file", required=True, metavar="FILE", help="Trial, and Pod where it is needed; - for stdin"
    )
    parser.add_argument(
        "--db", metavar="PATH", help="keep the metrics in this SQLite file (default: gone at the end)"
    )
    parser.add_argument(
        "--http", metavar="HOST:PORT", default="127.0.0.1:0", help="where the page is (default: a free port)"
    )
    parser.add_argument(
        "--serve", action="store_true", help="go on serving the page after the end, until Ctrl-C"
    )
    parser.add_argument(
        "--no-inject", action="store_true", help="run the pod as it is, unseen by the webhook"
    )


def main(args: argparse.Namespace) -> int:
    """Run the trial and print what it measured."""
    try:
        trial = trialpod.build(manifests.load([args.file]))
    except manifests.ManifestError as error:
        return _fail(str(error))
    except trialpod.TrialFileError as error:
        return _fail(f"{args.file}: {error}")
    with ExitStack() as stack:
        scratch = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="trialtap-", ignore_cleanup_errors=True))
        )
        try:
            return _run(args, trial, scratch, stack)
        except (LocalError, PodError) as error:
            return _fail(f"{args.file}: Trial {trial.name}: {error}")
        except KeyboardInterrupt:
            return _fail("stopped")


def _run(args: argparse.Namespace, trial: trialpod.TrialPod, scratch: Path, stack: ExitStack) -> int:
    reason = sandbox.available(scratch)
    if reason:
        _say(
            "trialtap",
            f"no mount namespaces on this machine ({reason}): only kinds without mounts of their own run",
        )
    services = stack.enter_context(Services(trial, scratch, database=args.db, http=args.http))
    _say("trialtap", f"curves at {services.page}")
    pod = trial.pod if args.no_inject else admit(trial, services)
    cwd = Path.cwd() if args.file == "-" else Path(args.file).resolve().parent
    watcher = stack.enter_context(Watcher(trial, services.database, lambda text: _say("trialtap", text)))
    local = LocalPod(pod, Machine(scratch, cwd, services.entrypoints, services.path, not reason, _say))
    _stop_on_signals(local)
    status = local.run(trial.trial.spec.primary_container_name)
    summaries = watcher.finish()
    _print_end(
        trial.name, status, outcome.decide(trial, status, summaries, early_stopped=services.early_stopped)
    )
    _print_table(summaries)
    if args.serve:
        _say("trialtap", f"serving {services.page} until Ctrl-C")
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pause()
    return status


def _stop_on_signals(pod: LocalPod) -> None:
    """Ctrl-C and SIGTERM end the containers as a deleted pod's are; the metrics until then are kept."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        pod.stop()

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)


_lock = threading.Lock()


def _say(name: str, text: str) -> None:
    shown = "collector" if name in {names.LOGGER_CONTAINER, names.COLLECTOR_CONTAINER} else name
    line = f"{shown[:_WIDTH]:<{_WIDTH}} | {text}\n"
    if name == "trialtap" and sys.stdout.isatty() and "NO_COLOR" not in os.environ:
        line = f"\x1b[36m{line[:-1]}\x1b[0m\n"
    with _lock:
        sys.stdout.write(line)
        sys.stdout.flush()


def _fail(text: str) -> int:
    print(f"trialtap run: {text}", file=sys.stderr)
    return 1


def _print_end(trial: str, status: int, ended: Condition | None) -> None:
    print()
    if ended is None:
        print(f"Trial {trial}: exit status {status}.")
    else:
        print(f"Trial {trial}: {ended.type}, exit status {status}. {ended.message.rstrip('.')}.")


def _print_table(summaries: dict[str, Summary]) -> None:
    if not summaries:
        print("No metric arrived.")
        return
    head = ("metric", "points", "min", "max", "latest")
    rows = [(name, str(s.count), s.min, s.max, s.latest) for name, s in summaries.items()]
    print(table((head, *rows)))


def table(rows: Sequence[Sequence[str]]) -> str:
    """Lay out rows in columns, the first one left-aligned, the others right-aligned."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )
