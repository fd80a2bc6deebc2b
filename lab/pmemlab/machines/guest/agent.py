"""The guest's first process: runs commands for the host, and exchanges frames with it.

The agent is started by path, before anything of this package can be imported in the guest, so it
imports only the standard library. The host imports the frame format from here.

If this computer itself is the machine, the agent is an ordinary process, started with

    python -S -E agent.py PORT FOLDER

PORT: the descriptor of its port. FOLDER: the working folder of commands. The commands end with the
agent, which ends with the host, or by SIGTERM.

A frame is a header (kind: u8, channel: u32, length: u32, big-endian) and `length` bytes. A channel
is one command; the host chooses its number.

    host -> guest   SPAWN    JSON {"argv": [...], "env": {...}}; with "terminal": {"rows": ...,
                             "columns": ...} the command runs on a terminal, and all its output is
                             STDOUT; with "input": true it has a standard input, else it reads
                             nothing
                    INPUT    bytes, typed at the command's terminal or for its standard input
                    END_INPUT  nothing; the standard input ends after the bytes sent before
                    SIGNAL   JSON {"number": ...}, for the command and its group
                    RESIZE   JSON {"rows": ..., "columns": ...}, of its terminal
                    READ     JSON {"bytes": ...}; bytes of the command's output taken since the
                             last READ. At most about OUTPUT_WINDOW bytes wait at the host, but
                             more from a command on a terminal
                    KILL     nothing; SIGKILL to the command and its group
                    REFRESH  nothing; drop the cached files of the host
                    PING     nothing
    guest -> host   HELLO    nothing; once
                    STDOUT, STDERR   bytes
                    TAKEN    JSON {"bytes": ...}; bytes of standard input that the command took
                             since the last TAKEN. The host sends at most INPUT_WINDOW bytes
                             ahead, since they wait in the guest's memory
                    EXIT     JSON {"returncode": ...} or {"error": ...}; the channel's last frame
                    PONG     nothing

A client attached to `pmemlab machine serve` may also send these, and gets EXIT when they are done:

    client -> serve POWER_CUT   nothing; end the guest at once
                    POWER_ON    nothing; boot it again on the same media, and prove it
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import struct
import subprocess
import sys

TYPE_CHECKING = False  # importing typing would cost a guest time
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

HELLO, SPAWN, KILL, REFRESH, PING, PONG, STDOUT, STDERR, EXIT, INPUT, RESIZE = range(1, 12)
POWER_CUT, POWER_ON = range(12, 14)
END_INPUT, SIGNAL, TAKEN, READ = range(14, 18)
INPUT_WINDOW = OUTPUT_WINDOW = 1 << 20
PORT_NAME = "pmemlab.agent"
DROPS_CACHES = "/proc/sys/vm/drop_caches"

_HEADER = struct.Struct("!BII")
_READ_BYTES = 1 << 18


def pack(kind: int, channel: int = 0, payload: bytes = b"") -> bytes:
    """Returns a frame."""
    return _HEADER.pack(kind, channel, len(payload)) + payload


class Unpacker:
    """Cuts a stream of bytes into frames, whatever the sizes of its pieces."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[tuple[int, int, bytes]]:
        """Returns the frames (kind, channel, payload) that are complete now."""
        self._buffer += data
        frames = []
        start = 0
        while len(self._buffer) - start >= _HEADER.size:
            kind, channel, length = _HEADER.unpack_from(self._buffer, start)
            end = start + _HEADER.size + length
            if len(self._buffer) < end:
                break
            frames.append((kind, channel, bytes(self._buffer[start + _HEADER.size : end])))
            start = end
        del self._buffer[:start]
        return frames


class _Command:
    """A running command. terminal: the agent's end of its terminal, if it runs on one."""

    def __init__(
        self, channel: int, process: subprocess.Popen[bytes], terminal: int | None
    ) -> None:
        self.channel = channel
        self.process = process
        self.terminal = terminal
        self.input = terminal if process.stdin is None else process.stdin.fileno()
        self.typed = bytearray()  # input that the command has not taken yet
        self.input_ends = False
        self.unread = 0  # bytes of output sent and not yet taken by the host
        if terminal is not None:
            self.pipes = {terminal: STDOUT}
        else:
            assert process.stdout is not None
            assert process.stderr is not None
            self.pipes = {process.stdout.fileno(): STDOUT, process.stderr.fileno(): STDERR}

    def is_ahead(self) -> bool:
        """Returns whether the output must wait until the host has taken more."""
        return self.terminal is None and self.unread >= OUTPUT_WINDOW

    def close_input(self) -> None:
        if self.process.stdin is not None:
            self.process.stdin.close()
            self.input = None

    def close(self) -> None:
        self.close_input()
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()
        if self.terminal is not None:
            os.close(self.terminal)


