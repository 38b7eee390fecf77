"""How many threads the contenders may use."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from threadpoolctl import threadpool_limits


@contextmanager
def limited(threads: int) -> Iterator[None]:
    """The same number for every library; faiss and excise are told with each call."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with threadpool_limits(threads):
            yield
    finally:
        torch.set_num_threads(before)
