"""Nearest keys by the PyPI package discrete-key-value-bottleneck-pytorch, with our keys put in."""

from collections.abc import Callable
from importlib.util import find_spec

import numpy as np
import torch

AVAILABLE = find_spec("discrete_key_value_bottleneck_pytorch") is not None
BLOCKS = (4, 16, 64, 256)  # queries a call; 256 is the batch of the paper


def searches(keys: np.ndarray) -> dict[int, Callable[[np.ndarray], np.ndarray]]:
    """A search z (n, c, d) -> codes (n, c, 1) for each number of queries a call."""
    from discrete_key_value_bottleneck_pytorch import DiscreteKeyValueBottleneck

    c, m, d = keys.shape
    module = DiscreteKeyValueBottleneck(
        dim=d, codebook_dim=d, num_memories=m, num_memory_codebooks=c, dim_embed=d, dim_memory=1
    ).eval()
    module.vq._codebook.embed.copy_(torch.from_numpy(keys))

    def search(z: np.ndarray, block: int) -> np.ndarray:
        flat = torch.from_numpy(z.reshape(len(z), c * d))
        with torch.inference_mode():
            parts = [module.vq(flat[None, s : s + block])[1][0] for s in range(0, len(z), block)]
        return torch.cat(parts).numpy()[:, :, None]

    return {block: lambda z, block=block: search(z, block) for block in BLOCKS}
