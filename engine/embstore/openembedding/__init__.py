"""OpenEmbedding's names, so that programs of its user guide run on embstore's tables:

    import embstore.openembedding as embed

    embed.flags.config = '{"server": {"pmem_pool_root_path": "/mnt/pmem0", "cache_size": 1024}}'

    def save_server_model(model, filepath, include_optimizer=True):
        embed.persist_server_model(model, filepath, 0)

    embed.exb.save_server_model = save_server_model
    embed.exb.load_server_model = embed.restore_server_model

    model = embed.distributed_model(model)
    model.compile(embed.distributed_optimizer(keras.optimizers.Adagrad()), "binary_crossentropy")
    model.load_weights("A")
    model.fit(...)
    model.save("B")

Keras is version 3, on PyTorch or TensorFlow. engine/docs/keras-and-openembedding.md says what each
name does here, and how that differs. The names are those of OpenEmbedding 0.1.2
(github.com/4paradigm/OpenEmbedding), whose user guide is in its README and documents/en/pmem.md.
"""

import embstore.keras  # noqa: F401  (which says what to install where there's no Keras)
from embstore.openembedding import exb
from embstore.openembedding.checkpoints import (
    load_server_model,
    persist_server_model,
    restore_server_model,
    save_server_model,
    should_persist_server_model,
)
from embstore.openembedding.embedding import Embedding
from embstore.openembedding.flags import Flags, flags
from embstore.openembedding.model import (
    Model,
    distributed_model,
    pulling,
    save_as_original_model,
)
from embstore.openembedding.optimizers import (
    SGD,
    Adadelta,
    Adagrad,
    Adam,
    Adamax,
    Ftrl,
    RMSprop,
    distributed_optimizer,
)

__all__ = [
    "SGD",
    "Adadelta",
    "Adagrad",
    "Adam",
    "Adamax",
    "Embedding",
    "Flags",
    "Ftrl",
    "Model",
    "RMSprop",
    "distributed_model",
    "distributed_optimizer",
    "exb",
    "flags",
    "load_server_model",
    "persist_server_model",
    "pulling",
    "restore_server_model",
    "save_as_original_model",
    "save_server_model",
    "should_persist_server_model",
]


_SERVERS_ARE_NODES = (
    "servers are the nodes of a Ray cluster here: start one (python -m embstore.server), and "
    "set flags.master_endpoint to its IP:PORT"
)
_INSTEAD = {
    "Master": _SERVERS_ARE_NODES,
    "Server": _SERVERS_ARE_NODES,
    "Nadam": "rows can't be trained by it; take Adam",
    "Variable": "embstore.get_embedding_variable makes tables without a layer",
}


def __getattr__(name: str) -> str:
    if name == "__version__":
        from importlib.metadata import version

        return version("embstore")
    hint = f": {_INSTEAD[name]}" if name in _INSTEAD else ""
    raise AttributeError(f"module 'embstore.openembedding' has no attribute {name!r}{hint}")
