"""A process that starts programs, one at a time, and ends all that each has left: see `forks`.

    python -m powercut.supervisor DESCRIPTOR

A request comes by the socket of that number: the descriptors of a file of JSON, and of the
program's standard output and error. The answers are the program's process id, or the negative errno
if it can't be started; and, once it and all its descendants have ended, its exit code as
`subprocess` has it.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

from powercut.descendants import adopt_orphans, end_descendants

__all__: list[str] = []


def _serve(requests: socket.socket) -> None:
    requests.set_inheritable(False)
    adopt_orphans()
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, 100, 3, socket.MSG_CMSG_CLOEXEC)
        if not message:
            return
        with os.fdopen(descriptors[0]) as file:
            file.seek(0)
            request = json.load(file)
        try:
            process = subprocess.Popen(
                request["arguments"],
                env=request["environment"],
                cwd=request["folder"],
                stdin=subprocess.DEVNULL,
                stdout=descriptors[1],
                stderr=descriptors[2],
                close_fds=False,
                start_new_session=True,
            )
        except OSError as error:
            requests.send(b"%d" % -(error.errno or 1))
            continue
        finally:
            for descriptor in descriptors[1:]:
                os.close(descriptor)
        requests.send(b"%d" % process.pid)
        status = process.wait()
        end_descendants()
        requests.send(b"%d" % status)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
