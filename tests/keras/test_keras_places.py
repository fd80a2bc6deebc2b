"""A loaded or cloned model creates its tables in the place that its user chooses."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
from exports import assert_same
from keras_models import DIM, adagrad, fit, ids_with_duplicates, keras, over

import embstore as es
from embstore.errors import InvalidArgumentError

pytestmark = [pytest.mark.timeout(120), pytest.mark.any_backend]


@pytest.fixture
def author(tmp_path: Path) -> Any:
    """A trained model with its rows in files, which stays open."""
    storage = es.StorageOption(es.StorageType.DRAM_SSDHASH, tmp_path / "author", [1024, 1 << 20])
    option = es.EmbeddingVariableOption(storage)
    model = over(es.keras.Embedding(None, DIM, name="table", ev_option=option))
    model.compile(adagrad(), "mse")
    fit(model, ids_with_duplicates())
    return model


def table_of(model: Any) -> es.EmbeddingVariable:
    table: es.EmbeddingVariable = model.get_layer("table").variable
    return table


def files_below(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


def test_a_model_that_is_open_can_be_loaded_into_another_folder(
    author: Any, tmp_path: Path
) -> None:
    author.save(tmp_path / "model.keras")
    before = files_below(tmp_path / "author")
    with es.keras.rows_at(tmp_path / "copy"):
        copy = keras.models.load_model(tmp_path / "model.keras")
    assert files_below(tmp_path / "author") == before
    assert files_below(tmp_path / "copy")
    ids = ids_with_duplicates()
    assert fit(copy, ids) == fit(author, ids)
    assert_same(table_of(copy).export(), table_of(author).export())


def test_a_model_can_be_cloned_into_another_storage_type(author: Any) -> None:
    with es.keras.rows_at(es.StorageOption()):
        clone = keras.models.clone_model(author)
    storage = table_of(clone).ev_option.storage_option
    assert storage.storage_type is es.StorageType.DRAM
    assert table_of(clone).total_count()[0] == 0
    assert table_of(author).total_count()[0] > 0


def test_shards_of_a_copied_table_become_partitions_in_this_process(tmp_path: Path) -> None:
    layer = es.keras.Embedding(None, DIM, name="table", shards=3)  # isn't made before it is used
    with es.keras.rows_at(tmp_path):
        copy = es.keras.Embedding.from_config(layer.get_config())
    assert (copy.partition_num, copy.shards) == (3, None)


@pytest.mark.parametrize("kind", [es.keras.Embedding, es.keras.TableConfig])
def test_a_place_that_only_the_file_names_causes_a_warning(kind: Any, tmp_path: Path) -> None:
    storage = es.StorageOption(es.StorageType.DRAM_SSDHASH, tmp_path / "author")
    option = es.EmbeddingVariableOption(storage)
    arguments: dict[str, Any] = {"name": "table", "ev_option": option, "shards": 2}
    if kind is es.keras.Embedding:
        made = kind(None, DIM, **arguments)
    else:
        made = kind(vocabulary_size=None, embedding_dim=DIM, **arguments)
    told = f"table: this model's configuration has its rows in {tmp_path / 'author'}, on 2 servers"
    with pytest.warns(UserWarning, match=told):
        kind.from_config(made.get_config())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with es.keras.rows_at(tmp_path / "mine"):
            copy = kind.from_config(made.get_config())
    assert str(copy.ev_option.storage_option.storage_path) == str(tmp_path / "mine")
    assert copy.shards is None


def test_the_error_about_a_copy_of_an_open_model_names_rows_at(author: Any, tmp_path: Path) -> None:
    author.save(tmp_path / "model.keras")
    with (
        pytest.warns(UserWarning, match="rows_at"),
        pytest.raises(ValueError, match=r"in use .*embstore.keras.rows_at\(folder\)"),
    ):
        keras.models.load_model(tmp_path / "model.keras")
    assert table_of(author).total_count()[0] > 0


def test_tiers_without_files_get_none_in_another_place(tmp_path: Path) -> None:
    storage = es.StorageOption(
        es.StorageType.DRAM_PMEM_SSDHASH, storage_path=[None, None, tmp_path / "author"]
    )
    layer = es.keras.Embedding(None, DIM, ev_option=es.EmbeddingVariableOption(storage))
    with es.keras.rows_at(tmp_path / "mine"):
        copy = es.keras.Embedding.from_config(layer.get_config())
    assert copy.ev_option.storage_option.storage_path == [None, None, str(tmp_path / "mine")]


@pytest.mark.parametrize("place", ["", None, 3])
def test_a_bad_place_is_refused(place: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="place"), es.keras.rows_at(place):
        pass
