"""PyTorch modules over embedding variables, and the optimizer that trains their rows.

    model = Net(embstore.torch.Embedding(var))
    dense = torch.optim.Adam(embstore.torch.dense_parameters(model))
    rows = embstore.torch.Optimizer(model)  # trains by var's own optimizer and learning_rate
    for ids, labels in batches:
        loss_of(model(ids), labels).backward()
        for optimizer in (dense, rows):
            optimizer.step()
            optimizer.zero_grad()

`Optimizer` treats rows as PyTorch's optimizers treat dense parameters: gradients accumulate over
backward passes and are applied at `step()`. `torch.amp.GradScaler`,
`torch.nn.utils.clip_grad_norm_` and `torch.optim.lr_scheduler` work with it.

Without an `Optimizer` each backward pass trains the rows itself, by one `apply_gradients` for each
variable, however often and through however many modules the variable was used. Rows are trained
when autograd has finished, so a pass that fails trains nothing. `backward` raises the error of a
variable; variables that were trained before it stay trained. A gradient that is inf or nan is such
an error, because the update could not be undone; on a GPU the variable's next call raises it.
Scaled losses are refused and gradients can't be clipped: both need `Optimizer`.

`EmbeddingBagCollection` looks up the bags of several features by one call, with TorchRec's names,
and `EmbeddingCollection` the rows of their sequences.

A module has one parameter, `rows`, which stands for the variable: `Rows` of shape (0, dim). Its
`grad` is the gradient that `Optimizer` has gathered. Its hooks (`register_hook`) get the gradient
of each backward pass. Its dtype is the dtype of looked-up rows. `requires_grad_(False)` freezes the
variable. `state_dict` leaves `rows` out: `embstore.save` saves them. A forward pass has no gradient
in eval mode or while autograd is off.

`from_pretrained` makes a table from PyTorch's weights; `to_torch` makes a `torch.nn.Embedding` from
a table.

`torch.compile` leaves look-ups to Python (a graph break). `copy.deepcopy` of a module raises, since
it would have to copy the variable; `copy.deepcopy(model, {id(var): var})` shares the variable. In
`torch.nn.parallel.DistributedDataParallel` each process has its own variable with the same options;
each trains with the gradients of all processes, so the variables stay equal (see
`embstore.torch.replicas`).
"""

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    from embstore.errors import MissingLibraryError

    raise MissingLibraryError(
        "embstore.torch needs PyTorch, which isn't installed; get it with: pip install torch"
    ) from error

from embstore.torch import scaled_losses as _scaled_losses  # noqa: F401
from embstore.torch import step_checks as _step_checks  # noqa: F401
from embstore.torch.collection import EmbeddingBagCollection, EmbeddingCollection
from embstore.torch.jagged import JaggedTensor, KeyedJaggedTensor, KeyedTensor
from embstore.torch.modules import Embedding, EmbeddingBag
from embstore.torch.optimizer import Optimizer, dense_parameters
from embstore.torch.pretrained import from_pretrained, to_torch
from embstore.torch.rows import Rows

__all__ = [
    "Embedding",
    "EmbeddingBag",
    "EmbeddingBagCollection",
    "EmbeddingCollection",
    "JaggedTensor",
    "KeyedJaggedTensor",
    "KeyedTensor",
    "Optimizer",
    "Rows",
    "dense_parameters",
    "from_pretrained",
    "to_torch",
]
