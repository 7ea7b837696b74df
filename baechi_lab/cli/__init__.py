"""The command `baechi-lab`: one sub-command per stage, each with `--help` and `--json`.

Bad input ends with exit code 2 and one sentence on stderr; Ctrl-C with 130.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import importlib
import io
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from .. import __version__
from ..errors import BaechiLabError, MissingPackage, UnknownNameError
from ..internal_warnings import is_note
from ..workers.isolated import current_folder

COMMANDS = {
    "demo": "do the main job from end to end: trace, profile, optimize, place, simulate, compare, run, export",
    "profile": "measure or estimate what every operator of a training step costs, and write a graph file",
    "place": "place the operators of a graph file on devices, and write a placement file",
    "compare": "compare placers on one graph: step time, memory, lower bound",
    "fit": "say whether a step fits the memory, and simulate the options that make it fit",
    "layouts": "list layouts of a transformer on a cluster (tensor, pipeline, data, expert parallelism), each simulated",
    "simulate": "simulate a step of a graph under a placement, and write its timeline",
    "run": "run a training step under a placement on real devices",
    "export": "write a training script that needs its framework only, or a plan for another runtime",
    "sweep": "simulate every combination of placers, batch sizes, device counts and memory",
    "fidelity": "compare predicted with measured step times on workers of this machine",
    "links": "measure the links and communication mode of a cluster, and keep the cluster in a file",
    "lab": "open JupyterLab on the quickstart notebook",
    "grade": "grade a folder of students' notebooks: right answers, and gaps to the optimum",
    "doctor": "print what is installed, what is missing, and what each missing part would add",
    "worker": "serve this machine's devices to a run on several machines",
    "secret": "make the file that the workers of several machines ask for",
}
"""Sub-command -> its summary. The module of the same name in this package implements it."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        # argparse would print the usage as well; one sentence says what is wrong, --help has the rest.
        self.exit(2, f"{self.prog}: {_one_line(message)} (see {self.prog} --help)\n")

    def _print_message(self, message: str, file: Any = None) -> None:
        if file is None or file is not sys.stdout:
            super()._print_message(message, file)
        else:  # argparse ignores a disk that is full
            print(message, end="", flush=True)


class _Formatter(argparse.HelpFormatter):
    def _fill_text(self, text: str, width: int, indent: str) -> str:
        """Fills every paragraph to the width of the terminal."""
        return "\n\n".join(
            super(_Formatter, self)._fill_text(paragraph, width, indent) for paragraph in text.split("\n\n")
        )


def _one_line(text: str) -> str:
    """Returns a message on one line, shortened in the middle if it is long."""
    line = " ".join(text.split())
    return line if len(line) <= 1000 else f"{line[:500]} ... {line[-400:]}"


