"""Options with DeepRec's names, argument order and defaults, where those differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from embstore import options
from embstore.errors import UnsupportedError
from embstore.options import CacheStrategy, StorageType

__all__ = ["EmbeddingVariableOption", "StorageOption"]


class EmbeddingVariableOption(options.EmbeddingVariableOption):
    """See `embstore.EmbeddingVariableOption`.

    ht_type, ht_partition_num: have no effect. ckpt: must be None.
    """

    def __init__(
        self,
        ht_type: str = "",
        ht_partition_num: int = 1000,
        evict_option: options.GlobalStepEvict | options.L2WeightEvict | None = None,
        ckpt: Any = None,
        filter_option: options.CounterFilter | options.CBFFilter | None = None,
        storage_option: options.StorageOption | None = None,
        init_option: options.InitializerOption | None = None,
    ) -> None:
        del ht_type, ht_partition_num
        if ckpt is not None:
            raise UnsupportedError("ckpt must be left out: tf.train.Saver restores rows")
        super().__init__(
            storage_option=options.StorageOption() if storage_option is None else storage_option,
            init_option=options.InitializerOption() if init_option is None else init_option,
            filter_option=filter_option,
            evict_option=evict_option,
        )


class StorageOption(options.StorageOption):
    """See `embstore.StorageOption`; a storage_type of None means DRAM."""

    def __init__(
        self,
        storage_type: StorageType | str | None = None,
        storage_path: options.Path | Sequence[options.Path | None] | None = None,
        storage_size: Sequence[int | None] | None = None,
        cache_strategy: CacheStrategy | str = CacheStrategy.LFU,
        **others: Any,
    ) -> None:
        super().__init__(
            storage_type=StorageType.DRAM if storage_type is None else storage_type,
            storage_path=storage_path,
            storage_size=storage_size,
            cache_strategy=cache_strategy,
            **others,
        )
