"""The functions that `model.save` and `model.load_weights` call for the rows. Replace
`save_server_model` and `load_server_model` here to keep rows in another way.

    embed.exb.save_server_model = lambda model, path, include_optimizer=True: (
        embed.persist_server_model(model, path, 0)
    )
    embed.exb.load_server_model = embed.restore_server_model
"""

from embstore.openembedding.checkpoints import (
    load_server_model,
    persist_server_model,
    restore_server_model,
    save_server_model,
    should_persist_server_model,
)

__all__ = [
    "load_server_model",
    "persist_server_model",
    "restore_server_model",
    "save_server_model",
    "should_persist_server_model",
]
