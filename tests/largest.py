"""The largest tensor that any operator makes while some code runs: how tests see memory that is quadratic."""

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class LargestTensor(TorchDispatchMode):
    """Remembers the most elements and bytes of one tensor, and the names of all operators."""

    def __init__(self) -> None:
        super().__init__()
        self.elements, self.bytes = 0, 0
        self.names: set[str] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.names.add(func.__name__)
        for tensor in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(tensor, Tensor):
                self.elements = max(self.elements, tensor.numel())
                self.bytes = max(self.bytes, tensor.numel() * tensor.element_size())
        return result
