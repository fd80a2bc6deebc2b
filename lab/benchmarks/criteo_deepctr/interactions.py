"""The layers of DeepFM and xDeepFM on the rows of a sample's features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

__all__ = ["CompressedInteraction", "PairwiseInteraction"]


@keras.saving.register_keras_serializable("pmemlab")
class PairwiseInteraction(keras.layers.Layer):  # type: ignore[misc]
    """rows (batch, features, dim) -> (batch, 1): the sum of the dot products of all pairs of rows.

    It is the second-order term of a factorization machine whose features are all 1, in time linear
    in their number: Σ_{i<j} <v_i, v_j> = ½ Σ_d ((Σ_i v_id)² − Σ_i v_id²). Rendle, "Factorization
    Machines", ICDM 2010, lemma 3.1; as part of DeepFM: Guo et al., "DeepFM: A Factorization-Machine
    based Neural Network for CTR Prediction", IJCAI 2017, equation 2.
    """

    def call(self, rows: Any) -> Any:
        square_of_sum = ops.square(ops.sum(rows, axis=1))
        sum_of_squares = ops.sum(ops.square(rows), axis=1)
        return 0.5 * ops.sum(square_of_sum - sum_of_squares, axis=1, keepdims=True)

    def compute_output_shape(self, input_shape: Any) -> Any:
        return (input_shape[0], 1)


@keras.saving.register_keras_serializable("pmemlab")
class CompressedInteraction(keras.layers.Layer):  # type: ignore[misc]
    """rows (batch, m, dim) -> (batch, sum of `maps`): the CIN of xDeepFM.

    Layer k makes H_k feature maps of the H_(k-1) before it and of the rows X⁰:
    X^k_h = Σ_i Σ_j W^k_hij (X^(k-1)_i ∘ X⁰_j), with ∘ the product by component. The output is each
    map's sum over its dim components. Lian et al., "xDeepFM: Combining Explicit and Implicit
    Feature Interactions for Recommender Systems", KDD 2018, section 3.1, equations 6 and 7;
    without an activation function, as there.

    maps: H_1, H_2, ... All maps of a layer go both into the sums and into the next layer, as in the
    paper; DeepCTR gives half of them to each. For its backward pass a layer holds
    batch · dim · H_(k-1) · m floats.
    """

    def __init__(self, maps: Sequence[int], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.maps = list(maps)

    def build(self, input_shape: Any) -> None:
        features = before = input_shape[1]
        self._kernels = []
        for number, count in enumerate(self.maps, start=1):
            kernel = self.add_weight(
                shape=(before * features, count), initializer="glorot_uniform", name=f"w{number}"
            )
            self._kernels.append(kernel)
            before = count
        self.built = True

    def call(self, rows: Any) -> Any:
        # Components come first, so that a layer is one matrix product for all of them.
        first = before = ops.transpose(rows, (0, 2, 1))  # (batch, dim, maps)
        features, dim = rows.shape[1:]
        sums = []
        for kernel in self._kernels:
            products = ops.expand_dims(before, 3) * ops.expand_dims(first, 2)
            products = ops.reshape(products, (-1, before.shape[2] * features))
            before = ops.reshape(ops.matmul(products, kernel), (-1, dim, kernel.shape[1]))
            sums.append(ops.sum(before, axis=1))
        return ops.concatenate(sums, axis=1)

    def compute_output_shape(self, input_shape: Any) -> Any:
        return (input_shape[0], sum(self.maps))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "maps": self.maps}
