"""The torch door: the bottleneck as a module whose values any torch optimiser trains.

Axes: n examples, f feature, c codebooks, m pairs, d key, k retrieved, v values.

On the CPU codes come from the same kernels as `KeyValueClassifier`'s, bit for bit. On any other device they come from
torch operations in chunks; sums are rounded in another order there, so a near tie may choose another pair.
"""

import copy
import numbers
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from excise.bottleneck import kernels
from excise.bottleneck.keys import draw_keys, initialize_keys
from excise.bottleneck.model import Bottleneck
from excise.bottleneck.projection import draw_projection
from excise.bottleneck.reference import NO_PAIR
from excise.bottleneck.values import initial_values
from excise.errors import InputError, import_extra
from excise.estimator import KeyValueClassifier, check_parameters
from excise.features.arrays import Array, finite_float32
from excise.forgetting.requests import Request, mask_in_force
from excise.forgetting.tradeoff import ForgettingCurve

import_extra("torch", "torch", "excise.torch")

import torch  # noqa: E402
from torch import Tensor, nn  # noqa: E402

__all__ = ["KeyValueBottleneck"]

Seed = int | torch.Generator | None
# What a classifier knows beside its arrays. How its values were trained is not among it: here anyone may train them.
FITTED = ("classes_", "n_features_in_", "feature_names_in_", "history_")
_NO_VALUES = np.zeros((1, 1, 0), np.float32)
FORGETTING = ("activations_", "requests_", "base_mask_", "erased_")


