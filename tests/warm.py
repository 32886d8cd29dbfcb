"""Start programs that use vLLM from a process that has loaded it.

Loading takes 15 seconds of a core, and a server loads it twice. Here a process that has it in memory forks for each
program, as training.py does for trainings. What runs is the program itself with its own arguments, variables, files and
signals. tests/stages/test_demo.py and tests/test_readme_commands.py start the same programs from nothing.
"""

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import inspect
import json
import multiprocessing
import multiprocessing.context
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

LOADED = (
    "vllm.entrypoints.launchers.api_server.entry",
    "vllm.entrypoints.launchers.cli_args",
    "vllm.model_executor.models.llama",
    "vllm.v1.engine.core",
    "vllm.v1.engine.llm_engine",
    "vllm.v1.worker.cpu_worker",
    "uvloop",
)
START = inspect.signature(subprocess.Popen._execute_child)  # type: ignore[attr-defined]
LARGEST = 1 << 17
"""Bytes of a request: the words and variables of a program."""


@functools.cache
def loader() -> socket.socket:
    """Return a connection to the process that loads vLLM, which all workers of pytest-xdist share.

    Who comes first starts it. It ends with the last connection.
    """
    address = f"\0critic-tests-{os.environ.get('PYTEST_XDIST_TESTRUNUID', os.getpid())}"
    ours = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening, contextlib.suppress(OSError):
        listening.bind(address)
        listening.listen()
        # Read when vLLM is imported: as critic sets them for a folder.
        known = {"HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1"}
        subprocess.Popen([sys.executable, __file__], stdin=listening.fileno(), env={**os.environ, **known})
    ours.connect(address)
    return ours


class Warm(subprocess.Popen[str]):
    """A Python program, started by the process that has loaded vLLM."""

    def _execute_child(self, *values: Any) -> None:
        given = named(self, values)
        ends = [given["p2cread"], given["c2pwrite"], given["errwrite"]]
        environ = dict(os.environ if given["env"] is None else given["env"])
        session = given["start_new_session"]
        program = [*map(str, given["args"])], str(given["cwd"] or Path.cwd()), environ, session
        self.news, told = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with told:
            standard = [number if end < 0 else end for number, end in enumerate(ends)]
            socket.send_fds(loader(), [json.dumps(program).encode()], [told.fileno(), *standard])
        number = self.news.recv(99)
        assert number, "the process that loads vLLM has ended"
        self.pid = int(number)
        taken(self, given)

    def _try_wait(self, flags: int) -> tuple[int, int]:
        """Return the process and its status as os.waitpid, which knows only children of this process."""
        if not select.select([self.news], [], [], 0 if flags else None)[0]:
            return 0, 0
        return self.pid, int(self.news.recv(99) or signal.SIGKILL)

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        if self.returncode is None:
            ended, status = self._try_wait(os.WNOHANG)
            if ended:
                self.returncode = os.waitstatus_to_exitcode(status)
                self.news.close()
        return self.returncode


class Forked(subprocess.Popen[bytes]):
    """A Python module run as a program by a fork of this process; other programs as ever."""

    def _execute_child(self, *values: Any) -> None:
        given = named(self, values)
        if given["args"][:2] != [sys.executable, "-m"]:
            super()._execute_child(*values)  # type: ignore[misc]
            return
        self.pid = os.fork()
        if self.pid == 0:
            with ending():
                if given["preexec_fn"]:
                    given["preexec_fn"]()
                files = [given["p2cread"], given["c2pwrite"], given["errwrite"]]
                run(given["args"], str(given["cwd"] or Path.cwd()), given["env"], given["start_new_session"], files)
        taken(self, given)


def named(process: subprocess.Popen[Any], values: tuple[Any, ...]) -> dict[str, Any]:
    """Return the arguments of Popen's own start by name."""
    return START.bind(process, *values).arguments


def taken(process: Any, given: dict[str, Any]) -> None:
    """Leave the child's ends of pipes to the child."""
    process._child_created = True
    pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
    process._close_pipe_fds(*(given[name] for name in pipes))


@contextlib.contextmanager
def ending() -> Any:
    """End this process after the block as an interpreter does."""
    code: Any = 0
    try:
        yield
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
        code = 1
    finally:
        with contextlib.suppress(Exception):
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code if isinstance(code, int) else int(code is not None))


def run(words: list[str], cwd: str, environ: dict[str, str], in_session: bool, files: list[int]) -> None:
    """Become `python -c CODE …`, `python -m MODULE …` or `python FILE …`, in a session of its own or not."""
    if in_session:
        os.setsid()
    for number, file in enumerate(files):
        if file >= 0:
            os.dup2(file, number)
    for file in {file for file in files if file > 2}:
        os.close(file)
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        setattr(sys, name, os.fdopen(number, mode, closefd=False))
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
        signal.signal(number, handler)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environ)
    kind, what = (words[1], words[2]) if words[1] in ("-c", "-m") else ("", words[1])
    sys.argv = [kind or what, *words[3 if kind else 2 :]]
    sys.path[0] = "" if kind else str(Path(what).parent)
    sys.path[1:1] = filter(None, environ.get("PYTHONPATH", "").split(os.pathsep))
    subprocess.Popen = Forked  # type: ignore[misc,assignment]
    if kind == "-c":
        exec(compile(what, "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102 - as python -c does
    elif kind == "-m":
        # On a GPU vLLM forks for its engine as well; on a CPU it would load everything anew.
        contexts: Any = multiprocessing.context
        contexts._concrete_contexts["spawn"] = contexts._concrete_contexts["fork"]
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(what, run_name="__main__")


def keep(told: socket.socket) -> bool:
    """Fork the program, and return True in it. Else tell its number, and its status once it has ended."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # with the process that has loaded vLLM, which ends with the tests
    program = os.fork()
    if program == 0:
        told.close()
        return True
    told.send(str(program).encode())
    _, status = os.waitpid(program, 0)
    with contextlib.suppress(OSError):
        told.send(str(status).encode())
    os._exit(0)


def main() -> None:
    """Load vLLM and fork for each program that is asked for, until nobody is there to ask."""
    listening = socket.socket(fileno=os.dup(0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C goes to the tests, whose end ends this
    importlib.import_module("setproctitle").getproctitle()  # finds the room for names before a variable is set
    for module in LOADED:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    listening.settimeout(9)  # who started this has long connected, unless it was killed
    tests = [listening.accept()[0]]
    while tests:
        for ready in select.select([listening, *tests], [], [])[0]:
            if ready is listening:
                tests.append(listening.accept()[0])
            elif uid_of(ready) == os.getuid() and (request := socket.recv_fds(ready, LARGEST, 4))[0]:
                begin(request[0], request[1], [listening, *tests])
            else:
                tests.remove(ready)
                ready.close()
    os._exit(0)


def uid_of(connection: socket.socket) -> int:
    """Return the user at the other end: any user of this machine can connect."""
    return int(struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1])


def begin(request: bytes, files: list[int], open_here: list[socket.socket]) -> None:
    """Fork for a program. Its news are told by the first of the files, the others are its own."""
    if os.fork() == 0 and keep(socket.socket(fileno=files[0])):
        for each in open_here:
            each.close()
        words, cwd, environ, in_session = json.loads(request)
        with ending():
            run(words, cwd, environ, in_session, files[1:])
    for file in files:
        os.close(file)
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


if __name__ == "__main__":
    main()