class Agent:
    """Serves a host over a port, in one thread, as long as both live."""

    def __init__(self, port: int, prepared: ModuleType | None = None, folder: str = "/") -> None:
        """prepared: the module `prepared`, if commands are to start quickly through it.
        folder: the working folder of commands.
        """
        self._port = port
        self._prepared = prepared
        self._folder = folder
        self._unpacker = Unpacker()
        self._commands: dict[int, _Command] = {}  # by channel
        self._pipes: dict[int, _Command] = {}  # by file descriptor
        self._full: dict[int, _Command] = {}  # by descriptor of a standard input that is full
        self._selector = selectors.DefaultSelector()
        self._selector.register(port, selectors.EVENT_READ)
        # A child's end must wake the loop even if a grandchild keeps its pipes open.
        self._wakeup, write_end = os.pipe()
        os.set_blocking(self._wakeup, False)
        os.set_blocking(write_end, False)
        signal.set_wakeup_fd(write_end)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        # Commands inherit this. A parent that runs the agent in the background may ignore it.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        self._selector.register(self._wakeup, selectors.EVENT_READ)

    def serve(self) -> None:
        try:
            self._send(HELLO, 0)
            while self._serve_once():
                self._reap()
        finally:
            for command in self._commands.values():
                with contextlib.suppress(OSError):  # for example, a command that changed its user
                    os.killpg(command.process.pid, signal.SIGKILL)
                    command.process.wait()

    def _serve_once(self) -> bool:
        """Handles the next events. Returns False if the host is gone."""
        for key, events in self._selector.select():
            if key.fd == self._port:
                data = os.read(self._port, _READ_BYTES)
                if not data:
                    return False
                for kind, channel, payload in self._unpacker.feed(data):
                    try:
                        self._handle(kind, channel, payload)
                    except Exception as error:  # the kernel panics if its first process ends
                        print(f"pmemlab: request {kind} failed: {error!r}", flush=True)
            elif key.fd == self._wakeup:
                os.read(self._wakeup, 4096)
            elif key.fd in self._pipes:
                if events & selectors.EVENT_WRITE:
                    self._type(self._pipes[key.fd])
                if events & selectors.EVENT_READ:
                    self._pump(key.fd)
            elif key.fd in self._full:
                self._type(self._full[key.fd])
        return True

    def _handle(self, kind: int, channel: int, payload: bytes) -> None:
        if kind == SPAWN:
            self._spawn(channel, json.loads(payload))
        elif kind == KILL and channel in self._commands:
            os.killpg(self._commands[channel].process.pid, signal.SIGKILL)
        elif kind == SIGNAL and channel in self._commands:
            os.killpg(self._commands[channel].process.pid, json.loads(payload)["number"])
        elif kind in (INPUT, END_INPUT) and channel in self._commands:
            command = self._commands[channel]
            command.typed += payload
            command.input_ends |= kind == END_INPUT
            self._type(command)
        elif kind == RESIZE and channel in self._commands:
            command = self._commands[channel]
            if command.terminal is not None:
                _resize(command.terminal, json.loads(payload))
        elif kind == READ and channel in self._commands:
            self._note_read(self._commands[channel], json.loads(payload)["bytes"])
        elif kind == REFRESH:
            if self._prepared:
                self._prepared.stop_servers()
            with open(DROPS_CACHES, "w") as file:  # noqa: PTH123
                file.write("3")
        elif kind == PING:
            self._send(PONG, channel)

    def _spawn(self, channel: int, request: dict[str, Any]) -> None:
        terminal = end = None
        try:
            argv, env = request["argv"], request["env"]
            if self._prepared:
                argv = self._prepared.prepared_command(argv, sys.executable)
                env[self._prepared.VARIABLE] = "1"
            stdin = subprocess.PIPE if request.get("input") else subprocess.DEVNULL
            if "terminal" in request:
                terminal, end = os.openpty()
                _resize(terminal, request["terminal"])
            process = subprocess.Popen(
                argv,
                env=env,
                stdin=stdin if end is None else end,
                stdout=subprocess.PIPE if end is None else end,
                stderr=subprocess.PIPE if end is None else end,
                cwd=self._folder,
                start_new_session=True,
                preexec_fn=None if end is None else _take_terminal,
            )
        except Exception as error:  # the requester waits for an answer
            if terminal is not None:
                os.close(terminal)
            self._send(EXIT, channel, {"error": f"{_program(request)}: can't be run: {error}"})
            return
        finally:
            if end is not None:
                os.close(end)
        command = self._commands[channel] = _Command(channel, process, terminal)
        for pipe in command.pipes:
            os.set_blocking(pipe, False)
            self._pipes[pipe] = command
            self._selector.register(pipe, selectors.EVENT_READ)
        if process.stdin is not None:
            os.set_blocking(process.stdin.fileno(), False)

    def _pump(self, pipe: int, limit: int = _READ_BYTES) -> int:
        """Sends the content of a pipe, up to a limit. Returns the number of bytes."""
        command = self._pipes[pipe]
        try:
            data = os.read(pipe, min(limit, _READ_BYTES))
        except BlockingIOError:
            return 0
        except OSError:  # EIO: no process has the terminal open any more
            data = b""
        if not data:
            self._forget_pipe(pipe)
            return 0
        self._write(pack(command.pipes[pipe], command.channel, data))
        command.unread += len(data)
        if command.is_ahead():
            for waiting in command.pipes:
                self._unwatch(waiting)
        return len(data)

    def _note_read(self, command: _Command, count: int) -> None:
        was_ahead = command.is_ahead()
        command.unread -= count
        if was_ahead and not command.is_ahead():
            for pipe in command.pipes:
                if pipe in self._pipes:
                    self._selector.register(pipe, selectors.EVENT_READ)

    def _unwatch(self, descriptor: int) -> None:
        if descriptor in self._selector.get_map():
            self._selector.unregister(descriptor)

    def _forget_pipe(self, pipe: int) -> None:
        self._unwatch(pipe)
        self._pipes.pop(pipe, None)

    def _drain(self, pipe: int) -> None:
        """Sends what an ended command left in a pipe, but at most the pipe's capacity: a child that
        the command left behind may write for ever.
        """
        left = _capacity(pipe)
        while left > 0 and pipe in self._pipes:
            sent = self._pump(pipe, left)
            if not sent:
                break
            left -= sent

    def _type(self, command: _Command) -> None:
        """Writes the bytes sent for a command's input, as many as it takes now."""
        if command.input is None:
            command.typed.clear()
            return
        sent = len(command.typed)
        try:
            del command.typed[: os.write(command.input, command.typed)]
        except BlockingIOError:
            pass
        except OSError:  # no process has it open any more
            command.typed.clear()
        if command.input == command.terminal:
            if command.terminal in self._pipes:
                waiting = selectors.EVENT_WRITE if command.typed else 0
                self._selector.modify(command.terminal, selectors.EVENT_READ | waiting)
            return
        if sent > len(command.typed):
            self._send(TAKEN, command.channel, {"bytes": sent - len(command.typed)})
        if command.typed and command.input not in self._full:
            self._full[command.input] = command
            self._selector.register(command.input, selectors.EVENT_WRITE)
        elif not command.typed:
            self._forget_input(command)
            if command.input_ends:
                command.close_input()

    def _forget_input(self, command: _Command) -> None:
        if command.input is not None and command.input in self._full:
            del self._full[command.input]
            self._selector.unregister(command.input)

    def _reap(self) -> None:
        """Reports the commands that have ended, and reaps orphans, as a first process must."""
        while True:
            try:
                # WNOWAIT: leaves a command's status to its Popen
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            for command in self._commands.values():
                if command.process.pid == ended.si_pid:
                    self._finish(command)
                    break
            else:
                os.waitpid(ended.si_pid, 0)

    def _finish(self, command: _Command) -> None:
        returncode = command.process.wait()
        for pipe in command.pipes:  # everything it wrote is in the pipes by now
            self._drain(pipe)
            self._forget_pipe(pipe)
        self._forget_input(command)
        command.close()
        del self._commands[command.channel]
        self._send(EXIT, command.channel, {"returncode": returncode})

    def _send(self, kind: int, channel: int, document: object = None) -> None:
        payload = b"" if document is None else json.dumps(document).encode()
        self._write(pack(kind, channel, payload))

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._port, view) :]