class KeyValueBottleneck(nn.Module):
    """Features in, values out: each codebook returns the mean of the values of the keys nearest to a projection.

    Only `values` is trained; projection and keys are frozen, so an example's code never changes and may be cached:
    `lookup(codes(x))` is `forward(x)`. The paper's decoder is the mean over codebooks, `module(x).mean(-2)`.

    Parameters
    ----------
    features, values : int
        Size f of an input and v of a value; for the paper's decoder v is the number of classes.
    codebooks, pairs, key_dim, top_k : int
        Layout, as in `KeyValueClassifier`.
    value_init : {"zeros", "uniform", "normal"}
        Values before training.
    decoder : {"mean", "sum"}
        How the values retrieved in one codebook are combined.
    seed : int, torch.Generator or None
        Draws projection and values, the same bytes on every device; None follows `torch.manual_seed`.
    device, dtype
        Where the module lives, and what `values` are kept in. Projection and keys are always float32.
    chunk_bytes : int
        Bound of each of the few temporary arrays that coding needs.

    Attributes
    ----------
    values : Parameter (c, m, v)
    projection, keys : float32 buffers (f, c, d) and (c, m, d)
    mask : bool buffer (c, m), True = never selected
    keys_initialized : bool buffer ()
    """

    projection: Tensor
    keys: Tensor
    mask: Tensor
    keys_initialized: Tensor

    def __init__(
        self,
        features: int,
        values: int,
        codebooks: int = 256,
        pairs: int = 4096,
        key_dim: int = 8,
        top_k: int = 1,
        value_init: str = "zeros",
        decoder: str = "mean",
        seed: Seed = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
        chunk_bytes: int = 2**27,
    ):
        super().__init__()
        like = KeyValueClassifier(codebooks, pairs, key_dim, top_k, value_init=value_init, decoder=decoder)
        check_parameters(like.get_params())
        for name, size in (("features", features), ("values", values), ("chunk_bytes", chunk_bytes)):
            _check_whole(name, size, 1)
        if not dtype.is_floating_point:
            raise InputError(f"dtype is {dtype}: values need a floating-point type")
        self.features, self.top_k, self.decoder, self.chunk_bytes = features, top_k, decoder, chunk_bytes
        self._template: KeyValueClassifier | None = None  # where the module came from, and what it forgot
        self._template_keys: int | None = None  # a checksum of the keys that its log and requests are about
        self._prepared: dict[str, Any] = {}
        self._prepared_for: tuple[Tensor, ...] = ()
        self._prepared_state: list[Any] = []
        device = torch.empty(0, device=device).device
        shape = (features, codebooks, key_dim)
        self.register_buffer("projection", torch.zeros(shape, device=device, dtype=torch.float32))
        shape = (codebooks, pairs, key_dim)
        self.register_buffer("keys", torch.zeros(shape, device=device, dtype=torch.float32))
        self.register_buffer("mask", torch.zeros(shape[:2], device=device, dtype=torch.bool))
        self.register_buffer("keys_initialized", torch.zeros((), device=device, dtype=torch.bool))
        self.values = nn.Parameter(torch.zeros(*shape[:2], values, device=device, dtype=dtype))
        if device.type != "meta":
            self._draw(value_init, _numpy_generator(seed))

    @torch.no_grad()
    def _draw(self, value_init: str, generator: np.random.Generator) -> None:
        c, _, d = self.keys.shape
        self.projection.copy_(torch.from_numpy(draw_projection(self.features, c, d, generator)))
        if value_init != "zeros":
            c, m, v = self.values.shape
            self.values.copy_(torch.from_numpy(initial_values((c, m, v), value_init, generator)))

    def extra_repr(self) -> str:
        """The layout, for `print(module)`."""
        c, m, v = self.values.shape
        return (
            f"features={self.features}, values={v}, codebooks={c}, pairs={m}, key_dim={self.keys.shape[2]}, "
            f"top_k={self.top_k}, decoder={self.decoder!r}"
        )

    # -- features -> codes -> values ----------------------------------------------------------------------------------

    def forward(self, x: Tensor) -> Tensor:
        """Values (..., c, v) of features (..., f); the gradient reaches `values` only."""
        return self._lookup(self.codes(x))

    def codes(self, x: Tensor) -> Tensor:
        """Codes (..., c, k) of features (..., f) as int32: nearest pair first, 65,535 where no live pair was left."""
        c = len(self.keys)
        found = self._search(self._rows(x))
        return found.reshape(*x.shape[:-1], c, self.top_k)

    def lookup(self, codes: Tensor) -> Tensor:
        """Values (..., c, v) of codes (..., c, k) of any integer type, such as `codes` returned earlier."""
        c, m, _ = self.values.shape
        if codes.ndim < 2 or codes.shape[-2] != c or codes.dtype.is_floating_point:
            raise InputError(f"the codes are {codes.dtype} {tuple(codes.shape)}: they must be integers (..., {c}, k)")
        slots = codes.long()
        if not slots.is_meta and bool(((slots < 0) | (slots >= m) & (slots != NO_PAIR)).any()):
            raise InputError(f"a code lies outside its codebook: codes are 0 to {m - 1}, or {NO_PAIR} for no pair")
        return self._lookup(slots)

    def _lookup(self, codes: Tensor) -> Tensor:
        c, m, v = self.values.shape
        slots = codes.long().reshape(-1, c, codes.shape[-1])
        live = slots != NO_PAIR
        weights = live.to(self.values.dtype)
        if self.decoder == "mean":
            weights = weights / live.sum(-1, keepdim=True).clamp(min=1)
        first = torch.arange(0, c * m, m, device=slots.device)[:, None]
        rows = torch.where(live, slots, 0) + first  # a slot without a pair weighs nothing, whatever row it names
        bags = nn.functional.embedding_bag(
            rows.flatten(0, 1), self.values.view(c * m, v), mode="sum", per_sample_weights=weights.flatten(0, 1)
        )
        return bags.reshape(*codes.shape[:-1], v)

    def _rows(self, x: Tensor) -> Tensor:
        """Features as rows (n, f) float32."""
        if not isinstance(x, Tensor):
            raise InputError(f"the features are a {type(x).__name__}: pass a torch.Tensor, as torch.as_tensor(x)")
        if x.ndim == 0 or x.shape[-1] != self.features:
            raise InputError(f"the features have shape {tuple(x.shape)}: it must be (..., {self.features})")
        if x.device != self.keys.device:
            raise InputError(f"the features are on {x.device}, the module on {self.keys.device}: move one with .to()")
        return x.detach().reshape(-1, self.features).to(torch.float32)

    def _search(self, rows: Tensor) -> Tensor:
        if rows.device.type == "cpu":
            return self._search_with_kernels(rows)
        if not rows.is_meta and not bool(rows.isfinite().all()):
            raise InputError("the features contain NaN or infinity: drop those rows or fill the missing values first")
        return self._search_in_chunks(rows)

    def _search_with_kernels(self, rows: Tensor) -> Tensor:
        prepared = self._current()
        if "bottleneck" not in prepared:
            prepared["bottleneck"] = self._frozen_arrays(_NO_VALUES)  # codes need none
        memory = max(1.0, self.chunk_bytes / 2**20)
        codes = prepared["bottleneck"].codes(rows.numpy(), threads=torch.get_num_threads(), working_memory=memory)
        return torch.from_numpy(codes.astype(np.int32))

    def _search_in_chunks(self, rows: Tensor) -> Tensor:
        """Codes (n, c, k) by torch operations on any device, in chunks of queries and codebooks.

        Products are written with `out`, which also keeps autocast from rounding them to half precision.
        """
        (c, m, d), n = self.keys.shape, len(rows)
        half_norms, flat = self._half_norms(), self.projection.view(self.features, c * d)
        codes = torch.empty(n, c, self.top_k, dtype=torch.int32, device=rows.device)
        queries = max(1, min(n, self.chunk_bytes // (4 * max(m, c * d))))
        group = max(1, min(c, self.chunk_bytes // (4 * m * queries)))  # codebooks
        z = torch.empty(queries, c * d, dtype=torch.float32, device=rows.device)
        scores = torch.empty(group * queries * m, dtype=torch.float32, device=rows.device)
        with _full_float32():
            for start in range(0, n, queries):
                x = rows[start : start + queries]
                heads = torch.mm(x, flat, out=z[: len(x)]).view(-1, c, d).transpose(0, 1)  # (c, b, d)
                for i in range(0, c, group):
                    norms, keys = half_norms[i : i + group, None], self.keys[i : i + group].mT
                    part = scores[: len(keys) * len(x) * m].view(len(keys), len(x), m)
                    torch.baddbmm(norms, heads[i : i + group], keys, alpha=-1, out=part)
                    codes[start : start + queries, i : i + group] = _lowest(part, self.top_k).transpose(0, 1)
        return codes

    # -- keys and mask ------------------------------------------------------------------------------------------------

    def initialize_keys(
        self, data: Tensor | Array | Iterable[Any], passes: int = 10, batch_size: int = 256, seed: Seed = None
    ) -> "KeyValueBottleneck":
        """Pull the keys to the features in `data` by moving averages, on the CPU and to the same bytes on any device.

        `data` is a tensor (n, f), read in random order, or batches that are read again in every pass, such as a
        DataLoader that shuffles: each a tensor, or a tuple that starts with one. Labels are not used. `passes=0`
        reads nothing and leaves the keys standard normal.
        """
        _check_whole("passes", passes, 0)
        _check_whole("batch_size", batch_size, 1)
        generator = _numpy_generator(seed)
        if passes == 0:
            data = torch.empty(0, self.features)
        if isinstance(data, Tensor | np.ndarray):
            keys = self._keys_from_rows(_as_array(data, self.features), passes, batch_size, generator)
        else:
            keys = self._keys_from_batches(data, passes, batch_size, generator)
        self.keys.copy_(torch.from_numpy(keys))
        self.keys_initialized.fill_(True)
        return self

    def _keys_from_rows(self, rows: Array, passes: int, batch_size: int, generator: np.random.Generator) -> Array:
        if passes and not len(rows):
            raise InputError("there are no features to initialise the keys with: pass at least one row")
        return initialize_keys(
            rows,
            self.projection.cpu().numpy(),
            self.keys.shape[1],
            passes=passes,
            batch_size=batch_size,
            generator=generator,
            threads=torch.get_num_threads(),
        )

    def _keys_from_batches(
        self, batches: Iterable[Any], passes: int, batch_size: int, generator: np.random.Generator
    ) -> Array:
        (c, m, d), threads = self.keys.shape, torch.get_num_threads()
        flat = self.projection.cpu().numpy().reshape(self.features, c * d)
        initializer = kernels.KeyInitializer(draw_keys(c, m, d, generator), int(generator.integers(2**63)), batch_size)
        for i in range(passes):
            examples = 0
            for x in _rebatched((_as_array(batch, self.features) for batch in batches), batch_size):
                initializer.update(kernels.project(x, flat, threads).reshape(len(x), c, d), threads)
                examples += len(x)
            if not examples:
                raise InputError(f"pass {i + 1} gave no examples: pass a tensor, a list or a DataLoader")
        keys: Array = initializer.keys()
        return keys

    def set_mask(self, mask: Tensor | Array | None) -> None:
        """Forbid the pairs where `mask` (c, m) is True, and only those and what was erased; None forbids none."""
        shape = tuple(self.mask.shape)
        if not isinstance(mask, Tensor):
            mask = torch.zeros(shape, dtype=torch.bool) if mask is None else torch.tensor(mask)
        if mask.shape != shape or mask.dtype != torch.bool:
            raise InputError(f"the mask is {mask.dtype} {tuple(mask.shape)}: it must be bool {shape}, True = masked")
        erased = None if self._template is None else self._template.erased_
        if erased is not None and self._template_keys == _checksum(self._frozen_arrays(_NO_VALUES)):
            mask = mask.cpu() | torch.tensor(erased)
        self.mask.copy_(mask)

    # -- to and from the classifier -----------------------------------------------------------------------------------

    @classmethod
    def from_classifier(
        cls, classifier: KeyValueClassifier, device: torch.device | str | None = None
    ) -> "KeyValueBottleneck":
        """A module with a copy of all that a fitted classifier has; `module(x).mean(-2)` are its logits."""
        check_is_fitted(classifier)
        b = classifier.bottleneck_
        (f, c, d), (_, m, v) = b.projection.shape, b.values.shape
        module = cls(f, v, c, m, d, b.top_k, decoder=b.decoder, device="meta").to_empty(device="cpu")
        with torch.no_grad():
            for tensor, array in ((module.projection, b.projection), (module.keys, b.keys), (module.values, b.values)):
                tensor.copy_(torch.tensor(array))
        module.set_mask(b.mask)
        module.keys_initialized.fill_(True)
        template = _unfitted_copy(classifier)
        template.requests_ = tuple(replace(r, before=None, losses=None) for r in classifier.requests_)
        module._template, module._template_keys = template, _checksum(b)
        return module.to(torch.empty(0, device=device).device)

    def to_classifier(self, classes: Any = None, **params: Any) -> KeyValueClassifier:
        """A fitted classifier with a copy of the arrays, for a module whose decoder is the mean over codebooks.

        `classes` are the labels in sorted order, by default those of the classifier that the module came from, else
        0 to v - 1; `params` are further parameters of `KeyValueClassifier`.
        """
        classifier = self._classifier(classes, params)
        classifier.bottleneck_ = copy.deepcopy(classifier.bottleneck_)
        return classifier

    def _classifier(self, classes: Any = None, params: dict[str, Any] | None = None) -> KeyValueClassifier:
        """The classifier; on the CPU its arrays share their memory with the module's."""
        params = {} if params is None else params
        c, m, v = self.values.shape
        layout = {"codebooks": c, "pairs": m, "key_dim": self.keys.shape[2], "top_k": self.top_k}
        for name, value in {**layout, "decoder": self.decoder}.items():
            if params.setdefault(name, value) != value:
                raise InputError(f"{name} is {params[name]!r}: the module was built with {value!r}")
        classifier = KeyValueClassifier() if self._template is None else _unfitted_copy(self._template)
        classifier.set_params(**params)
        known = getattr(classifier, "classes_", np.arange(v))
        classifier.classes_ = self._labels(classes, known)
        classifier.n_features_in_ = self.features
        classifier.history_ = getattr(classifier, "history_", [])
        values = self.values.detach().cpu().to(torch.float32).numpy()
        classifier.bottleneck_ = self._frozen_arrays(values)
        self._recall(classifier, dict(zip(known.tolist(), classifier.classes_.tolist(), strict=True)))
        return classifier

    def _recall(self, classifier: KeyValueClassifier, names: dict[Any, Any]) -> None:
        """What the module was asked to forget, as far as its keys and its mask still say so."""
        mask, erased = classifier.mask, classifier.erased_
        loaded = self._template_keys is not None and self._template_keys != _checksum(classifier.bottleneck_)
        if loaded or (erased is not None and not mask[erased].all()):
            # Other keys were loaded or drawn, or those of before `erase`: what was known is not about them.
            classifier.activations_ = classifier.erased_ = classifier.base_mask_ = None
            classifier.requests_ = ()
        requests = tuple(replace(r, classes=[names[label] for label in r.classes]) for r in classifier.requests_)
        known = mask_in_force(classifier.base_mask_, requests, mask.shape)
        if not np.array_equal(mask, np.zeros(mask.shape, bool) if known is None else known):
            # The mask was set by hand: it is nobody's request, and takes the place of those that masked.
            classifier.base_mask_ = classifier.bottleneck_.mask
            requests = tuple(r for r in requests if r.state != "masked")
        classifier.requests_ = requests

    # -- forgetting ---------------------------------------------------------------------------------------------------

    @property
    def requests(self) -> tuple[Request, ...]:
        """What was asked to be forgotten, and what became of it. Not in the `state_dict`, which has the mask alone."""
        return self._classifier().requests_

    def forget(self, classes: Any = None, x: Any = None, y: Any = None, **options: Any) -> Request:
        """Mask what `classes` (labels, else numbers of values) activate: `KeyValueClassifier.forget` on this mask.

        `x` are features (..., f) of the forget set and `y` their labels (...), arrays or tensors on any device, coded
        on the CPU; a module made from a classifier may leave them out, for its log of activations. by='exact' is
        refused: training values is yours.
        """
        if options.get("by") == "exact":
            raise InputError(
                "by='exact' would train the values again, and a module leaves training to you: draw new values and "
                "train them without the forget set, or use KeyValueClassifier"
            )
        if isinstance(options.get("held_out"), tuple | list) and len(options["held_out"]) == 2:
            held_x, held_y = options["held_out"]
            options["held_out"] = (self._rows_of(held_x), _labels_of(held_y))
        classifier = self._working_classifier()
        request = classifier.forget(_labels_of(classes), self._rows_of(x), _labels_of(y), **options)
        self._follow(classifier)
        return request

    def restore(self, id: int) -> Request:
        """Undo one request that masked: what the module gives is again what the others alone make of its values."""
        classifier = self._working_classifier()
        if any(r.id == id and r.state == "exact" for r in classifier.requests_):
            raise InputError(
                f"request {id} trained the values again, and a module leaves its values to you: restore it in the "
                "classifier, and make the module from that"
            )
        request = classifier.restore(id)
        self._follow(classifier)
        return request

    def erase(self, unused: bool = False) -> list[Request]:
        """Make every request in force final: keys and values under the mask become zeros, in place.

        Drop the optimiser that trained the values as well: its moments remember them.
        """
        classifier = self._working_classifier()
        requests = classifier.erase(unused)
        gone = torch.tensor(classifier.mask, device=self.mask.device)
        with torch.no_grad():  # first: whatever stops the rest, nothing is said to be erased that is not
            for tensor in (self.keys, self.values):
                tensor.masked_fill_(gone[..., None], 0)
        self.values.grad = None
        self._forget_prepared()
        self._follow(classifier)
        return requests

    def budget(self) -> dict[str, Any]:
        """What is left to forget with, as `KeyValueClassifier.budget`."""
        return self._working_classifier().budget()

    def forgetting_curve(self, x: Any, y: Any, classes: Any, **options: Any) -> ForgettingCurve:
        """Accuracy and loss on features x and labels y at every size of a mask, as `KeyValueClassifier` draws it."""
        if options.get("forget_set") is not None:
            options["forget_set"] = self._rows_of(options["forget_set"])
        return self._working_classifier().forgetting_curve(
            self._rows_of(x), _labels_of(y), _labels_of(classes), **options
        )

    def _working_classifier(self) -> KeyValueClassifier:
        classifier: KeyValueClassifier = self._classifier().set_params(n_jobs=torch.get_num_threads())
        classifier.__dict__.pop("feature_names_in_", None)  # tensors have no names
        return classifier

    def _follow(self, classifier: KeyValueClassifier) -> None:
        """Take over what the verbs changed."""
        template = _unfitted_copy(classifier if self._template is None else self._template)
        if self._template is None:
            template.set_params(n_jobs=None)
        for name in FORGETTING:
            setattr(template, name, getattr(classifier, name))
        self._template, self._template_keys = template, _checksum(classifier.bottleneck_)
        self.set_mask(classifier.mask)

    def _rows_of(self, x: Any) -> Array | None:
        return None if x is None else _as_array(x, self.features)

    def _labels(self, classes: Any, default: Array) -> Array:
        labels, v = default if classes is None else np.asarray(classes), self.values.shape[2]
        if v < 2 or labels.shape != (v,) or not np.array_equal(labels, np.unique(labels)):
            raise InputError(f"classes are {labels.tolist()}: they must be {max(2, v)} labels, sorted and distinct")
        return labels

    def _frozen_arrays(self, values: Array) -> Bottleneck:
        """The arrays as the library's own bottleneck; on the CPU all but the mask share memory with the module."""
        self._check_initialized()
        mask = self.mask.cpu().numpy().copy() if bool(self.mask.any()) else None  # requests keep it
        return Bottleneck(
            self.projection.cpu().numpy(), self.keys.cpu().numpy(), values, self.top_k, self.decoder, mask
        )

    # -- what is derived from keys and mask, and when it is stale -----------------------------------------------------

    def _current(self) -> dict[str, Any]:
        """What was prepared for search; emptied when projection, keys or mask were edited, replaced or moved.

        An edit is seen by a tensor's version. The tensors' memory is held on to, so no other can take its address.
        """
        tensors = (self.projection, self.keys, self.mask)
        state = [(t.data_ptr(), object() if t.is_inference() else t._version) for t in tensors]
        if state != self._prepared_state:
            self._prepared, self._prepared_state = {}, state
            self._prepared_for = tuple(t.detach() for t in tensors)
        return self._prepared

    def _half_norms(self) -> Tensor:
        """Half the squared length of every key, infinite where masked: (c, m)."""
        prepared = self._current()
        if "half_norms" not in prepared:
            self._check_initialized()
            norms = torch.stack([keys.square().sum(-1) for keys in self.keys]) / 2
            prepared["half_norms"] = norms.masked_fill(self.mask, torch.inf)
        half_norms: Tensor = prepared["half_norms"]
        return half_norms

    def _check_initialized(self) -> None:
        if not self.keys_initialized.is_meta and not bool(self.keys_initialized):
            raise InputError(
                "the keys were not initialised: call initialize_keys(features) first, with passes=0 to leave them "
                "random, or load a state_dict"
            )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        """Moves all tensors; a change of type leaves projection and keys in float32, or codes would change."""
        frozen = (self.projection, self.keys)

        def move(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            kept = moved.dtype != tensor.dtype and any(tensor is other for other in frozen)
            return tensor.to(moved.device) if kept else moved

        self._forget_prepared()
        return super()._apply(move, recurse)  # type: ignore[no-untyped-call]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_prepared": {}, "_prepared_for": (), "_prepared_state": []}

    def _forget_prepared(self) -> None:
        self._prepared, self._prepared_for, self._prepared_state = {}, (), []


def _lowest(scores: Tensor, k: int) -> Tensor:
    """The k lowest of scores (..., m): the lower pair of equals first, NO_PAIR for infinity. Overwrites the scores."""
    found = []
    for left in reversed(range(k)):  # about as fast as topk, which breaks ties at will, on a GPU
        low, pair = scores.min(dim=-1)
        found.append(torch.where(low < torch.inf, pair, NO_PAIR))
        if left:
            scores.scatter_(-1, pair[..., None], torch.inf)
    return torch.stack(found, dim=-1)


@contextmanager
def _full_float32() -> Iterator[None]:
    """Products in full float32 on CUDA, also where the caller allows TF32; that setting is left as it was."""
    matmul: Any = torch.backends.cuda.matmul
    name, full = ("fp32_precision", "ieee") if hasattr(matmul, "fp32_precision") else ("allow_tf32", False)
    before = getattr(matmul, name)
    if before not in ("tf32", True):
        yield
        return
    setattr(matmul, name, full)
    try:
        yield
    finally:
        setattr(matmul, name, before)


def _as_array(batch: Any, features: int) -> Array:
    """Rows (n, f) of a tensor, an array, or a tuple that starts with one; bfloat16, unknown to numpy, as float32."""
    x = batch[0] if isinstance(batch, tuple | list) else batch
    if isinstance(x, Tensor):
        x = x.detach().cpu()
        x = x.to(torch.float32) if x.dtype == torch.bfloat16 else x
    rows = np.asarray(x)
    if rows.ndim == 0 or rows.shape[-1] != features:
        raise InputError(f"the features have shape {rows.shape}: it must be (..., {features})")
    return rows.reshape(-1, features)


def _labels_of(y: Any) -> Any:
    """Labels (n,), or a single one, of a tensor or whatever else has them."""
    if isinstance(y, Tensor):
        y = y.detach().cpu().numpy()
    if isinstance(y, np.ndarray):
        return y.reshape(-1) if y.ndim else y.item()
    return y


def _rebatched(batches: Iterable[Array], size: int) -> Iterator[Array]:
    """The same rows, in finite float32 and in multiples of `size`, but for the last."""
    held: list[Array] = []
    for batch in batches:
        held.append(finite_float32(batch))
        rows = np.concatenate(held)
        full = len(rows) // size * size
        if full:
            yield rows[:full]
        held = [rows[full:]]
    if held and len(held[0]):
        yield held[0]


def _numpy_generator(seed: Seed) -> np.random.Generator:
    if isinstance(seed, torch.Generator):
        return np.random.default_rng(int(torch.randint(2**62, (), generator=seed, device=seed.device)))
    return np.random.default_rng(int(torch.randint(2**62, (), device="cpu")) if seed is None else seed)


def _checksum(bottleneck: Bottleneck) -> int:
    """Of projection and keys: tells when a log of activations is about others."""
    start = zlib.crc32(np.ascontiguousarray(bottleneck.projection).data)
    return zlib.crc32(np.ascontiguousarray(bottleneck.keys).data, start)


def _unfitted_copy(classifier: KeyValueClassifier) -> KeyValueClassifier:
    """The parameters and labels of a fitted classifier, without its arrays."""
    other: KeyValueClassifier = clone(classifier)
    other.__dict__.update({name: value for name, value in vars(classifier).items() if name in (*FITTED, *FORGETTING)})
    return other


def _check_whole(name: str, value: Any, low: int) -> None:
    if not isinstance(value, numbers.Integral) or isinstance(value, bool) or value < low:
        raise InputError(f"{name} is {value!r}: it must be a whole number of at least {low}")
