"""Values trained by the kernels move as torch.optim moves the dense table: the proof, step by step."""

from dataclasses import replace

import numpy as np
import pytest

from excise.bottleneck import kernels, reference
from excise.bottleneck.reference import NO_PAIR, Optimiser

torch = pytest.importorskip("torch")
from excise.torch import KeyValueBottleneck  # noqa: E402

C, M, V = 5, 12, 3
BATCH = 8
TRAINERS = {"kernels": kernels.ValueTrainer, "reference": reference.ValueTrainer}


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Threads only wait for one another at these sizes."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def problem(k, examples=40, seed=0, missing=False):
    """Codes (n, C, k) without repeats within a codebook, labels that depend on them, and values to start from."""
    rng = np.random.default_rng(seed)
    codes = rng.random((examples, C, M)).argsort(axis=2)[:, :, :k].astype(np.uint16)
    labels = (codes[:, 0, 0].astype(np.int64) * 7 + codes[:, 1, 0]) % V
    if missing:  # fewer live pairs than k, down to none
        codes[::3, 0, -1] = NO_PAIR
        codes[::7, 2, :] = NO_PAIR
    return codes, labels, rng.normal(size=(C, M, V)).astype(np.float32) * 0.1


def orders(examples, epochs, seed=1):
    rng = np.random.default_rng(seed)
    return [rng.permutation(examples) for _ in range(epochs)]


def with_kernels(trainer, values, codes, labels, epochs, options, batch_size=BATCH, threads=1):
    model = trainer(values, options)
    losses = [model.train(codes, labels, order, batch_size, threads) / len(order) for order in epochs]
    return model.values(threads), losses


def with_torch(values, codes, labels, epochs, options, batch_size=BATCH, dtype=torch.float32):
    """The same training by a module, a torch optimiser and torch's own loss, clipping and penalty."""
    module = KeyValueBottleneck(1, V, *values.shape[:2], 1, codes.shape[2], decoder=options.decoder, dtype=dtype)
    module.load_state_dict(module.state_dict() | {"values": torch.tensor(values)})
    if options.solver == "sgd":
        optimiser = torch.optim.SGD(module.parameters(), lr=options.learning_rate)
    else:
        betas = (options.beta1, options.beta2)
        optimiser = torch.optim.Adam(module.parameters(), lr=options.learning_rate, betas=betas, eps=options.epsilon)
    cross_entropy = torch.nn.CrossEntropyLoss(label_smoothing=options.label_smoothing)
    codes, labels = torch.tensor(codes.astype(np.int32)), torch.tensor(labels)
    losses = []
    for order in map(torch.tensor, epochs):
        total = 0.0
        for rows in order.split(batch_size):
            optimiser.zero_grad()
            loss = cross_entropy(module.lookup(codes[rows]).mean(-2), labels[rows])
            total += loss.item() * len(rows)
            (loss + options.l2 / 2 * module.values.square().sum()).backward()
            if options.gradient_clip is not None:
                torch.nn.utils.clip_grad_norm_(module.parameters(), options.gradient_clip)
            optimiser.step()
        losses.append(total / len(order))
    return module.values.detach().numpy(), losses


OPTIONS = {
    "adam": Optimiser(),
    "sum": Optimiser(decoder="sum"),
    "smoothed": Optimiser(label_smoothing=0.1),
    "clipped": Optimiser(gradient_clip=0.01),
    "barely-clipped": Optimiser(gradient_clip=0.05, learning_rate=0.01),
    "penalised": Optimiser(l2=0.01),
    "everything": Optimiser(label_smoothing=0.1, gradient_clip=0.05, l2=0.003, decoder="sum", learning_rate=0.05),
    "large-epsilon": Optimiser(epsilon=1e-3),
    "other-betas": Optimiser(beta1=0.5, beta2=0.9),
    "sgd": Optimiser(solver="sgd", learning_rate=3.0),
    "sgd-everything": Optimiser(
        solver="sgd", learning_rate=3.0, label_smoothing=0.1, gradient_clip=0.05, l2=0.003, decoder="sum"
    ),
}


