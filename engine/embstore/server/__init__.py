"""A node for tables' servers: starts or joins a Ray cluster, and reports a cluster's status.

    python -m embstore.server --bind_ip 10.0.0.1:6379 --pmem /mnt/pmem0 --cache_size 4096
    python -m embstore.server --bind_ip 10.0.0.2 --pmem /mnt/pmem1 --master_endpoint 10.0.0.1:6379
    python -m embstore.server status --master_endpoint 10.0.0.1:6379

A worker sets RAY_ADDRESS=10.0.0.1:6379, which the first command prints, and makes its variables
with `shards=`. With `storage_path=es.cluster.NODE_PMEM` their rows are in the --pmem folders of the
nodes. (A program that calls `ray.init()` itself also sets RAY_AUTH_MODE=token, and for a head at
127.0.0.1 RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0; otherwise Ray looks for it at another address.)

Without --bind_ip everything listens on 127.0.0.1 only. With another address (Ray 2.60), the head's
port, two ports of each node, and one of Ray's for each worker and server are open on every
interface of their computers; only a runtime environment's agent and the rows' sockets keep to the
address. So let a firewall admit only the cluster's own computers. Access to those ports requires
the token in ~/.ray/auth_token, which the head makes and every node and worker needs a copy of; with
RAY_AUTH_MODE=disabled it requires none. The traffic isn't encrypted, unless Ray has TLS.
"""
