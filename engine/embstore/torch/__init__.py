"""PyTorch modules over embedding variables, and the optimizer that trains their rows.

    model = Net(embstore.torch.Embedding(var))
    dense = torch.optim.Adam(embstore.torch.dense_parameters(model))
    rows = embstore.torch.Optimizer(model)  # by var's own rule, at var.learning_rate
    for ids, labels in batches:
        loss_of(model(ids), labels).backward()
        for optimizer in (dense, rows):
            optimizer.step()
            optimizer.zero_grad()

`Optimizer` does with rows what PyTorch's do with dense parameters: gradients gather over backward
passes and are applied at `step()`; `torch.amp.GradScaler`, `torch.nn.utils.clip_grad_norm_` and
`torch.optim.lr_scheduler` work with it.

Without one a backward pass trains at once: it is one `apply_gradients` for each variable in it,
however often and through however many modules the variable was used. It comes when autograd is
through, so a pass that fails trains nothing. An error of a variable comes out of `backward`;
variables that were trained before it stay trained. A gradient that is inf or nan is such an error:
nothing could undo it; on a GPU it comes with the variable's next call. Scaled losses are refused
then, and gradients are gone before they could be clipped; both need `Optimizer`.

`EmbeddingBagCollection` has the bags of several features, by TorchRec's names: one look-up for all
tables, where they are on a GPU.

A module has one parameter, `rows`: `Rows`, of shape (0, dim), which stands for the variable. Its
`grad` is what `Optimizer` has gathered, its hooks (`register_hook`) get the gradient of each
backward pass, its dtype is that of the rows that come out, and with
`requires_grad_(False)` the variable is frozen. `state_dict` holds neither it nor any row: those are
saved by `embstore.save`. In eval mode, or where autograd is off, a forward has no gradient.

`from_pretrained` makes a table of PyTorch's weights, and `to_torch` a `torch.nn.Embedding` of a
table.

`torch.compile` leaves look-ups to Python (a graph break). `copy.deepcopy` of a module raises, since
it would have to copy the variable; `copy.deepcopy(model, {id(var): var})` shares it. In
`torch.nn.parallel.DistributedDataParallel` each process has a variable of its own, made alike; all
train with the gradients of all, so that they stay equal (see `embstore.torch.replicas`).
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
from embstore.torch.collection import EmbeddingBagCollection, KeyedJaggedTensor, KeyedTensor
from embstore.torch.modules import Embedding, EmbeddingBag
from embstore.torch.optimizer import Optimizer, dense_parameters
from embstore.torch.pretrained import from_pretrained, to_torch
from embstore.torch.rows import Rows

__all__ = [
    "Embedding",
    "EmbeddingBag",
    "EmbeddingBagCollection",
    "KeyedJaggedTensor",
    "KeyedTensor",
    "Optimizer",
    "Rows",
    "dense_parameters",
    "from_pretrained",
    "to_torch",
]
