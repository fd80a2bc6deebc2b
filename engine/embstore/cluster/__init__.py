"""Variables whose shards lie in other processes, on one computer or on many.

    var = es.get_embedding_variable("items", 16, optimizer=es.optimizers.Adagrad(0.1), shards=4)

Each shard is a Ray actor that holds one partition, by key % shards, with tiers of its own and of
the full storage_size. The variable is like any other: it belongs to the process that made it.

The cluster is the one that the program has called `ray.init()` for, or that RAY_ADDRESS names. With
neither, Ray is started on this computer's loopback address, and ends with the program. Nodes are
started by `python -m embstore.server`. One that has persistent memory says how much, in GiB, by the
resource `pmem`; shards with tiers of it go to such nodes. Paths are those of the shard's node, and
checkpoints need one that all nodes share; NODE_PMEM as a storage_path is the --pmem of each node.

Rows go over sockets between the variable and its shards, at the addresses that Ray has for their
nodes. A connection has to know a token, which Ray hands out; what goes over it is not encrypted.
"""

from embstore.cluster.sharded_variable import PMEM_RESOURCE
from embstore.options import NODE_PMEM

__all__ = ["NODE_PMEM", "PMEM_RESOURCE"]