@pytest.fixture(params=TRAINERS.values(), ids=TRAINERS)
def trainer(request):
    return request.param


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_ten_epochs_agree_with_torch_on_the_dense_table(trainer, options, k):
    codes, labels, values = problem(k)
    epochs = orders(len(codes), 10)
    mine, my_losses = with_kernels(trainer, values, codes, labels, epochs, options)
    theirs, their_losses = with_torch(values, codes, labels, epochs, options)
    np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(my_losses, their_losses, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("decoder", ["mean", "sum"])
@pytest.mark.parametrize("k", [1, 3])
def test_codes_without_a_pair_agree_with_torch(trainer, k, decoder):
    codes, labels, values = problem(k, missing=True)
    epochs, options = orders(len(codes), 5), Optimiser(decoder=decoder)
    mine, _ = with_kernels(trainer, values, codes, labels, epochs, options)
    theirs, _ = with_torch(values, codes, labels, epochs, options)
    np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("solver", ["adam", "sgd"])
def test_a_last_batch_that_is_short_agrees_with_torch(trainer, solver):
    codes, labels, values = problem(1, examples=BATCH * 2 + 3)
    epochs, options = orders(len(codes), 6), Optimiser(solver)
    mine, _ = with_kernels(trainer, values, codes, labels, epochs, options)
    theirs, _ = with_torch(values, codes, labels, epochs, options)
    np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("idle", [1, 30, 450])
def test_a_row_that_rested_for_many_steps_moves_as_the_dense_table(trainer, idle):
    """Pair 0 of every codebook is touched, rests for `idle` steps while others move, and is touched again."""
    rng = np.random.default_rng(2)
    codes = rng.integers(1, M, size=(2 * idle + 4, C, 1)).astype(np.uint16)
    codes[[0, 1, 2 * idle + 2]] = 0
    labels = rng.integers(0, V, len(codes))
    values, order, options = np.zeros((C, M, V), np.float32), [np.arange(len(codes))], Optimiser(learning_rate=0.05)
    mine, _ = with_kernels(trainer, values, codes, labels, order, options, batch_size=2)
    theirs, _ = with_torch(values, codes, labels, order, options, batch_size=2)
    np.testing.assert_allclose(mine[:, 0], theirs[:, 0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-4)  # hundreds of steps of rounding, each amplified


def test_a_row_that_is_read_while_it_rests_has_the_values_of_that_step(trainer):
    codes, labels, values = problem(1)
    codes[0] = 0
    codes[1:] = np.maximum(codes[1:], 1)
    model, done = trainer(values, Optimiser()), []
    for step in range(6):
        order = np.array([0]) if step == 0 else np.arange(step, step + 4)
        done.append(order)
        model.train(codes, labels, order, 4)
        theirs, _ = with_torch(values, codes, labels, done, Optimiser(), batch_size=4)
        np.testing.assert_allclose(model.values(), theirs, rtol=1e-4, atol=1e-5)


def test_a_row_that_was_never_touched_keeps_its_bytes(trainer):
    codes, labels, values = problem(1)
    codes = np.minimum(codes, M - 4)
    mine, _ = with_kernels(trainer, values, codes, labels, orders(len(codes), 5), Optimiser())
    np.testing.assert_array_equal(mine[:, M - 3 :], values[:, M - 3 :])
    assert (mine[:, : M - 3] != values[:, : M - 3]).any()


@pytest.mark.parametrize("bias", [3.0, 9.0, 14.0])
def test_gradients_near_adams_epsilon_are_as_near_to_the_exact_table_as_torch_is(trainer, bias):
    """Confident logits leave gradients around 1e-8, where float32 rounds coarsely: the oracle is torch in float64."""
    codes, _, values = problem(1)
    labels = np.zeros(len(codes), np.int64)
    values[..., 0] += bias
    epochs, options = orders(len(codes), 4), Optimiser(learning_rate=0.01)
    exact, _ = with_torch(values, codes, labels, epochs, options, dtype=torch.float64)
    theirs, _ = with_torch(values, codes, labels, epochs, options)
    mine, _ = with_kernels(trainer, values, codes, labels, epochs, options)
    assert np.abs(exact - values).max() > 1e-4
    assert np.abs(mine - exact).max() <= 3 * np.abs(theirs - exact).max() + 1e-5


def test_training_in_parts_is_training_at_once(trainer):
    codes, labels, values = problem(3)
    (order,) = orders(len(codes), 1)
    whole, _ = with_kernels(trainer, values, codes, labels, [order], Optimiser())
    parts, _ = with_kernels(trainer, values, codes, labels, [order[:16], order[16:]], Optimiser(), threads=2)
    np.testing.assert_array_equal(whole, parts)


@pytest.mark.parametrize("options", [replace(o, decoder="mean") for o in OPTIONS.values()], ids=OPTIONS)
def test_kernels_and_reference_agree(options):
    codes, labels, values = problem(3, missing=True)
    epochs = orders(len(codes), 4)
    fast, losses = with_kernels(kernels.ValueTrainer, values, codes, labels, epochs, options)
    slow, expected = with_kernels(reference.ValueTrainer, values, codes, labels, epochs, options)
    np.testing.assert_allclose(fast, slow, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(losses, expected, rtol=1e-6)
