"""The host's end of the connection to a guest's agent.

A client of `pmemlab machine serve` exchanges the same frames with it, so it uses this class too.
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

    death_error: makes the error for a guest that is gone; its argument says what was seen.

    Methods may be called from any thread. `_lock` guards `_channels` and `_closed`. `_sending` is
    held while a frame is sent, which may wait for the other end. The reading thread never takes
    `_sending`, so the other end can always write.
    """

    # A guest that neither answers a ping nor sends anything for this long is taken for dead.
    _silence_s = 60.0

    def __init__(self, connection: socket.socket, death_error: Callable[[str], LabError]) -> None:
        self._socket = connection
        self._death_error = death_error
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._numbers = itertools.count(1)
        self._channels: dict[int, queue.SimpleQueue[tuple[int, bytes] | None]] = {
            0: queue.SimpleQueue()
        }
        self._heard = 0  # number of receptions
        self._closed = threading.Event()
        self._reader = threading.Thread(target=self._read, name="guest link", daemon=True)
        self._reader.start()

    def wait_hello(self, timeout: float) -> None:
        """Waits until the agent says that it is up. Raises the guest's death."""
        try:
            frame = self._channels[0].get(timeout=timeout)
        except queue.Empty:
            raise self._death_error(f"was not up after {timeout:g} s") from None
        if frame is None:
            raise self._death_error("went down before it was up")

    def wait_closed(self, timeout: float | None = None) -> bool:
        """Waits until the other end is gone. Returns False after the timeout."""
        return self._closed.wait(timeout)

    def spawn(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        terminal: Mapping[str, int] | None = None,
        takes_input: bool = False,
    ) -> Command:
        """Starts a command. The caller must read its output to the end, or kill it.

        terminal: "rows" and "columns" of the command's terminal. Default: it has no terminal.
        takes_input: whether `Command.send_input` feeds its standard input. Default: the input is
            empty.
        """
        request: dict[str, object] = {"argv": list(argv), "env": dict(env), "input": takes_input}
        if terminal is not None:
            request["terminal"] = dict(terminal)
        return self._begin(agent.SPAWN, json.dumps(request).encode())

    def switch_power(self, kind: int) -> None:
        """Makes `pmemlab machine serve` cut its guest's power or boot the guest.

        kind: agent.POWER_CUT or agent.POWER_ON. Raises `LabError` if that fails.
        """
        for _ in self._begin(kind).output():
            pass

    def _begin(self, kind: int, payload: bytes = b"") -> Command:
        channel = next(self._numbers)
        frames: queue.SimpleQueue[tuple[int, bytes] | None] = queue.SimpleQueue()
        with self._lock:
            if self._closed.is_set():
                raise self._death_error("is down")
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
        """Runs a command to its end; see `Machine.run`."""
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
        """Makes the guest drop its cache of the host's files."""
        self._send(agent.pack(agent.REFRESH))

    def close(self) -> None:
        """Closes the connection. Threads that wait for a command get the guest's death."""
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
                raise self._death_error("is down") from None

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
        """Returns the channel's next frame. Raises TimeoutError, or the guest's death."""
        wait = min(_PING_EVERY_S, self._silence_s / 3)
        heard = None  # `_heard` at the first unanswered ping
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
                    raise self._death_error(f"has not answered for {self._silence_s:g} s") from None
                self._send(agent.pack(agent.PING))
                continue
            if frame is None:
                frames.put(None)  # for the next call
                raise self._death_error("went down while a command ran")
            return frame

    def _forget(self, channel: int) -> None:
        with self._lock:
            self._channels.pop(channel, None)


class Command:
    """A command that runs in the guest. `returncode` is set once `output` has ended.

    `output` and `frames` may be called from one thread, all other methods from any.
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
        self._flow = threading.Condition()  # guards the next two, and signals their changes
        self._sent_ahead = 0
        self._ended = False
        self._taken = 0  # bytes that `output` yielded and the agent was not told of
        self.returncode = 0

    def output(self, timeout: float | None = None) -> Generator[tuple[int, bytes], None, None]:
        """Yields the command's output as it comes: (agent.STDOUT or agent.STDERR, bytes).

        Raises TimeoutError past the timeout, after killing the command; the guest's death; and
        `LabError` if the command can't be started. A caller that stops early kills the command.
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
        """Yields the agent's frames of the command as they come: (kind, payload), EXIT last.
        `output` interprets them; a caller that forwards them leaves that to the receiver.

        Raises TimeoutError past the deadline, and the guest's death.
        """
        kind = None
        while kind != agent.EXIT:
            kind, payload = self._link._next(self._frames, deadline)
            if kind == agent.EXIT:
                self._link._forget(self._channel)
            yield kind, payload

    def send(self, kind: int, payload: bytes = b"") -> None:
        """Sends the agent a frame about this command."""
        self._link._send(agent.pack(kind, self._channel, payload))

    def kill(self) -> None:
        """Kills the command and its children. `output` then ends."""
        self.send(agent.KILL)

    def signal(self, number: int) -> None:
        """Sends a signal to the command and its children."""
        self.send(agent.SIGNAL, json.dumps({"number": number}).encode())

    def type(self, keys: bytes) -> None:
        """Types at the command's terminal, or sends standard input. Without both, does nothing."""
        self.send(agent.INPUT, keys)

    def send_input(self, data: bytes) -> bool:
        """Sends bytes for the command's standard input. Returns False once the command has ended.

        Waits while the command reads too slowly, so another thread must be in `output`.
        """
        with self._flow:
            self._flow.wait_for(lambda: self._ended or self._sent_ahead < agent.INPUT_WINDOW)
            if self._ended:
                return False
            self._sent_ahead += len(data)
        self.type(data)
        return True

    def end_input(self) -> None:
        """Ends the command's standard input, after the bytes sent before."""
        self.send(agent.END_INPUT)

    def resize(self, terminal: Mapping[str, int]) -> None:
        """Gives the command's terminal a new size: "rows" and "columns"."""
        self.send(agent.RESIZE, json.dumps(dict(terminal)).encode())

    def _note_output(self, count: int) -> None:
        """Tells the agent of output that was taken, once that is a quarter of the window."""
        self._taken += count
        if self._taken >= agent.OUTPUT_WINDOW // 4:
            with suppress(LabError):  # output sent by a guest before its death can still be read
                self.send(agent.READ, json.dumps({"bytes": self._taken}).encode())
            self._taken = 0

    def _note_taken(self, count: int) -> None:
        with self._flow:
            self._sent_ahead -= count
            self._flow.notify_all()

    def _kill_and_wait(self) -> None:
        """Kills the command, so that no timeout leaves anything running."""
        self.kill()
        try:
            for _ in self.frames(time.monotonic() + _KILL_GRACE_S):
                pass
        except TimeoutError:
            raise self._link._death_error("does not answer, not even to a kill") from None


class _Lines:
    """Cuts streams, which come in pieces, into lines. Drops a last line without an end."""

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