def _program(request: object) -> object:
    """Returns the program that a request names, for errors: the request may be anything."""
    argv = request.get("argv") if isinstance(request, dict) else request
    return argv[0] if isinstance(argv, list) and argv else argv


def _capacity(pipe: int) -> int:
    """Returns the capacity in bytes of a command's pipe or terminal."""
    import fcntl

    try:
        return fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ)
    except OSError:  # a terminal, whose buffers hold less than this
        return _READ_BYTES


def _take_terminal() -> None:
    """Makes the child's terminal the controlling terminal of its session."""
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    # A parent that started the agent in the background may ignore the signals of its keys.
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP):
        signal.signal(number, signal.SIG_DFL)


def _resize(terminal: int, size: dict[str, int]) -> None:
    import fcntl  # few guests ever have a terminal
    import termios

    lines = struct.pack("HHHH", size["rows"], size["columns"], 0, 0)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, lines)


def _open_port() -> int:
    """Opens the virtio-serial port that the host named for us (there is no udev to link it)."""
    folder = "/sys/class/virtio-ports"
    for port in os.listdir(folder):  # noqa: PTH208
        with open(f"{folder}/{port}/name") as file:  # noqa: PTH123
            if file.read().strip() == PORT_NAME:
                return os.open(f"/dev/{port}", os.O_RDWR | os.O_CLOEXEC)
    sys.exit(f"no virtio-serial port is called {PORT_NAME}")


def _main() -> None:
    if len(sys.argv) > 1:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit())
        with contextlib.suppress(OSError):  # the host is gone
            Agent(int(sys.argv[1]), folder=sys.argv[2]).serve()
        return
    print("pmemlab: the agent is up", flush=True)  # on the console
    # The boot was quiet, since a console costs time. From now on the kernel's notices matter.
    with open("/proc/sys/kernel/printk", "w") as file:  # noqa: PTH123
        file.write("6")
    import prepared  # type: ignore[import-not-found]  # lies beside this file, which has no package

    Agent(_open_port(), prepared).serve()


if __name__ == "__main__":
    _main()