def parser(command: str = "") -> argparse.ArgumentParser:
    """Returns the argument parser: `command` with its arguments, the other sub-commands, whose imports take long, by name."""
    top = _Parser(
        prog="baechi-lab", description="Which operator should run on which device, and what does a step cost?"
    )
    top.add_argument("--version", action="version", version=f"baechi-lab {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)
    for name, line in COMMANDS.items():
        if name != command:
            commands.add_parser(name, help=line)
            continue
        module = importlib.import_module(f".{name}", __name__)
        text = (module.__doc__ or line).strip()
        sub = commands.add_parser(name, help=line, description=text, formatter_class=_Formatter)
        sub.add_argument("--json", action="store_true", help="print JSON for machines instead of text")
        module.add_arguments(sub)
        sub.set_defaults(work=module.run, refuse=sub.error)
    return top


@contextlib.contextmanager
def _collecting_warnings(notes: list[str]) -> Iterator[None]:
    """Collects this package's warnings as notes, which are printed after the results. After an error none are printed."""
    with warnings.catch_warnings():
        show = warnings.showwarning

        def collect(message: Any, category: type[Warning], filename: str, *positional: Any, **keywords: Any) -> None:
            if is_note(category, filename):
                notes.append(str(message))
            else:
                show(message, category, filename, *positional, **keywords)

        warnings.showwarning = collect
        yield


RETRY_SECONDS = 0.05
"""Delay after which a lost Ctrl-C is raised again."""


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Raises a Ctrl-C again that arrived in a callback of C code, where Python only prints its traceback."""
    previous_hook = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        if not isinstance(unraisable.exc_value, KeyboardInterrupt):
            previous_hook(unraisable)
            return
        main_thread = threading.main_thread().ident
        retry = threading.Timer(RETRY_SECONDS, signal.pthread_kill, [main_thread, signal.SIGINT])
        retry.daemon = True
        retry.start()

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = previous_hook


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
"""Errors of a file that cannot be written: its disk is full or broken, or it was closed."""


def _drop_output() -> None:
    """Discards what standard output still holds, so that Python does not fail to write it when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _replace_closed_stderr() -> None:
    """Sends messages to the null device if standard error was closed: the exit code is then the only message."""
    if sys.stderr is None:  # closed before Python started
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  (for the rest of the process)
    elif isinstance(sys.stderr, io.TextIOWrapper):
        try:
            os.write(sys.stderr.fileno(), b"")
        except OSError as error:
            if error.errno == errno.EBADF:
                sys.stderr = open(os.devnull, "w")  # noqa: SIM115  (for the rest of the process)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    _replace_closed_stderr()
    # A file's name may hold bytes that are no text: they are shown escaped, not a reason to end.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    for name, level in (("TF_CPP_MIN_LOG_LEVEL", "2"), ("TORCH_CPP_LOG_LEVEL", "ERROR"), ("KINETO_LOG_LEVEL", "99")):
        os.environ.setdefault(name, level)  # notices of the frameworks are not our output
    words = sys.argv[1:] if argv is None else list(argv)
    command = words[0] if words else ""
    sub_command = next((word for word in words if not word.startswith("-")), "")
    notes: list[str] = []
    try:
        with _interruptible(), _collecting_warnings(notes):
            if command not in COMMANDS and command[:1] not in ("", "-"):
                raise UnknownNameError.of("command", command, COMMANDS)
            arguments: Any
            arguments, unknown_words = parser(sub_command).parse_known_args(words)
            if unknown_words:  # refused by the sub-command, whose --help lists what it takes
                arguments.refuse(f"unrecognized arguments: {' '.join(unknown_words)}")
            code = int(arguments.work(arguments) or 0)
            if sys.stdout is not None:
                sys.stdout.flush()
        for note in dict.fromkeys(notes):
            print(f"note: {_one_line(note)}", file=sys.stderr)
        return code
    except BaechiLabError as error:
        print(f"baechi-lab {command}: {_one_line(str(error))}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        from .doctor import extra_of

        package = (error.name or "").partition(".")[0]
        extra = extra_of(package)
        if extra is None:
            raise error
        print(
            f"baechi-lab {command}: {MissingPackage.of(package, extra.name, f'baechi-lab {command}')}", file=sys.stderr
        )
        return 2
    except KeyboardInterrupt:
        print(f"baechi-lab {command}: interrupted", file=sys.stderr)
        return 130
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and "allocate memory" not in str(error):  # PyTorch's way to say it
            raise
        reason = f": {_one_line(str(error))}" if str(error) else ""
        print(f"baechi-lab {command}: takes more memory than there is{reason}", file=sys.stderr)
        return 2
    except FileNotFoundError:
        if current_folder() is not None:
            raise
        print(f"baechi-lab {command}: the current folder was deleted; change into another", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader (head, less) has seen enough
        _drop_output()
        return 0
    except OSError as error:
        if error.errno not in _FULL:
            raise
        _drop_output()
        print(f"baechi-lab {command}: the output cannot be written: {error.strerror}", file=sys.stderr)
        return 2
