"""`trialtap COMMAND`: finds the command's module and runs it.

A command is a module `cli/COMMAND.py` whose docstring's first line is its help, with
`add_arguments(parser)` and `main(args) -> int` (the exit status). It is imported only when it is asked for.
"""

import argparse
import importlib
import sys
from collections.abc import Sequence
from typing import Final

from trialtap import __version__

COMMANDS: Final = {
    "run": "run a trial on this machine, with no cluster",
    "metrics": "print or plot the metrics of a trial",
    "collect": "read a metrics file or directory and print the points",
    "inject": "show what the webhook would do to a pod, offline",
    "explain": "say why a pod of the cluster was injected, or not",
    "validate": "check Experiments and Trials, offline",
    "render": "print the run object that a trial of an experiment would get",
    "db": "export and import observation logs",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    argv = sys.argv[1:] if argv is None else list(argv)
    parser = argparse.ArgumentParser(
        prog="trialtap", description="Metrics of any Kubernetes training trial, in a database within seconds."
    )
    parser.add_argument("--version", action="version", version=f"trialtap {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    wanted = next((word for word in argv if not word.startswith("-")), None)
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary)
        if name == wanted:
            module = importlib.import_module(f"cli.{name}")
            command.description = module.__doc__
            command.formatter_class = argparse.RawDescriptionHelpFormatter
            module.add_arguments(command)
            command.set_defaults(main=module.main)
    args = parser.parse_args(argv)
    try:
        return int(args.main(args))
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        sys.stderr.close()  # the reader has gone, as `| head` does: nothing to say
        return 141


if __name__ == "__main__":
    sys.exit(main())
