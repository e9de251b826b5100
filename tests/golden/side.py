"""One side of a comparison: a process that has imported one state of fedlm, and runs cases with it.

It reads a case a line, as JSON, and writes a line when one has ended. A case is a process of its own, and so is each of
its commands; both are forked, so that importing is paid once. It needs nothing but the standard library, the module
in `started`, and the fedlm that PYTHONPATH names.
"""

import asyncio
import atexit
import contextlib
import importlib
import json
import os
import pkgutil
import re
import runpy
import shlex
import signal
import sys
import threading
import time
import traceback
import warnings
from pathlib import Path

import sitecustomize

SECONDS = 400  # that a command may take
_SUB_COMMAND = re.compile(r"^  ([a-z][a-z0-9-]*)  +\S", re.M)
_LAZY = (
    "scipy.fft",
    "scipy.optimize",
    "scipy.signal",
    "scipy.sparse",
    "scipy.stats",
    "orbax.checkpoint",
    "tensorboardX",
)


def main():
    """Import, and then run the cases of standard input, as many at once as are sent."""
    tree = Path(sys.argv[1]).resolve()
    import_all(tree)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # cases say themselves when they have ended
    answer(ready=True)
    for line in sys.stdin:
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os._exit(run_case(json.loads(line)))


def answer(**facts):
    os.write(1, (json.dumps(facts) + "\n").encode())


def import_all(tree):
    """Import what commands import, and see that it is of this tree."""
    import fedlm

    if not Path(fedlm.__file__).resolve().is_relative_to(tree):
        sys.exit(f"fedlm was imported from {fedlm.__file__}, which is not in {tree}")
    with warnings.catch_warnings(), contextlib.redirect_stdout(sys.stderr):
        warnings.simplefilter("ignore")
        found = [module.name for module in pkgutil.walk_packages(fedlm.__path__, "fedlm.", onerror=lambda name: None)]
        for name in [*found, *_LAZY]:
            if not name.endswith("__main__") and "migrations" not in name and "interop" not in name:
                with contextlib.suppress(ImportError):  # optional libraries
                    importlib.import_module(name)


def run_case(case):
    """Run a case's commands one after another, and those in the background beside them."""
    folder = Path(case["folder"])
    os.chdir(folder)
    background, seconds = [], {}
    try:
        with relay(case.get("relay"), folder / "wire"):
            for number, command in enumerate(case["commands"]):
                wait_for(command.get("wait"))
                if command["line"] == "help":
                    seconds[number] = write_help(case, number)
                    continue
                process = start(case, number, command)
                if command.get("background"):
                    background.append((number, process))
                else:
                    seconds[number] = end(number, process)
            for number, process in background:
                seconds[number] = end(number, process)
    except Exception:
        Path("failed.txt").write_text(traceback.format_exc())
        for _, process in background:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
    answer(case=case["name"], cpu=seconds)
    return 0


def start(case, number, command):
    """Fork a command. Its output goes to files that its number names."""
    process = os.fork()
    if process:
        return process
    try:
        for name, descriptor in (("stdout", 1), ("stderr", 2)):
            os.dup2(os.open(f"{number}.{name}.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), descriptor)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        signal.alarm(SECONDS)
        os.environ[sitecustomize.VARIABLE] = f"{case['name']} {number}"
        sitecustomize.fix_entropy()
        if command.get("killed"):
            die_at(command["killed"])
        status = run_words(shlex.split(command["line"]))
    except BaseException:
        traceback.print_exc()
        status = 1
    with contextlib.suppress(BaseException):
        threading._shutdown()
        atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def run_words(words):
    """Run a command as a shell would: a module, or a script of Python's. Returns its exit status."""
    program, sys.argv = words[0], words
    try:
        if program == "python":
            sys.argv = words[1:]
            sys.path.insert(0, str(Path(words[1]).parent.resolve()))
            runpy.run_path(words[1], run_name="__main__")
        else:
            runpy.run_module(program.replace("-", "_"), run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
            return 1
        return int(end.code or 0)
    return 0


def end(number, process):
    """Wait for a command, and write down how it ended. Returns the seconds of processors that it took."""
    _, status, used = os.wait4(process, 0)
    Path(f"{number}.status.txt").write_text(f"{os.waitstatus_to_exitcode(status)}\n")
    return used.ru_utime + used.ru_stime


def wait_for(condition):
    """Wait until a file of this name has a text."""
    if condition is None:
        return
    name, text = condition
    for _ in range(SECONDS * 20):
        with contextlib.suppress(FileNotFoundError):
            if any(text.encode() in path.read_bytes() for path in Path().glob(name)):
                return
        time.sleep(0.05)
    raise TimeoutError(f"{name} has not {text!r}")


def die_at(ending):
    """Kill this process when it is about to rename a file to a path of this ending."""

    def hook(event, arguments):
        if event == "os.rename" and os.fsdecode(arguments[1]).endswith(ending):
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def write_help(case, number):
    """Write what each command says of all its options, found by what those before it list."""
    seconds, left = 0.0, [()]
    while left:
        words = left.pop()
        name = "-".join(("help", *words))
        for option in ("--help", "--help-all"):
            line = shlex.join(("fedlm", *words, option))
            seconds += end(name, start(case, name, {"line": line}))
            found = _SUB_COMMAND.findall(Path(f"{name}.stdout.txt").read_text())
            if found:
                left += [(*words, word) for word in found]
                break
    return seconds


@contextlib.contextmanager
def relay(ports, folder):
    """Carry connections from one port of loopback to another, in a process of its own, and write down what passes."""
    if ports is None:
        yield
        return
    folder.mkdir()
    process = os.fork()
    if process == 0:
        asyncio.run(carry(ports, folder))
    try:
        yield
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)


async def carry(ports, folder):
    count = 0

    async def copy(reader, writer, path):
        with path.open("ab", buffering=0) as file:
            while data := await reader.read(1 << 16):
                if path.suffix == ".down" and not file.tell():  # what was sent before the first answer
                    path.with_suffix(".answered").write_bytes(path.with_suffix(".up").read_bytes())
                file.write(data)
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader, writer):
        nonlocal count
        count += 1
        name = folder / f"{count}"
        try:
            other_reader, other_writer = await asyncio.open_connection("127.0.0.1", ports[1])
        except OSError:  # the server is not there yet
            writer.close()
            return
        both = (
            copy(reader, other_writer, name.with_suffix(".up")),
            copy(other_reader, writer, name.with_suffix(".down")),
        )
        await asyncio.gather(*both, return_exceptions=True)

    async with await asyncio.start_server(serve, "127.0.0.1", ports[0]) as server:
        await server.serve_forever()


if __name__ == "__main__":
    main()
