"""The `fedlm` command: finds the sub-command's module and turns a user's mistake into one clear message."""

import logging
import os
import sys
import traceback
from functools import partial

from fedlm.command_line.command import Command, Group
from fedlm.command_line.command_tree import COMMANDS, imported, in_all_words
from fedlm.command_line.compiled_programs import keep_compiled_programs
from fedlm.command_line.failures import complaint_about_place, is_full_disk, kept_failure, versions
from fedlm.command_line.processes import leave_processes, missing_platform
from fedlm.command_line.suggestions import UnknownCommandError, UnknownOptionsError
from fedlm.fedlm_client.errors import ClientError
from fedlm.fl_core.errors import ProcessLostError, UserError
from fedlm.fl_core.process_memory import keep_freed_memory
from fedlm.fl_core.worker_processes import TerminatedError

_COMPUTING = ("simulate", "compare", "pretrain", "laws", "generate", "recommend", "evaluate", "memorization")
"""Commands that spend their time in steps of one kind; those of a deployment have many small allocations at once."""
_FAILED = 1
_USAGE_ERROR = 2
_INTERRUPTED = 130
_TERMINATED = 143
_EXAMPLES = """To begin:

  fedlm data import stdlib --out runs/stdlib
  fedlm compare --preset small --data runs/stdlib --out runs/compare

`fedlm --debug COMMAND` prints the traceback of what fails; without it the traceback is kept in a file."""


def main(argv: list[str] | None = None) -> int:
    """Run a `fedlm` command, of this process's words where there are none.

    Returns:
      The exit status: 0 on success, 1 when something failed (another process of the same run was lost, the disk is
      full, a defect), 2 on a user's mistake, 3 when all that was trained diverged or no client answered, 130 when
      interrupted, 143 when a comparison was ended by SIGTERM.
    """
    argv = sys.argv[1:] if argv is None else argv
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # it was closed before this process began
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - open as long as the process
    if argv[:1] in (["--version"], ["-V"]):
        print(versions())
        return 0
    purpose = "Language models trained on text that belongs to people: federated, simulated or central."
    debug = argv[:1] == ["--debug"]
    argv = argv[debug:]
    choices = {name: (text, Command(object, partial(_run, name, debug))) for name, text in COMMANDS.items()}
    try:
        status = Group("fedlm", "command", purpose, choices, _EXAMPLES).main(argv)
        sys.stdout.flush()
    except UnknownCommandError as error:
        status = _complain("fedlm", in_all_words(error))
    except BrokenPipeError:
        status = _without_reader()
    if status in (_FAILED, _USAGE_ERROR, _INTERRUPTED, _TERMINATED):
        leave_processes(status, with_others=status == _USAGE_ERROR)
    return status


def _run(command: str, debug: bool, argv: list[str]) -> int:
    _quieten_libraries()
    keep_compiled_programs()
    if command in _COMPUTING:
        keep_freed_memory()
    prog = f"fedlm {command}"
    try:
        status = imported(command).COMMAND.main(argv)
        sys.stdout.flush()
        return status
    except (UnknownCommandError, UnknownOptionsError) as error:
        return _complain(prog, in_all_words(error))
    except ClientError as error:
        return _complain(prog, error)
    except UserError as error:
        return _complain(prog, error.for_command_line())
    except ProcessLostError as error:
        return _complain(prog, error, _FAILED)
    except BrokenPipeError:
        return _without_reader()
    except KeyboardInterrupt:
        print("\nfedlm: interrupted; the same command goes on from what it has saved", file=sys.stderr)
        return _INTERRUPTED
    except TerminatedError:
        print("\nfedlm: ended by SIGTERM; the same command goes on from what it has saved", file=sys.stderr)
        return _TERMINATED
    except Exception as error:
        if is_full_disk(error):
            return _complain(prog, f"the disk is full ({error}); free some space, and give the command again", _FAILED)
        if (why := complaint_about_place(error) or missing_platform()) is not None:
            return _complain(prog, why)
        if debug:
            traceback.print_exc()
            return _FAILED
        return _complain(prog, kept_failure(error, ["fedlm", command, *argv]), _FAILED)


def _without_reader() -> int:
    """Be silent where the reader of our output has gone, as of a pipe into `head`."""
    # Python would complain again when it flushes at exit.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _complain(prog: str, what: object, status: int = _USAGE_ERROR) -> int:
    print(f"{prog}: {what}", file=sys.stderr)
    return status


def _quieten_libraries() -> None:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    # What fails there, a checkpoint on a full disk for one, is raised as well: its tracebacks tell a user nothing more.
    logging.getLogger("absl").setLevel(logging.CRITICAL)
