"""The torch module against the kernels and the classifier, on the CPU, on `meta`, and on CUDA where there is a GPU."""

import copy
import importlib
import io
import pickle
import sys
from contextlib import nullcontext

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from excise import InputError, KeyValueClassifier, MissingExtraError, load
from excise.bottleneck.keys import initialize_keys
from excise.bottleneck.reference import NO_PAIR, PreparedKeys, half_norms, slot_weights

torch = pytest.importorskip("torch")
from excise.torch import KeyValueBottleneck, _full_float32, _lowest  # noqa: E402

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
F, C, M, D, V = 6, 4, 16, 3, 5
LAYOUT = {"codebooks": C, "pairs": M, "key_dim": D}


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Threads only wait for one another at these sizes."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param


def features(n=40, device="cpu", seed=0):
    return torch.randn(n, F, generator=torch.Generator().manual_seed(seed)).to(device)


def ready(device="cpu", **options):
    """A module with keys on 40 random features and normal values."""
    options = {**LAYOUT, "value_init": "normal", "seed": 0, **options}
    return KeyValueBottleneck(F, V, device=device, **options).initialize_keys(features(), 2, 8, seed=1)


def whole_numbers(module, generator):
    """Give the module whole numbers for projection and keys: every sum is then exact, and ties are many."""
    module.projection.copy_(torch.randint(-2, 3, module.projection.shape, generator=generator))
    module.keys.copy_(torch.randint(-3, 4, module.keys.shape, generator=generator))
    return torch.randint(-2, 3, (9, F), generator=generator).float()


def random_mask(share, seed=0):
    return torch.rand(C, M, generator=torch.Generator().manual_seed(seed)) < share


def fitted(**options):
    options = {**LAYOUT, "key_epochs": 2, "epochs": 3, "batch_size": 16, "random_state": 0, **options}
    x = features(60).numpy()
    return KeyValueClassifier(**options).fit(x, np.array(["cat", "dog", "emu"])[np.arange(60) % 3]), x


# -- features -> codes -> values --------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(F,), (7, F), (2, 3, F), (0, F)])
@pytest.mark.parametrize("top_k", [1, 3])
def test_shapes(device, shape, top_k):
    module, x = ready(device, top_k=top_k), torch.ones(shape, device=device)
    assert module.codes(x).shape == (*shape[:-1], C, top_k)
    assert module.codes(x).dtype == torch.int32
    assert module(x).shape == (*shape[:-1], C, V)


@pytest.mark.parametrize("top_k", [1, 3])
def test_on_the_cpu_the_codes_are_those_of_the_kernels(top_k):
    module, x = ready(top_k=top_k), features()
    expected = module.to_classifier().codes(x.numpy())
    np.testing.assert_array_equal(module.codes(x).numpy(), expected)


@given(seed=st.integers(0, 2**32), top_k=st.integers(1, 5), masked=st.sampled_from([0.0, 0.5, 0.9, 1.0]))
@settings(max_examples=20, deadline=None)
def test_chunked_operations_and_kernels_agree_bit_for_bit_where_sums_are_exact(seed, top_k, masked):
    generator = torch.Generator().manual_seed(seed)
    module = ready(top_k=top_k)
    x = whole_numbers(module, generator)
    module.set_mask(torch.rand(C, M, generator=generator) < masked)
    expected = module.codes(x)
    for device in DEVICES:
        module.to(device)
        for module.chunk_bytes in (1, 4 * M * 4, 4 * M * 9 * 3, 2**26):  # one query, a few, three codebooks, all
            assert torch.equal(module._search_in_chunks(x.to(device)).cpu(), expected)


@pytest.mark.parametrize("top_k", [1, 4])
def test_chunked_operations_and_kernels_agree_but_for_near_ties(device, top_k):
    module = ready(top_k=top_k)
    x = features(200, seed=3)
    x64, keys = x.double(), module.keys.double()
    distance = torch.cdist(torch.einsum("nf,fcd->cnd", x64, module.projection.double()), keys)
    kernels, chunks = module.codes(x), module.to(device)._search_in_chunks(x.to(device)).cpu()
    far = [distance.transpose(0, 1).gather(2, codes.long()) for codes in (kernels, chunks)]
    torch.testing.assert_close(*far, rtol=1e-5, atol=1e-5)
    assert (kernels == chunks).float().mean() > 0.99


@pytest.mark.parametrize("decoder", ["mean", "sum"])
@pytest.mark.parametrize("masked", [0.0, 0.9, 1.0])
def test_values_are_the_mean_or_sum_of_the_live_pairs(device, decoder, masked):
    module = ready(top_k=3, decoder=decoder)
    module.set_mask(random_mask(masked))
    x, values = features(), module.values.detach().numpy()
    codes = module.to_classifier().codes(x.numpy())
    expected = np.zeros((len(x), C, V), np.float32)
    for i in range(C):
        weights = slot_weights(codes[:, i], decoder)
        for slot in range(3):
            live = codes[:, i, slot] != NO_PAIR
            rows = values[i, np.where(live, codes[:, i, slot], 0)]
            expected[:, i] += np.where(live[:, None], rows * weights[:, None], 0)
    module.to(device)
    got = module.lookup(torch.tensor(codes.astype(np.int32), device=device)).detach().cpu().numpy()
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    if masked == 1:
        assert (got == 0).all()


