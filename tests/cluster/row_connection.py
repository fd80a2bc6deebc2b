"""A shard's row server and a remote shard in one process, with a breaking connection between."""

from __future__ import annotations

import contextlib
import itertools
import random
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import embstore as es
from embstore.cluster.ray.calls import Answer
from embstore.cluster.rows.connections import ServerAddress
from embstore.cluster.rows.pushes import PushRules
from embstore.cluster.rows.remote_shard import RemoteShard
from embstore.cluster.rows.row_server import RowServer
from embstore.cluster.rows.server_link import ServerLink
from embstore.table.making import VariableRequest, make_variable
from embstore.table.shard import LocalShard, Shard, ShardSpec

DIM = 3


_RULES: dict[str, Any] = {
    "initializer": es.initializers.RandomUniform(-1.0, 1.0, seed=7),
    "optimizer": es.optimizers.Adagrad(0.1),
}


def variable_here() -> es.EmbeddingVariable:
    """Returns a variable in this process with the same rules as a served one."""
    return es.get_embedding_variable("var", DIM, **_RULES)


class ActorHere:
    """Stands in for a server's actor: calls the shards' methods directly, by table number."""

    node = "127.0.0.1"
    process_id = 0

    def __init__(self, shards: dict[int, LocalShard]) -> None:
        self._shards = shards

    def call(
        self,
        table: int,
        method: str,
        arguments: tuple[Any, ...],
        options: dict[str, Any],
        check_alive: Callable[[], None],
    ) -> Answer:
        check_alive()
        return Answer(getattr(self._shards[table], method)(*arguments, **options))


def served(
    shards: int, rules: PushRules, storage_size: int | None = None
) -> contextlib.closing[ServedVariables]:
    return contextlib.closing(ServedVariables(shards, rules, storage_size))


class ServedVariables:
    """Variables with shard i at server i, for the number of workers in the rules."""

    def __init__(
        self,
        shards: int,
        rules: PushRules,
        storage_size: int | None = None,
        evict: es.GlobalStepEvict | None = None,
    ) -> None:
        """storage_size: bytes of DRAM of each shard; None: unlimited."""
        self._count = shards
        self._rules = rules
        storage = es.StorageOption(
            es.StorageType.DRAM, storage_size=None if storage_size is None else [storage_size]
        )
        self._option = es.EmbeddingVariableOption(storage, evict_option=evict)
        self.servers = [RowServer("127.0.0.1", rules) for _ in range(shards)]
        self.shards: list[dict[int, LocalShard]] = [{} for _ in range(shards)]  # by table

    @property
    def local(self) -> list[LocalShard]:
        """The shards of the first table."""
        return [shards[0] for shards in self.shards]

    def of_worker(
        self,
        worker: int,
        through: Callable[[ServerAddress], ServerAddress] = lambda address: address,
        silence_s: float = 20.0,
    ) -> es.EmbeddingVariable:
        """Returns the first table as that worker sees it."""
        return self.many_of_worker(worker, 1, through, silence_s)[0]

    def many_of_worker(
        self,
        worker: int,
        tables: int,
        through: Callable[[ServerAddress], ServerAddress] = lambda address: address,
        silence_s: float = 20.0,
    ) -> list[es.EmbeddingVariable]:
        """Returns `tables` tables as that worker sees them. through: maps a server's address to the
        address that the worker connects to.
        """
        links = []
        for order, (server, shards) in enumerate(zip(self.servers, self.shards, strict=True)):
            actor: Any = ActorHere(shards)
            links.append(
                ServerLink(
                    actor,
                    order,
                    through(server.address),
                    worker=worker,
                    silence_s=silence_s,
                    prepares_in_turn=not self._rules.is_synchronous,
                )
            )
        return [self._seen_through(links, table) for table in range(tables)]

    def _seen_through(self, links: list[ServerLink], table: int) -> es.EmbeddingVariable:
        numbers = itertools.count()

        def make_shard(spec: ShardSpec) -> Shard:
            number = next(numbers)
            shards = self.shards[number]
            if table not in shards:
                shards[table] = LocalShard(spec)
                self.servers[number].add(table, shards[table])
            return RemoteShard(links[number], table, spec, close_shared=lambda: None).as_shard()

        name = "var" if table == 0 else f"var{table}"
        request = VariableRequest(name, DIM, self._option, **_RULES)
        return make_variable(request, self._count, make_shard, is_remote=True)

    def close(self) -> None:
        for server in self.servers:
            server.close()
        for shards in self.shards:
            for shard in shards.values():
                shard.close()


@contextlib.contextmanager
def breaking_wires(
    seed: int, at_least: int = 0
) -> Iterator[Callable[[ServerAddress], ServerAddress]]:
    """Yields a function that puts a breaking connection in front of a server's address.

    at_least: number of connections that must break.
    """
    wires: list[_BreakingWire] = []

    def through(address: ServerAddress) -> ServerAddress:
        wires.append(_BreakingWire(address, seed * 100 + len(wires)))
        return wires[-1].address

    yield through
    assert sum(wire.broken for wire in wires) >= at_least, "it was a quiet day"
    for wire in wires:
        wire.close()


class _BreakingWire:
    """Passes bytes on to `target`, and breaks most connections after some of them."""

    def __init__(self, target: ServerAddress, seed: int) -> None:
        self._target = target
        self._random = random.Random(seed)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = ServerAddress("127.0.0.1", self._listener.getsockname()[1], target.token)
        self.broken = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        soon = False
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection((self._target.host, self._target.port))
                # A request is tried four times, so not all of its connections may break at once.
                soon = not soon and self._random.random() < 0.5
                budget = [
                    self._random.randrange(1500) if soon else self._random.randrange(4000, 9000)
                ]
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(
                        target=self._pass_on, args=(source, sink, budget), daemon=True
                    ).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, budget: list[int]) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                allowed = data[: max(budget[0], 0)]
                budget[0] -= len(data)
                sink.sendall(allowed)
                if budget[0] <= 0:
                    self.broken += 1
                    break
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
