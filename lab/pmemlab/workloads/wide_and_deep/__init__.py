"""Wide & Deep, as in DeepRec's modelzoo, with its embeddings in the engine.

Cheng et al., "Wide & Deep Learning for Recommender Systems", 2016. Every categorical column has two
tables: a row of one weight for the linear part, trained by FTRL, and a row of `embedding_dim` for
the deep part, trained by Adagrad. The dense layers are trained by Adagrad, as TensorFlow has it: no
epsilon, no decay. Learning rates and initial values are the modelzoo's.

`tables` makes the variables; `network` is the interface of a network. Two networks have the same
layers: `torch_network`, and `numpy_network` for emulated machines, where importing PyTorch takes
longer than the training.
"""

from typing import Final, Literal, get_args

DenseLibrary = Literal["torch", "numpy"]
DENSE_LIBRARIES: Final[tuple[DenseLibrary, ...]] = get_args(DenseLibrary)