def test_lookup_of_cached_codes_is_forward(device):
    module, x = ready(device, top_k=2), features(device=device)
    codes = module.codes(x)
    for kind in (torch.int32, torch.int64, torch.uint16):
        assert torch.equal(module.lookup(codes.to(kind)), module(x))


def test_the_classifiers_own_codes_can_be_looked_up():
    classifier, x = fitted(top_k=2)
    module = KeyValueBottleneck.from_classifier(classifier)
    assert torch.equal(module.lookup(torch.from_numpy(classifier.codes(x))), module(torch.from_numpy(x)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_types_of_features_are_cast(device, dtype):
    module, x = ready(device), features(device=device).to(dtype)
    assert torch.equal(module(x), module(x.float()))


def test_gradients_reach_values_only(device):
    module, x = ready(device, top_k=2), features(device=device).requires_grad_()
    module(x).mean(-2).square().sum().backward()
    assert x.grad is None
    assert [name for name, p in module.named_parameters()] == ["values"]
    touched = torch.zeros(C, M, dtype=torch.bool)
    codes = module.codes(x).cpu().long()
    for i in range(C):
        touched[i, codes[:, i].reshape(-1)] = True
    assert torch.equal((module.values.grad != 0).any(-1).cpu(), touched)


def test_gradient_of_lookup_by_finite_differences():
    module = ready(top_k=3, dtype=torch.float64, decoder="mean")
    module.set_mask(random_mask(0.9))
    codes = module.codes(features(3))

    def values_to_output(values):
        return torch.func.functional_call(module, {"values": values}, (features(3),))

    assert torch.equal(module.lookup(codes), values_to_output(module.values))
    assert torch.autograd.gradcheck(values_to_output, module.values, fast_mode=True)


def test_no_grad_and_inference_mode(device):
    module, x = ready(device), features(device=device)
    expected = module(x).detach()
    with torch.no_grad():
        assert torch.equal(module(x), expected)
    with torch.inference_mode():
        assert torch.equal(module(x), expected)
        module.mask.fill_(True)
        assert (module(x) == 0).all()
        module.set_mask(None)
    assert torch.equal(module(x), expected)


def test_buffers_made_in_inference_mode_are_never_stale():
    with torch.inference_mode():
        module, x = ready(), features()
        expected = module(x)
        module.set_mask(random_mask(1.0))
        assert (module(x) == 0).all()
        module.set_mask(None)
        assert torch.equal(module(x), expected)


@pytest.mark.parametrize("chunks", [False, True])
def test_autocast_changes_no_code(device, chunks):
    module, x = ready(device), features(200, device)
    search = module._search_in_chunks if chunks else module.codes
    expected = search(x)
    with torch.autocast(device, dtype=torch.bfloat16):
        assert torch.equal(search(x), expected)


@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW", "RMSprop"])
def test_in_a_sequence_with_any_optimiser(device, kind):
    module = ready(device, top_k=2)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    network = torch.nn.Sequential(module, torch.nn.Flatten(), torch.nn.Linear(C * V, 3, device=device))
    optimiser = getattr(torch.optim, kind)(network.parameters(), lr=0.01)
    x, y, losses = features(device=device), torch.arange(40, device=device) % 3, []
    for _ in range(8):
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(network(x), y)
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    changed = [name for name, tensor in module.state_dict().items() if not torch.equal(tensor, before[name])]
    assert changed == ["values"]


# -- exact on a device ------------------------------------------------------------------------------------------------


def test_lowest_breaks_ties_toward_the_lower_pair(device):
    scores = torch.tensor([[3.0, 1, 1, 2, 1], [torch.inf, 5, torch.inf, torch.inf, 5]], device=device)
    assert _lowest(scores, 4).tolist() == [[1, 2, 4, 3], [1, 4, NO_PAIR, NO_PAIR]]


def allows_tf32():
    matmul = torch.backends.cuda.matmul
    return matmul.fp32_precision == "tf32" if hasattr(matmul, "fp32_precision") else matmul.allow_tf32


@pytest.mark.parametrize("setting", ["highest", "high", "medium"])
def test_full_float32_leaves_the_callers_setting(setting):
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision(setting)
        with _full_float32():
            assert allows_tf32() is False
        assert allows_tf32() is (setting != "highest")
        assert torch.get_float32_matmul_precision() == setting
    finally:
        torch.set_float32_matmul_precision(before)


def test_tf32_changes_no_code(device):
    """At sizes where a GPU would use TF32, which takes another pair once in a thousand."""
    module = KeyValueBottleneck(64, 2, codebooks=8, pairs=256, seed=0, device=device).initialize_keys(
        [], passes=0, seed=0
    )
    x = torch.randn(512, 64, generator=torch.Generator().manual_seed(0)).to(device)
    expected = module._search_in_chunks(x)
    torch.set_float32_matmul_precision("high")
    try:
        assert torch.equal(module._search_in_chunks(x), expected)
    finally:
        torch.set_float32_matmul_precision("highest")


def test_memory_is_bounded_by_chunks(device):
    if device == "cpu":
        pytest.skip("allocations are counted on CUDA only")
    module = KeyValueBottleneck(64, 2, codebooks=32, pairs=2048, device=device, chunk_bytes=2**20)
    module.initialize_keys(torch.empty(0, 64), passes=0)
    x = torch.randn(3000, 64, device=device)
    module(x[:1])
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    module.codes(x)
    assert torch.cuda.max_memory_allocated() - before < 4 * 3000 * 32 + 2**20 * 8  # the codes, and a few chunks
    # all scores at once would be 786 MB


# -- keys -------------------------------------------------------------------------------------------------------------


def reference_keys(module, x, passes=2, batch_size=8, seed=1):
    projection = module.projection.cpu().numpy()
    return initialize_keys(
        x.cpu().numpy(), projection, M, passes=passes, batch_size=batch_size, generator=np.random.default_rng(seed)
    )


def test_keys_of_a_tensor_are_the_librarys_on_every_device(device):
    module = ready(device)
    np.testing.assert_array_equal(module.keys.cpu().numpy(), reference_keys(module, features()))
    on_device = copy.deepcopy(module).initialize_keys(features(device=device), 2, 8, seed=1)
    assert torch.equal(on_device.keys, module.keys)


@pytest.mark.parametrize("labelled", [False, True])
@pytest.mark.parametrize("size", [1, 5, 8, 40, 100])
def test_keys_of_batches_of_any_size_are_those_of_their_rows(size, labelled):
    """Batches that come in the order which a tensor would be read in give the tensor's bytes."""
    module, x = ready(), features()
    generator = np.random.default_rng(1)
    generator.standard_normal((C, M, D), dtype=np.float32)
    generator.integers(2**63)
    orders = [generator.permutation(len(x)) for _ in range(2)]

    class Loader:
        def __init__(self):
            self.passes = iter(orders)

        def __iter__(self):
            for part in x[next(self.passes)].split(size):
                yield (part, torch.zeros(len(part))) if labelled else part

    other = ready(value_init="zeros").initialize_keys(Loader(), 2, 8, seed=1)
    assert torch.equal(other.keys, module.keys)


def test_a_data_loader_is_read_again_in_every_pass():
    dataset = torch.utils.data.TensorDataset(features(), torch.zeros(40))
    loader = torch.utils.data.DataLoader(dataset, batch_size=16)
    one, three = (ready().initialize_keys(loader, passes, 16, seed=0) for passes in (1, 3))
    assert not torch.equal(one.keys, three.keys)
    assert torch.equal(three.keys, ready().initialize_keys([features()], 3, 16, seed=0).keys)


@pytest.mark.parametrize("kind", [torch.float64, torch.float16, torch.bfloat16])
def test_keys_from_features_of_another_type(kind):
    x = features().to(kind)
    assert torch.equal(ready().initialize_keys(x, 1, 8, 0).keys, ready().initialize_keys(x.float(), 1, 8, 0).keys)


def test_no_passes_leave_the_keys_standard_normal():
    module = KeyValueBottleneck(F, V, **LAYOUT).initialize_keys([], passes=0, seed=4)
    expected = np.random.default_rng(4).standard_normal((C, M, D), dtype=np.float32)
    np.testing.assert_array_equal(module.keys.numpy(), expected)
    assert module(features()).shape == (40, C, V)


def test_seeds():
    def drawn(**options):
        return KeyValueBottleneck(F, V, **LAYOUT, value_init="uniform", **options).state_dict()

    def same(a, b):
        return all(torch.equal(a[name], b[name]) for name in a)

    torch.manual_seed(3)
    first = drawn()
    torch.manual_seed(3)
    assert same(first, drawn())
    assert not same(first, drawn())
    assert same(drawn(seed=5), drawn(seed=5))
    assert same(*(drawn(seed=torch.Generator().manual_seed(5)) for _ in range(2)))
    keys = [ready().initialize_keys(features(), 1, 8, torch.Generator().manual_seed(5)).keys for _ in range(2)]
    assert torch.equal(*keys)


def test_projected_columns_have_unit_length():
    torch.testing.assert_close(ready().projection.norm(dim=0), torch.ones(C, D))


# -- mask -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunks", [False, True])
def test_a_masked_key_is_never_selected_and_an_empty_mask_changes_no_bit(device, chunks):
    module, x = ready(device, top_k=2), features(device=device)
    search = module._search_in_chunks if chunks else module.codes
    before = search(x)
    module.set_mask(random_mask(0.0))
    assert torch.equal(search(x), before)
    mask = random_mask(0.5).to(device)
    module.set_mask(mask)
    codes = search(x).long()
    assert not any(mask[i, codes[:, i].reshape(-1)].any() for i in range(C))
    untouched = ~torch.stack([mask[i, before[:, i].long()].any(-1) for i in range(C)], 1)
    assert torch.equal(codes[untouched], before[untouched].long())
    module.set_mask(None)
    assert torch.equal(search(x), before)


@pytest.mark.parametrize("kind", [torch.Tensor, np.ndarray])
def test_masks_of_torch_and_of_numpy(kind):
    module, mask = ready(), random_mask(0.5)
    frozen = mask.numpy().copy()
    frozen.flags.writeable = False
    module.set_mask(mask if kind is torch.Tensor else frozen)
    assert torch.equal(module.mask, mask)


# -- nothing stale ----------------------------------------------------------------------------------------------------


def by_edit(module, keys, mask):
    module.keys.copy_(keys)
    module.mask.copy_(mask)


def by_assignment(module, keys, mask):
    module.keys, module.mask = keys.clone(), mask.clone()


def by_data(module, keys, mask):
    module.keys.data, module.mask.data = keys.clone(), mask.clone()


def by_state_dict(module, keys, mask):
    module.load_state_dict({**module.state_dict(), "keys": keys, "mask": mask})


def by_assigned_state_dict(module, keys, mask):
    module.load_state_dict({**module.state_dict(), "keys": keys.clone(), "mask": mask.clone()}, assign=True)


@pytest.mark.parametrize("chunks", [False, True])
@pytest.mark.parametrize("change", [by_edit, by_assignment, by_data, by_state_dict, by_assigned_state_dict])
def test_a_change_of_keys_or_mask_is_seen(device, change, chunks):
    module, x = ready(device), features(device=device)
    search = module._search_in_chunks if chunks else module.codes
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        keys, mask = torch.randn(C, M, D, generator=generator).to(device), random_mask(0.3, seed).to(device)
        change(module, keys, mask)
        fresh = copy.deepcopy(module)
        expected = fresh._search_in_chunks(x) if chunks else fresh.codes(x)
        assert torch.equal(search(x), expected)
        if device == "cpu" and not chunks:
            z = torch.from_numpy(np.einsum("nf,fcd->ncd", x.numpy(), module.projection.numpy()))
            oracle = PreparedKeys(keys.numpy(), ~mask.numpy()).nearest(z.numpy(), 1)
            assert (search(x).numpy() == oracle).mean() > 0.99


def test_half_norms_follow_the_reference(device):
    module = ready(device)
    np.testing.assert_allclose(module._half_norms().cpu(), half_norms(module.keys.cpu().numpy()), rtol=1e-6)


# -- state ------------------------------------------------------------------------------------------------------------


def test_state_dict_round_trip(device):
    module, x = ready(device, top_k=2), features(device=device)
    module.set_mask(random_mask(0.3))
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    other = KeyValueBottleneck(F, V, **LAYOUT, top_k=2, device=device, seed=9)
    other.load_state_dict(torch.load(file, weights_only=True), strict=True)
    assert sorted(other.state_dict()) == ["keys", "keys_initialized", "mask", "projection", "values"]
    assert all(torch.equal(tensor, module.state_dict()[name]) for name, tensor in other.state_dict().items())
    assert torch.equal(other(x), module(x))


def test_deepcopy_and_pickle(device):
    module, x = ready(device), features(device=device)
    expected = module(x)
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(other(x), expected)
        other.set_mask(random_mask(1.0))
        assert (other(x) == 0).all()
        assert torch.equal(module(x), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_a_change_of_type_leaves_the_codes(device, dtype):
    module, x = ready(device, top_k=3), features(device=device)
    codes, keys, expected = module.codes(x), module.keys.clone(), module(x).detach()
    module.to(dtype)
    assert module.values.dtype == dtype
    assert module.keys.dtype == module.projection.dtype == torch.float32
    assert torch.equal(module.keys, keys)
    assert torch.equal(module.codes(x.to(torch.float32)), codes)
    out = module(x)
    assert out.dtype == dtype
    torch.testing.assert_close(out.float(), expected, rtol=2e-2, atol=2e-2)
    out.sum().backward()
    assert module.values.grad.dtype == dtype


def test_there_and_back_between_devices(device):
    module, x = ready(), features()
    expected = module.codes(x)
    assert torch.equal(module.to(device).to("cpu").codes(x), expected)


@pytest.mark.parametrize("by_context", [False, True])
def test_meta_has_shapes_and_becomes_real(by_context):
    context = torch.device("meta") if by_context else nullcontext()
    with context:
        module = KeyValueBottleneck(F, V, **LAYOUT, top_k=2, device=None if by_context else "meta")
    x = torch.empty(2, 9, F, device="meta")
    assert all(tensor.is_meta for tensor in module.state_dict().values())
    assert module.codes(x).shape == (2, 9, C, 2)
    assert module(x).shape == (2, 9, C, V)
    assert module(x).is_meta
    real = ready(top_k=2)
    module = module.to_empty(device="cpu")
    module.load_state_dict(real.state_dict(), strict=True)
    assert torch.equal(module(features()), real(features()))


def test_meta_at_the_papers_size_needs_no_memory():
    module = KeyValueBottleneck(1024, 1000, device="meta")
    assert module(torch.empty(1000, 1024, device="meta")).shape == (1000, 256, 1000)


def test_repr_names_the_layout():
    assert "features=6, values=5, codebooks=4, pairs=16, key_dim=3, top_k=1, decoder='mean'" in repr(ready())


# -- to and from the classifier ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("masked", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("options", [{}, {"top_k": 3, "decoder": "sum"}, {"value_init": "uniform", "solver": "sgd"}])
def test_classifier_to_module_and_back_loses_nothing(device, options, masked):
    classifier, x = fitted(**options)
    classifier = classifier.with_mask(random_mask(masked).numpy() if masked else None)
    module = KeyValueBottleneck.from_classifier(classifier, device=device)
    back = module.to_classifier()
    np.testing.assert_array_equal(back.logits(x), classifier.logits(x))
    np.testing.assert_array_equal(back.predict(x), classifier.predict(x))
    assert {k: v for k, v in back.get_params().items() if v == v} == classifier.get_params()
    assert back.history_ == classifier.history_
    logits = module.to("cpu")(torch.from_numpy(x)).mean(-2).detach().numpy()
    np.testing.assert_allclose(logits, classifier.logits(x), rtol=1e-5, atol=1e-6)


def test_module_to_classifier_and_back_loses_nothing(device):
    module = ready(device, top_k=2)
    module.set_mask(random_mask(0.4))
    other = KeyValueBottleneck.from_classifier(module.to_classifier(list("abcde"), epochs=3), device)
    assert all(torch.equal(tensor, module.state_dict()[name]) for name, tensor in other.state_dict().items())
    assert other.to_classifier().classes_.tolist() == list("abcde")
    assert other.to_classifier().epochs == 3


def test_neither_shares_memory_with_the_other():
    classifier, x = fitted()
    expected = classifier.logits(x)
    module = KeyValueBottleneck.from_classifier(classifier)
    other = module.to_classifier()
    for tensor in module.state_dict().values():
        tensor.zero_()
    np.testing.assert_array_equal(classifier.logits(x), expected)
    np.testing.assert_array_equal(other.logits(x), expected)


def test_the_classifier_of_a_module_trains_on(device):
    classifier = ready(device).to_classifier(classes=list("abcde"), epochs=2, batch_size=8)
    x, y = features().numpy(), np.array(list("abcde"))[np.arange(40) % 5]
    before = classifier.score(x, y)
    for _ in range(5):
        classifier.partial_fit(x, y)
    assert classifier.score(x, y) > before


def test_a_module_is_saved_as_its_classifier(device, tmp_path):
    module = ready(device, top_k=2)
    module.set_mask(random_mask(0.4))
    module.to_classifier(classes=list("abcde")).save(tmp_path / "model.safetensors")
    other = KeyValueBottleneck.from_classifier(load(tmp_path / "model.safetensors"), device)
    assert all(torch.equal(tensor, module.state_dict()[name]) for name, tensor in other.state_dict().items())


@pytest.mark.parametrize("chunks", [False, True])
def test_another_default_type_changes_nothing(device, chunks):
    module, x = ready(device), features(device=device)
    search = module._search_in_chunks if chunks else module.codes
    expected = search(x)
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.equal(search(x), expected)
        assert torch.equal(ready(device).values, module.values)
    finally:
        torch.set_default_dtype(torch.float32)


def test_an_untrained_module_gives_labels_from_zero():
    assert ready().to_classifier().classes_.tolist() == list(range(V))


# -- forgetting -------------------------------------------------------------------------------------------------------


SET = [{}, {"by": "examples", "random_state": 0}, {"pairs": 9}, {"held_out": True, "retain_budget": 1}]


def twins(device, **options):
    """A classifier, a module made from it, and features and labels that both may read."""
    y = np.arange(60) % 3
    x = features(60).numpy() + 4 * features(3, seed=5).numpy()[y]
    y = np.array(["cat", "dog", "emu"])[y]
    options = {**LAYOUT, "pairs": 48, "key_epochs": 2, "epochs": 3, "batch_size": 16, "random_state": 0, **options}
    classifier = KeyValueClassifier(**options).fit(x, y)
    return classifier, KeyValueBottleneck.from_classifier(classifier, device), x, y


def plain(request):
    return {**request.to_dict(), "milliseconds": None}


@pytest.mark.parametrize("from_features", [False, True])
@pytest.mark.parametrize("options", SET)
def test_a_module_masks_what_its_classifier_would(device, options, from_features):
    classifier, module, x, y = twins(device, top_k=2)
    if options.get("by") == "examples" and not from_features:  # a module holds no training codes
        with pytest.raises(InputError, match=r"^by='examples' needs examples: pass the forget set as X"):
            module.forget("dog", **options)
        assert not module.mask.any()
        return
    dogs = x[y == "dog"] if from_features else None
    tensor = None if dogs is None else torch.tensor(dogs, device=device)
    held = options.get("held_out") and {"held_out": (torch.tensor(x, device=device), y)}
    expected = classifier.forget("dog", dogs, **options | ({"held_out": (x, y)} if held else {}))
    request = module.forget("dog", tensor, **options | (held or {}))
    np.testing.assert_array_equal(module.mask.cpu().numpy(), classifier.mask)
    assert plain(request) == plain(expected)
    assert [plain(r) for r in module.requests] == [plain(r) for r in classifier.requests_]
    assert module.budget() == classifier.budget()
    assert module.mask.any()


def test_labels_and_leading_axes_are_those_of_any_tensor(device):
    classifier = ready(device).to_classifier()
    x, y = features(40), torch.arange(40) % V
    classifier.forget([1, 3], x.numpy(), y.numpy(), pairs=12)
    module = ready(device)
    request = module.forget(torch.tensor([1, 3]), x.reshape(4, 10, F).to(device), y.reshape(4, 10).to(device), pairs=12)
    np.testing.assert_array_equal(module.mask.cpu().numpy(), classifier.mask)
    assert request.classes == [1, 3]
    assert module.forget(torch.tensor(4), x[y == 4], pairs=2).classes == [4]


def test_restore_gives_back_every_bit(device):
    _, module, x, _ = twins(device)
    x = torch.tensor(x, device=device)
    expected = [module(x).detach()]
    for label in ("cat", "dog"):
        module.forget(label, pairs=9)
        expected.append(module(x).detach())
    assert not torch.equal(expected[0], expected[1])
    module.restore(2)
    assert torch.equal(module(x), expected[1])
    module.restore(1)
    assert torch.equal(module(x), expected[0])
    assert not module.mask.any()
    assert [request.state for request in module.requests] == ["restored", "restored"]


def test_a_mask_set_by_hand_takes_the_place_of_the_requests(device):
    module = twins(device)[1]
    module.forget("cat", pairs=9)
    by_hand = torch.rand(C, 48, generator=torch.Generator().manual_seed(0)) < 0.2
    module.set_mask(by_hand)
    assert module.requests == ()
    request = module.forget("dog", pairs=5)
    assert torch.equal(module.mask.cpu() & by_hand, by_hand)
    assert request.masked == 5 == int((module.mask.cpu() & ~by_hand).sum())
    classifier = module.to_classifier()
    module.restore(request.id)
    assert torch.equal(module.mask.cpu(), by_hand)
    np.testing.assert_array_equal(classifier.mask.sum(), by_hand.sum() + 5)  # it shares nothing with the module
    classifier.restore(request.id)
    np.testing.assert_array_equal(classifier.mask, by_hand.numpy())


def test_erasing_zeroes_in_place_and_changes_no_prediction(device):
    _, module, x, _ = twins(device)
    x, parameter = torch.tensor(x, device=device), module.values
    module.forget("cat", pairs=20)
    expected, mask = module(x).detach(), module.mask.clone()
    assert module.keys[mask].any()
    (request,) = module.erase()
    assert request.state == "erased"
    assert module.values is parameter
    assert not module.keys[mask].any()
    assert not module.values[mask].any()
    assert module.values[~mask].any()
    assert torch.equal(module(x), expected)
    assert len(module.to_classifier().activations_.of(0)[0]) == 0
    module.set_mask(None)
    assert torch.equal(module.mask, mask)  # what is gone stays masked
    with pytest.raises(InputError, match="request 1 was erased"):
        module.restore(1)


def test_an_erased_module_is_saved_as_its_classifier(device, tmp_path):
    module = twins(device)[1]
    module.forget("cat", pairs=20)
    module.erase()
    module.forget("dog", pairs=5)
    module.to_classifier().save(tmp_path / "model")
    other = KeyValueBottleneck.from_classifier(load(tmp_path / "model"), device)
    assert all(torch.equal(tensor, module.state_dict()[name]) for name, tensor in other.state_dict().items())
    assert [plain(r) for r in other.requests] == [plain(r) for r in module.requests]


def test_the_state_dict_has_the_mask_alone(device):
    _, module, x, _ = twins(device)
    x = torch.tensor(x, device=device)
    module.forget("cat", pairs=9)
    assert sorted(module.state_dict()) == ["keys", "keys_initialized", "mask", "projection", "values"]
    other = KeyValueBottleneck(F, 3, **LAYOUT | {"pairs": 48}, device=device)
    other.load_state_dict(module.state_dict())
    assert torch.equal(other(x), module(x))
    assert other.requests == ()
    request = other.forget(1, x[:3], pairs=4)
    other.restore(request.id)
    assert torch.equal(other(x), module(x))


def test_what_was_known_is_not_about_other_keys(device):
    module = twins(device)[1]
    before = copy.deepcopy(module.state_dict())
    module.forget("cat", pairs=9)
    other = twins(device, random_state=1)[1]
    module.load_state_dict(other.state_dict())
    assert module.requests == ()
    with pytest.raises(InputError, match="this model has no log of activations"):
        module.forget("cat")
    module.load_state_dict(before)
    module.forget("cat", pairs=9)
    module.erase()
    module.load_state_dict(before)  # of a time when nothing was erased
    module.set_mask(None)
    assert not module.mask.any()
    assert module.requests == ()
    assert module.to_classifier().erased_ is None


def test_values_trained_after_forgetting_stay(device):
    _, module, x, _ = twins(device)
    x = torch.tensor(x, device=device)
    request = module.forget("cat", pairs=9)
    with torch.no_grad():
        module.values.add_(1)
    module.restore(request.id)
    fresh = twins(device)[1]
    torch.testing.assert_close(module(x), fresh(x) + 1)


def test_a_module_without_a_classifier_forgets_by_number(device):
    module, x = ready(device), features(device=device)
    request = module.forget(0, x[:8], pairs=6)
    assert (request.classes, request.masked) == ([0], 6)
    with pytest.raises(InputError, match="this model has no log of activations"):
        module.forget(1)
    with pytest.raises(InputError, match="the model knows no class 'cat'"):
        module.forget("cat", x)
    classifier = module.to_classifier(classes=list("abcde"))
    assert classifier.requests_[0].classes == ["a"]
    assert classifier.n_jobs is None
    classifier.restore(1)
    assert not classifier.mask.any()


def test_forgetting_leaves_the_classifiers_parameters(device):
    classifier, module, _, _ = twins(device)
    module.forget("cat", pairs=9)
    assert module.to_classifier().get_params() == classifier.get_params()


@pytest.mark.filterwarnings("ignore:.*of the retained classes:UserWarning")
def test_names_of_features_are_kept_and_not_asked_for(device):
    pandas = pytest.importorskip("pandas")
    x = features(60)
    frame = pandas.DataFrame(x.numpy(), columns=list("uvwxyz"))
    classifier = KeyValueClassifier(**LAYOUT, key_epochs=1, epochs=2, batch_size=16).fit(frame, np.arange(60) % 3)
    module = KeyValueBottleneck.from_classifier(classifier, device)
    module.forget(1, x[:9].to(device), pairs=3)  # and no warning
    assert module.to_classifier().feature_names_in_.tolist() == list("uvwxyz")


def test_the_curve_is_the_classifiers(device):
    classifier, module, x, y = twins(device)
    dogs = x[y == "dog"]
    for options in ({}, {"by": "examples", "random_state": 0, "forget_set": dogs}, {"forget_set": dogs}):
        expected = classifier.forgetting_curve(x, y, "dog", **options)
        options = {k: torch.tensor(v, device=device) if k == "forget_set" else v for k, v in options.items()}
        curve = module.forgetting_curve(torch.tensor(x, device=device), y, "dog", **options)
        assert curve.to_dict() == expected.to_dict()


def test_copies_forget_apart(device):
    _, module, x, _ = twins(device)
    x = torch.tensor(x, device=device)
    expected = module(x).detach()
    module.forget("cat", pairs=9)
    masked = module(x).detach()
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(other(x), masked)
        assert [plain(r) for r in other.requests] == [plain(r) for r in module.requests]
        other.restore(1)
        assert torch.equal(other(x), expected)
        assert torch.equal(module(x), masked)


def test_exact_forgetting_is_the_classifiers(device):
    classifier, module, x, y = twins(device)
    with pytest.raises(InputError, match="by='exact' would train the values again, and a module leaves training to"):
        module.forget("cat", x, y, by="exact")
    classifier.forget("cat", by="exact")
    module = KeyValueBottleneck.from_classifier(classifier, device)
    assert module.requests[0].state == "exact"
    with pytest.raises(InputError, match="request 1 trained the values again, and a module leaves its values to you"):
        module.restore(1)
    with torch.no_grad():
        module.values.add_(1)
    with pytest.raises(InputError, match="request 1 cannot be restored: the values were trained on since"):
        module.to_classifier().restore(1)


def test_a_refused_request_changes_nothing(device):
    module = twins(device)[1]
    module.forget("cat", pairs=9)
    mask = module.mask.clone()
    for use in (
        lambda: module.forget("cat"),
        lambda: module.forget("dog", pairs=9999),
        lambda: module.forget("dog", torch.ones(4, F + 1)),
        lambda: module.forget(["dog", "emu"]),
        lambda: module.restore(7),
    ):
        with pytest.raises(InputError):
            use()
        assert torch.equal(module.mask, mask)
        assert len(module.requests) == 1


# -- errors that teach ------------------------------------------------------------------------------------------------


def test_keys_that_were_not_initialised(device):
    module = KeyValueBottleneck(F, V, **LAYOUT, device=device)
    for use in (lambda: module(features(device=device)), module.to_classifier):
        with pytest.raises(InputError, match=r"the keys were not initialised: call initialize_keys\(features\) first"):
            use()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_features_that_are_not_finite(device, bad):
    module, x = ready(device), features(device=device)
    x[3, 2] = bad
    with pytest.raises(InputError, match=r"NaN|infinity"):
        module(x)
    with pytest.raises(InputError, match=r"NaN|infinity"):
        module.initialize_keys(x)
    with pytest.raises(InputError, match=r"NaN|infinity"):
        module.initialize_keys([x])


def test_features_of_another_size():
    with pytest.raises(InputError, match=r"the features have shape \(40, 5\): it must be \(..., 6\)"):
        ready()(features()[:, :5])
    with pytest.raises(InputError, match=r"it must be \(..., 6\)"):
        ready().initialize_keys(features()[:, :5])


def test_features_on_another_device():
    with pytest.raises(InputError, match=r"the features are on meta, the module on cpu: move one with \.to\(\)"):
        ready()(features().to("meta"))


@pytest.mark.parametrize(
    ("codes", "message"),
    [
        (torch.zeros(3, C + 1, 1).int(), r"must be integers \(..., 4, k\)"),
        (torch.zeros(C).int(), r"must be integers"),
        (torch.zeros(3, C, 1), r"torch.float32 \(3, 4, 1\)"),
        (torch.full((3, C, 1), M), r"codes are 0 to 15, or 65535 for no pair"),
        (torch.full((3, C, 1), -1), r"a code lies outside its codebook"),
    ],
)
def test_codes_that_are_none(codes, message):
    with pytest.raises(InputError, match=message):
        ready().lookup(codes)


@pytest.mark.parametrize("mask", [torch.zeros(C, M), torch.zeros(M, C).bool(), np.zeros(C * M, bool)])
def test_masks_that_are_none(mask):
    with pytest.raises(InputError, match=r"it must be bool \(4, 16\), True = masked"):
        ready().set_mask(mask)


@pytest.mark.parametrize("data", [torch.empty(0, F), [], iter([features()])])
def test_no_features_to_initialise_with(data):
    with pytest.raises(InputError, match=r"no features|pass [12] gave no examples: pass a tensor"):
        ready().initialize_keys(data, passes=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pairs": 65536}, "pairs is 65536: it must be a whole number from 1 to 65,535"),
        ({"top_k": 17}, "top_k is 17: it cannot exceed pairs, which is 16"),
        ({"features": 0}, "features is 0: it must be a whole number of at least 1"),
        ({"values": 2.5}, "values is 2.5"),
        ({"decoder": "max"}, "decoder is 'max': use one of 'mean', 'sum'"),
        ({"value_init": "ones"}, "value_init is 'ones'"),
        ({"dtype": torch.int32}, "dtype is torch.int32: values need a floating-point type"),
    ],
)
def test_layouts_that_are_none(options, message):
    with pytest.raises(InputError, match=message):
        KeyValueBottleneck(**{"features": F, "values": V, **LAYOUT, **options})


@pytest.mark.parametrize("options", [{"passes": -1}, {"batch_size": 0}])
def test_key_initialisation_out_of_range(options):
    with pytest.raises(InputError, match="it must be a whole number of at least"):
        ready().initialize_keys(features(), **options)


def test_classifiers_that_the_module_is_not():
    with pytest.raises(InputError, match="top_k is 2: the module was built with 1"):
        ready().to_classifier(top_k=2)
    for classes in (list("ab"), list("edcba"), list("aabcd")):
        with pytest.raises(InputError, match="they must be 5 labels, sorted and distinct"):
            ready().to_classifier(classes)


def test_without_torch_one_sentence_names_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "excise.torch")
    message = r"^excise\.torch needs torch, which is not installed: pip install 'excise\[torch\]'$"
    with pytest.raises(MissingExtraError, match=message):
        importlib.import_module("excise.torch")
