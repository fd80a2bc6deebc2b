"""The host's end of the port to a guest's agent.

The same frames pass between `pmemlab machine serve` and those who attach to it, so one class does
both.
"""

from __future__ import annotations

import itertools
import json
import queue
import socket
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, suppress

from pmemlab.errors import CommandTimeoutError, LabError, MachineDiedError
from pmemlab.machines.guest import agent
from pmemlab.machines.protocol import OnLine, Result

__all__ = ["Command", "Link"]

_PING_EVERY_S = 10.0
_KILL_GRACE_S = 10.0


class Link:
    """Runs commands through a connected socket.

    died: makes the error for a guest that is gone; it is told how that showed.

    Methods may be called from any thread. `_lock` guards `_channels` and `_closed`; `_sending` is
    held while a frame is sent, which may wait for the other end: the thread that reads never takes
    it, so the other end is never kept from writing.
    """

    # A guest that leaves a ping unanswered for so long, and sends nothing else, is taken for dead.
    _silence_s = 60.0

    def __init__(self, connection: socket.socket, died: Callable[[str], LabError]) -> None:
        self._socket = connection
        self._died = died
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._numbers = itertools.count(1)
        self._channels: dict[int, queue.SimpleQueue[tuple[int, bytes] | None]] = {
            0: queue.SimpleQueue()
        }
        self._heard = 0  # how often bytes came
        self._closed = threading.Event()
        self._reader = threading.Thread(target=self._read, name="guest link", daemon=True)
        self._reader.start()

    def wait_hello(self, timeout: float) -> None:
        """Wait until the agent says that it is up. Raises the guest's death."""
        try:
            frame = self._channels[0].get(timeout=timeout)
        except queue.Empty:
            raise self._died(f"was not up after {timeout:g} s") from None
        if frame is None:
            raise self._died("went down before it was up")

    def wait_closed(self, timeout: float | None = None) -> bool:
        """Wait until the other end is gone. False where it still is there after the timeout."""
        return self._closed.wait(timeout)

    def spawn(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        terminal: Mapping[str, int] | None = None,
        takes_input: bool = False,
    ) -> Command:
        """Start a command. It is the caller's to read to its end, or to kill.

        terminal: "rows" and "columns" of the terminal that it is to run on. Default: on none.
        takes_input: whether `Command.send_input` gives it a standard input. Default: it has an
            empty one.
        """
        request: dict[str, object] = {"argv": list(argv), "env": dict(env), "input": takes_input}
        if terminal is not None:
            request["terminal"] = dict(terminal)
        return self._begin(agent.SPAWN, json.dumps(request).encode())

    def switch_power(self, kind: int) -> None:
        """Ask `pmemlab machine serve`, which alone can, to cut its guest's power or to boot it.

        kind: agent.POWER_CUT or agent.POWER_ON. Raises `LabError` where that fails.
        """
        for _ in self._begin(kind).output():
            pass

    def _begin(self, kind: int, payload: bytes = b"") -> Command:
        channel = next(self._numbers)
        frames: queue.SimpleQueue[tuple[int, bytes] | None] = queue.SimpleQueue()
        with self._lock:
            if self._closed.is_set():
                raise self._died("is down")
            self._channels[channel] = frames
        self._send(agent.pack(kind, channel, payload))
        return Command(self, channel, frames)

    def run(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        timeout: float | None = None,
        on_line: OnLine | None = None,
    ) -> Result:
        """Run a command to its end; see `Machine.run`."""
        output = {agent.STDOUT: bytearray(), agent.STDERR: bytearray()}
        lines = _Lines(on_line)

        def texts() -> tuple[str, str]:
            out, err = (bytes(part).decode(errors="surrogateescape") for part in output.values())
            return out, err

        command = self.spawn(argv, env)
        try:
            with closing(command.output(timeout)) as pieces:
                for stream, data in pieces:
                    output[stream] += data
                    lines.feed(stream, data)
        except TimeoutError:
            raise CommandTimeoutError(argv, timeout or 0.0, *texts()) from None
        return Result(command.returncode, *texts())

    def refresh(self) -> None:
        """Make the guest forget what it has cached of the host's files."""
        self._send(agent.pack(agent.REFRESH))

    def close(self) -> None:
        """Hang up. Commands that others wait for end with the guest's death."""
        with suppress(OSError):  # the other end may have been faster
            self._socket.shutdown(socket.SHUT_RDWR)
        if self._reader is not threading.current_thread():
            self._reader.join()
        self._socket.close()

    def _send(self, data: bytes) -> None:
        with self._sending:
            try:
                self._socket.sendall(data)
            except OSError:
                raise self._died("is down") from None

    def _read(self) -> None:
        unpacker = agent.Unpacker()
        while True:
            try:
                data = self._socket.recv(1 << 18)
            except OSError:
                data = b""
            if not data:
                break
            self._heard += 1
            for kind, channel, payload in unpacker.feed(data):
                with self._lock:
                    frames = self._channels.get(channel)
                if frames is not None and kind != agent.PONG:
                    frames.put((kind, payload))
        with self._lock:
            self._closed.set()
            waiting = list(self._channels.values())
        for frames in waiting:
            frames.put(None)

    def _next(
        self, frames: queue.SimpleQueue[tuple[int, bytes] | None], deadline: float | None
    ) -> tuple[int, bytes]:
        """The channel's next frame. Raises TimeoutError, or the guest's death."""
        wait = min(_PING_EVERY_S, self._silence_s / 3)
        heard = None  # `_heard` when the first ping was sent that nothing came after
        silent_s = 0.0
        while True:
            left = wait if deadline is None else deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            try:
                frame = frames.get(timeout=min(left, wait))
            except queue.Empty:
                if self._heard != heard:
                    heard, silent_s = self._heard, 0.0
                else:
                    silent_s += wait  # not by the clock: this process may have been stopped
                if silent_s >= self._silence_s:
                    raise self._died(f"has not answered for {self._silence_s:g} s") from None
                self._send(agent.pack(agent.PING))
                continue
            if frame is None:
                frames.put(None)  # for whoever asks again
                raise self._died("went down while a command ran")
            return frame

    def _forget(self, channel: int) -> None:
        with self._lock:
            self._channels.pop(channel, None)


class Command:
    """A command that runs in the guest. `returncode` is there once `output` has ended.

    `output` and `frames` are for one thread, all else for any.
    """

    def __init__(
        self,
        link: Link,
        channel: int,
        frames: queue.SimpleQueue[tuple[int, bytes] | None],
    ) -> None:
        self._link = link
        self._channel = channel
        self._frames = frames
        self._flow = threading.Condition()  # guards the following two, and tells of changes
        self._sent_ahead = 0
        self._ended = False
        self._taken = 0  # how much `output` gave away and the agent was not told of
        self.returncode = 0

    def output(self, timeout: float | None = None) -> Generator[tuple[int, bytes], None, None]:
        """What it writes, as it comes: (agent.STDOUT or agent.STDERR, bytes).

        Raises TimeoutError past the timeout, after the command was killed; the guest's death; and
        `LabError` where the command can't be started. Left early, it kills the command.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        ended = False
        try:
            for kind, payload in self.frames(deadline):
                if kind == agent.EXIT:
                    ended = True
                    end = json.loads(payload)
                    if "error" in end:
                        raise (MachineDiedError if end.get("died") else LabError)(end["error"])
                    self.returncode = end["returncode"]
                elif kind == agent.TAKEN:
                    self._note_taken(json.loads(payload)["bytes"])
                else:
                    yield kind, payload
                    self._note_output(len(payload))
        finally:
            with self._flow:
                self._ended = True
                self._flow.notify_all()
            if not ended and not self._link.wait_closed(0):
                self._kill_and_wait()
            self._link._forget(self._channel)

    def frames(self, deadline: float | None = None) -> Iterator[tuple[int, bytes]]:
        """What the agent says of it, as it comes: (kind, payload), EXIT last. `output` makes sense
        of them; whoever passes them on leaves that to who gets them.

        Raises TimeoutError past the deadline, and the guest's death.
        """
        kind = None
        while kind != agent.EXIT:
            kind, payload = self._link._next(self._frames, deadline)
            if kind == agent.EXIT:
                self._link._forget(self._channel)
            yield kind, payload

    def send(self, kind: int, payload: bytes = b"") -> None:
        """Say something of it to the agent."""
        self._link._send(agent.pack(kind, self._channel, payload))

    def kill(self) -> None:
        """Kill it and its children. `output` then comes to its end."""
        self.send(agent.KILL)

    def signal(self, number: int) -> None:
        """Send a signal to it and its children."""
        self.send(agent.SIGNAL, json.dumps({"number": number}).encode())

    def type(self, keys: bytes) -> None:
        """Type at its terminal, or pass on its standard input; with neither, nothing happens."""
        self.send(agent.INPUT, keys)

    def send_input(self, data: bytes) -> bool:
        """Send bytes for its standard input. Returns False once it has ended.

        Waits while it reads too slowly, so another thread must be in `output`.
        """
        with self._flow:
            self._flow.wait_for(lambda: self._ended or self._sent_ahead < agent.INPUT_WINDOW)
            if self._ended:
                return False
            self._sent_ahead += len(data)
        self.type(data)
        return True

    def end_input(self) -> None:
        """End its standard input, after what was sent."""
        self.send(agent.END_INPUT)

    def resize(self, terminal: Mapping[str, int]) -> None:
        """Tell its terminal a new size: "rows" and "columns"."""
        self.send(agent.RESIZE, json.dumps(dict(terminal)).encode())

    def _note_output(self, count: int) -> None:
        """Tells the agent of output that was taken, a part of the window at a time."""
        self._taken += count
        if self._taken >= agent.OUTPUT_WINDOW // 4:
            with suppress(LabError):  # what a dead guest sent before is still to be read
                self.send(agent.READ, json.dumps({"bytes": self._taken}).encode())
            self._taken = 0

    def _note_taken(self, count: int) -> None:
        with self._flow:
            self._sent_ahead -= count
            self._flow.notify_all()

    def _kill_and_wait(self) -> None:
        """So that no timeout leaves anything running."""
        self.kill()
        try:
            for _ in self.frames(time.monotonic() + _KILL_GRACE_S):
                pass
        except TimeoutError:
            raise self._link._died("does not answer, not even to a kill") from None


class _Lines:
    """Cuts streams, which come in pieces, into lines. A last one that has no end is never told."""

    def __init__(self, on_line: OnLine | None) -> None:
        self._on_line = on_line
        self._begun: dict[int, bytes] = {}  # by stream

    def feed(self, stream: int, data: bytes) -> None:
        if self._on_line is None:
            return
        *lines, rest = (self._begun.get(stream, b"") + data).split(b"\n")
        self._begun[stream] = rest
        for line in lines:
            self._on_line(line.decode(errors="surrogateescape"))
