"""Optimizers against their papers' algorithms, resumption bit by bit, clipping, and schedules."""

import copy
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minitransformer import Tensor, nn, optim
from tests.cases import Array
from tests.refusals import refusals

SHAPES = ((3, 5), (), (7,), (300,))
STEPS = 9


def sgd(lr: float, momentum: float, weight_decay: float, nesterov: bool) -> Callable[..., Any]:
    """Sutskever et al. 2013, with the velocity in units of the gradient."""
    velocity = 0.0

    def change(theta: Array, gradient: Array, step: int) -> Any:
        nonlocal velocity
        gradient = gradient + weight_decay * theta
        velocity = momentum * velocity + gradient
        direction = gradient + momentum * velocity if nesterov else velocity
        return -lr * direction

    return change


def adam(
    lr: float, betas: tuple[float, float], eps: float, weight_decay: float
) -> Callable[..., Any]:
    """Kingma and Ba 2015, algorithm 1."""
    m = v = 0.0

    def change(theta: Array, gradient: Array, t: int) -> Any:
        nonlocal m, v
        gradient = gradient + weight_decay * theta
        m = betas[0] * m + (1 - betas[0]) * gradient
        v = betas[1] * v + (1 - betas[1]) * gradient**2
        m_hat, v_hat = m / (1 - betas[0] ** t), v / (1 - betas[1] ** t)
        return -lr * m_hat / (np.sqrt(v_hat) + eps)

    return change


def radam(
    lr: float, betas: tuple[float, float], eps: float, weight_decay: float
) -> Callable[..., Any]:
    """Liu et al. 2020, algorithm 2; eps, which the paper leaves out, is added to the root."""
    m = v = 0.0
    rho_inf = 2 / (1 - betas[1]) - 1

    def change(theta: Array, gradient: Array, t: int) -> Any:
        nonlocal m, v
        gradient = gradient + weight_decay * theta
        m = betas[0] * m + (1 - betas[0]) * gradient
        v = betas[1] * v + (1 - betas[1]) * gradient**2
        m_hat = m / (1 - betas[0] ** t)
        rho = rho_inf - 2 * t * betas[1] ** t / (1 - betas[1] ** t)
        if rho <= 5:
            return -lr * m_hat
        r = ((rho - 4) * (rho - 2) * rho_inf) / ((rho_inf - 4) * (rho_inf - 2) * rho)
        return -lr * m_hat * np.sqrt(r) * np.sqrt(1 - betas[1] ** t) / (np.sqrt(v) + eps)

    return change


# The device is the same for all examples of a test.
ON_DEVICE = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
LR = st.sampled_from([0.0, 1e-3, 0.5])
DECAY = st.sampled_from([0.0, 0.1])
MOMENTS = st.fixed_dictionaries(
    {
        "lr": LR,
        "betas": st.sampled_from([(0.9, 0.999), (0.0, 0.5), (0.5, 0.9), (0.9, 0.5)]),
        "eps": st.sampled_from([1e-8, 1e-3]),
        "weight_decay": DECAY,
    }
)
MOMENTUM = st.fixed_dictionaries(
    {
        "lr": LR,
        "momentum": st.sampled_from([0.0, 0.9]),
        "weight_decay": DECAY,
        "nesterov": st.booleans(),
    }
).filter(lambda options: options["momentum"] or not options["nesterov"])
ALGORITHMS = [
    pytest.param(optim.SGD, sgd, MOMENTUM, id="SGD"),
    pytest.param(optim.Adam, adam, MOMENTS, id="Adam"),
    pytest.param(optim.RAdam, radam, MOMENTS, id="RAdam"),
]


def parameters(dtype: Any, device: str = "cpu", seed: int = 0) -> list[Tensor]:
    """Random parameters of several shapes."""
    rng = np.random.default_rng(seed)
    return [
        nn.Parameter(np.asarray(rng.standard_normal(shape), dtype), device=device)
        for shape in SHAPES
    ]


def give_gradients(tensors: list[Tensor], rng: np.random.Generator) -> list[Array]:
    """Random gradients, set and returned."""
    gradients = [np.asarray(rng.standard_normal(p.shape), p.dtype) for p in tensors]
    for parameter, gradient in zip(tensors, gradients, strict=True):
        parameter.grad = Tensor(gradient.copy(), device=parameter.device)
    return gradients


@pytest.mark.parametrize(("optimizer", "algorithm", "options"), ALGORITHMS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@ON_DEVICE
@given(data=st.data(), seed=st.integers(0, 2**32 - 1))
def test_steps_are_those_of_the_algorithm(
    optimizer: Any, algorithm: Any, options: Any, dtype: Any, device: str, data: Any, seed: int
) -> None:
    takes_the_steps(optimizer, algorithm, data.draw(options), dtype, seed, device)


def takes_the_steps(
    optimizer: Any, algorithm: Any, options: Any, dtype: Any, seed: int, device: str = "cpu"
) -> None:
    tensors = parameters(dtype, device, seed)
    expected = [p.numpy().astype(np.float64) for p in tensors]
    changes = [algorithm(**options) for _ in tensors]
    stepper = optimizer(tensors, **options)
    rng = np.random.default_rng(seed)
    for step in range(1, STEPS + 1):
        gradients = give_gradients(tensors, rng)
        stepper.step()
        expected = [
            theta + change(theta, gradient.astype(np.float64), step)
            for theta, change, gradient in zip(expected, changes, gradients, strict=True)
        ]
    tolerance = 1e-10 if dtype == np.float64 else 3e-5
    for parameter, theta in zip(tensors, expected, strict=True):
        assert parameter.dtype == dtype and parameter.shape == theta.shape
        scale = max(1.0, float(np.abs(theta).max()))
        np.testing.assert_allclose(parameter.numpy(), theta, atol=tolerance * scale)


@pytest.mark.parametrize(
    "build",
    [
        lambda p: optim.SGD(p, 0.1),
        lambda p: optim.SGD(p, 0.1, momentum=0.9),
        lambda p: optim.Adam(p, optim.warmup(5, optim.cosine(0.1, 20))),
        lambda p: optim.RAdam(p, 0.1, weight_decay=0.01),
    ],
    ids=["SGD", "momentum", "Adam", "RAdam"],
)
@ON_DEVICE
@given(stop=st.integers(0, STEPS))
def test_a_resumed_run_is_the_same_to_the_last_bit(build: Any, device: str, stop: int) -> None:
    def train(tensors: list[Tensor], optimizer: optim.Optimizer, steps: range) -> None:
        for step in steps:
            give_gradients(tensors, np.random.default_rng(step))
            optimizer.step()

    whole = parameters(np.float32, device)
    train(whole, build(whole), range(STEPS))

    first = parameters(np.float32, device)
    interrupted = build(first)
    train(first, interrupted, range(stop))
    state = {name: array.copy() for name, array in interrupted.state_dict().items()}
    later: list[Tensor] = [nn.Parameter(p.numpy().copy(), device=device) for p in first]
    resumed = build(later)
    resumed.load_state_dict(state)
    train(later, resumed, range(stop, STEPS))
    for parameter, expected in zip(later, whole, strict=True):
        np.testing.assert_array_equal(parameter.numpy(), expected.numpy())
    assert resumed.steps == STEPS


def test_a_saved_state_does_not_move_with_the_run() -> None:
    tensors = parameters(np.float32)
    optimizer = optim.Adam(tensors)
    state = optimizer.state_dict()
    give_gradients(tensors, np.random.default_rng(0))
    optimizer.step()
    assert not any(array.any() for array in state.values())


def test_loading_lists_what_does_not_fit_and_loads_nothing() -> None:
    optimizer = optim.Adam([nn.Parameter(np.zeros(3, np.float32))])
    state = optimizer.state_dict()
    state |= {"first_moment.0": np.ones(4, np.float32), "buffer.0": np.ones(3, np.float32)}
    state["steps"] = np.array([7])
    del state["second_moment.0"]
    with pytest.raises(ValueError) as caught:
        optimizer.load_state_dict(state)
    assert str(caught.value) == (
        "Adam.load_state_dict: the state does not fit: buffer.0 is (3,) float32, expected absent; "
        "first_moment.0 is (4,) float32, expected (3,) float32; second_moment.0 is absent, "
        "expected (3,) float32. Build the optimizer as it was when the state was saved"
    )
    assert optimizer.steps == 0


def test_a_parameter_without_a_gradient_stays() -> None:
    moving, still = (nn.Parameter(np.ones(2, np.float32)) for _ in range(2))
    optimizer = optim.Adam([moving, still], lr=0.1, weight_decay=0.1)
    moving.grad = Tensor(np.ones(2, np.float32))
    optimizer.step()
    assert (moving.numpy() != 1).all() and (still.numpy() == 1).all()
    optimizer.zero_grad()
    assert moving.grad is None


@pytest.mark.parametrize("make", [optim.Adam, optim.RAdam])
def test_a_gradient_that_comes_late_is_a_parameters_first(make: Any) -> None:
    """It is updated as if the optimizer were new, and those beside it as if it were not there."""
    names = "early", "late", "early alone", "late alone"
    p = {name: nn.Parameter(np.zeros(2, np.float32)) for name in names}
    both, *alone = (make(x, lr=0.1) for x in ([p["early"], p["late"]], p["early alone"],
                                              p["late alone"]))  # fmt: skip
    for step in range(9):
        for name in names if step > 5 else names[::2]:
            p[name].grad = Tensor(np.float32([1, step]))
        for optimizer in (both, *alone)[: 3 if step > 5 else 2]:
            optimizer.step()
    assert both.counts == [9, 3] and both.steps == 9
    for name in names[:2]:
        np.testing.assert_array_equal(p[name].numpy(), p[f"{name} alone"].numpy())


def test_steps_write_into_the_parameter_itself_whatever_the_gradients_layout() -> None:
    weight = nn.Parameter(np.zeros((3, 4), np.float32))
    array = weight.data
    weight.grad = Tensor(np.arange(12, dtype=np.float32).reshape(4, 3).T)
    optim.SGD([weight], lr=1.0).step()
    np.testing.assert_array_equal(array, -np.arange(12).reshape(4, 3).T)


def test_a_strided_parameter_is_refused() -> None:
    weight = nn.Parameter(np.zeros((4, 3), np.float32).T)
    weight.grad = Tensor(np.ones((3, 4), np.float32))
    with pytest.raises(ValueError, match=r"optimizer update: expected contiguous arrays, got str"):
        optim.SGD([weight], lr=1.0).step()


@pytest.mark.parametrize("make", [optim.SGD, optim.Adam])
def test_small_parameters_are_updated_together(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """By one launch for each dtype, to the same bits as each alone, and in the arrays they had."""
    rng = np.random.default_rng(0)
    shapes = (3, 4), (), (optim.SMALL + 1,), (7,), (0, 2)
    drawn = [rng.normal(size=(2, *shape)) for shape in shapes]

    def trained(most: int) -> tuple[list[Array], int]:
        monkeypatch.setattr(optim, "SMALL", most)
        launches = []
        parameters = [Tensor(x[0].astype(np.float32), requires_grad=True) for x in drawn]
        parameters.append(Tensor(drawn[0][0].copy(), requires_grad=True))  # float64
        arrays = [p.data for p in parameters]
        optimizer = make(parameters, lr=0.1)
        update = optimizer._update
        monkeypatch.setattr(
            optimizer, "_update", lambda *given: launches.append(given) or update(*given)
        )
        for _ in range(3):
            for p, x in zip(parameters, [*drawn, drawn[0]], strict=True):
                p.grad = Tensor(x[1].astype(p.dtype))
            optimizer.step()
        assert all(p.data is x for p, x in zip(parameters, arrays, strict=True))
        return arrays, len(launches)

    together, few = trained(2048)
    alone, many = trained(0)
    assert (few, many) == (3 * 4, 3 * 6)  # small of two dtypes, the large one, and the empty one
    for x, y in zip(together, alone, strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("make", [optim.SGD, optim.Adam])
def test_parameters_in_the_same_memory_are_updated_one_after_the_other(make: Any) -> None:
    memory = np.zeros(4, np.float32)
    pair = [Tensor(part, requires_grad=True) for part in (memory[:3], memory[1:])]
    for p in pair:
        p.grad = Tensor(np.ones(3, np.float32))
    make(pair, lr=0.25).step()
    np.testing.assert_allclose(memory, [-0.25, -0.5, -0.5, -0.25], rtol=1e-6)


@pytest.mark.parametrize("make", [partial(optim.SGD, momentum=0.9), optim.Adam])
@pytest.mark.parametrize("change", ["copied", "replaced", "loaded", "without"])
def test_small_parameters_part_from_the_array_they_shared(make: Any, change: str) -> None:
    """Copies, new arrays and loaded moments are followed, and one without a gradient is left."""

    def begun(most: int) -> tuple[list[Tensor], optim.Optimizer]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(optim, "SMALL", most)
            pair = [Tensor(np.full(3, x, np.float32), requires_grad=True) for x in (1.0, 2.0)]
            optimizer = make(pair, lr=0.1)
            go_on(pair, optimizer)
            state = optimizer.state_dict()
            go_on(pair, optimizer)
            if change == "copied":
                pair, optimizer = copy.deepcopy((pair, optimizer))
            elif change == "replaced":
                pair[1].data = pair[1].data.copy()
            elif change == "loaded":
                optimizer.load_state_dict(state)
            else:
                pair[0].grad = None
                optimizer.step()
            go_on(pair, optimizer)
        return pair, optimizer

    def go_on(pair: list[Tensor], optimizer: optim.Optimizer) -> None:
        for p in pair:
            p.grad = Tensor(np.sin(p.data))
        optimizer.step()

    (together, one), (alone, other) = begun(2048), begun(0)
    for p, q in zip(together, alone, strict=True):
        np.testing.assert_array_equal(p.data, q.data)
    for name, moment in one.state_dict().items():
        np.testing.assert_array_equal(moment, other.state_dict()[name])


@pytest.mark.parametrize("build", [optim.SGD, optim.Adam])
@pytest.mark.parametrize(
    ("name", "array", "error", "message"),
    [
        ("data", [1.0], TypeError, "data must be an array, got list"),
        ("data", np.ones(5, np.float32), ValueError, "must have the shape"),
        ("data", np.ones(2, np.float32), ValueError, "must have the shape"),
        ("data", np.ones(3), ValueError, "is float32, but parameter is float64"),
        ("data", np.zeros((3, 2), np.float32)[:, 0], ValueError, "expected contiguous arrays"),
        ("data", np.frombuffer(bytes(12), np.float32), ValueError, "parameter must not be read-on"),
    ],
)
def test_what_was_replaced_is_looked_at(
    build: Any, name: str, array: Any, error: type[Exception], message: str
) -> None:
    parameter, beside = (nn.Parameter(np.zeros(3, np.float32)) for _ in range(2))
    optimizer = build([parameter, beside])
    parameter.grad = beside.grad = Tensor(np.ones(3, np.float32))
    optimizer.step()
    setattr(parameter, name, array)
    with pytest.raises(error, match=message):
        optimizer.step()


@given(st.integers(0, 2**32 - 1), st.sampled_from([0.5, 1.0, 100.0]))
def test_clipping_scales_all_gradients_to_one_norm(seed: int, largest: float) -> None:
    tensors = [*parameters(np.float64), nn.Parameter(np.ones(2))]
    gradients = give_gradients(tensors[:-1], np.random.default_rng(seed))
    norm = math.sqrt(sum((g**2).sum() for g in gradients))
    assert math.isclose(optim.clip_grad_norm_(tensors, largest), norm, rel_tol=1e-12)
    for parameter, gradient in zip(tensors, gradients, strict=False):
        expected = gradient * min(1.0, largest / norm)
        np.testing.assert_allclose(parameter.grad.numpy(), expected, rtol=1e-12)
    assert tensors[-1].grad is None


@pytest.mark.parametrize("spoilt", [np.nan, np.inf])
def test_clipping_shows_a_gradient_that_is_not_finite(spoilt: float) -> None:
    parameter = nn.Parameter(np.zeros(2))
    parameter.grad = Tensor(np.array([spoilt, 2.0]))
    np.testing.assert_equal(optim.clip_grad_norm_([parameter], 1.0), spoilt)
    np.testing.assert_array_equal(parameter.grad.numpy(), [spoilt, 2.0])


def test_gradients_of_half_precision_are_clipped_by_a_norm_beyond_their_squares() -> None:
    x = Tensor(np.zeros(4, np.float16), requires_grad=True)
    x.grad = Tensor(np.full(4, 300, np.float16))
    assert optim.clip_grad_norm_(x, 1.0) == 600
    assert x.grad.tolist() == [0.5] * 4


@pytest.mark.parametrize("size", [1e19, 1e-25])
def test_gradients_whose_squares_float32_does_not_hold_are_clipped(size: float) -> None:
    x = Tensor(np.zeros(2, np.float32), requires_grad=True)
    x.grad = Tensor(np.float32([3 * size, 4 * size]))
    assert math.isclose(optim.clip_grad_norm_(x, size), 5 * size, rel_tol=1e-6)
    np.testing.assert_allclose(x.grad.numpy(), [0.6 * size, 0.8 * size], rtol=1e-6)


def test_one_tensor_alone_may_be_clipped_and_optimized() -> None:
    parameter = nn.Parameter(np.zeros(2, np.float32))
    parameter.grad = Tensor(np.float32([30, 40]))
    assert math.isclose(optim.clip_grad_norm_(parameter, 1.0), 50, rel_tol=1e-6)
    optim.SGD(parameter, lr=1.0).step()
    np.testing.assert_allclose(parameter.numpy(), [-0.6, -0.8], rtol=1e-6)


def rates(schedule: optim.Schedule, *steps: int) -> list[float]:
    return [schedule(step) for step in steps]


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (optim.constant(2.0), {0: 2.0, 9: 2.0}),
        (optim.cosine(2.0, 10), {0: 2.0, 5: 1.0, 10: 0.0, 99: 0.0}),
        (optim.cosine(2.0, 10, final=1.0), {0: 2.0, 5: 1.5, 10: 1.0}),
        (optim.step_decay(1.0, every=3, factor=0.5), {0: 1.0, 2: 1.0, 3: 0.5, 8: 0.25}),
        (optim.warmup(4, optim.constant(2.0)), {0: 0.5, 1: 1.0, 3: 2.0, 4: 2.0}),
        (optim.warmup(0, optim.constant(2.0)), {0: 2.0}),
        (optim.warmup(4, optim.cosine(2.0, 10)), {5: 1.0, 10: 0.0}),
        (optim.inverse_sqrt(2.0, 4), {0: 0.5, 3: 2.0, 15: 1.0}),
        (optim.noam(64, 4), {3: 64**-0.5 * 4**-0.5, 15: 64**-0.5 * 16**-0.5, 0: 64**-0.5 / 8}),
    ],
)
def test_schedules(schedule: optim.Schedule, expected: dict[int, float]) -> None:
    np.testing.assert_allclose(rates(schedule, *expected), list(expected.values()), atol=1e-15)


def test_the_optimizer_follows_its_schedule() -> None:
    parameter = nn.Parameter(np.zeros(1))
    optimizer = optim.SGD([parameter], lr=optim.step_decay(1.0, every=2))
    moves = []
    for _ in range(4):
        before = parameter.item()
        parameter.grad = Tensor(np.ones(1))
        optimizer.step()
        moves.append(before - parameter.item())
    np.testing.assert_allclose(moves, [1.0, 1.0, 0.1, 0.1])


ONE = [nn.Parameter(np.zeros(1))]


test_refusals = refusals(
    (lambda: optim.Adam([]),
     "Adam: expected at least one parameter, got none; pass model.parameters()"),
    (lambda: optim.Adam([ONE[0], ONE[0]]), ValueError,
     "Adam: expected each parameter once, got some twice; pass model.parameters()"),
    (lambda: optim.SGD([np.zeros(3)]), TypeError,
     "SGD: parameters must be tensors, got ndarray; pass model.parameters()"),
    (lambda: optim.SGD(3), TypeError, "SGD: parameters must be tensors, got int; pass model.para"),
    (lambda: optim.clip_grad_norm_([np.zeros(3)], 1.0), TypeError,
     "clip_grad_norm_: parameters must be tensors, got ndarray; pass model.parameters()"),
    (lambda: optim.SGD([ONE[0] * 2]), TypeError,
     "SGD: parameters must be tensors that no function made, got some that one made; pass"),
    (lambda: optim.SGD(ONE, -1.0), "SGD: lr must be a finite number, 0 or more"),
    (lambda: optim.RAdam(ONE, eps=math.nan), "RAdam: eps must be a finite number"),
    (lambda: optim.Adam(ONE, weight_decay=-1), "Adam: weight_decay must be a"),
    (lambda: optim.SGD(ONE, momentum=-0.1), "SGD: momentum must be a finite"),
    (lambda: optim.SGD(ONE, nesterov=True), "SGD: nesterov looks ahead along"),
    (lambda: optim.Adam(ONE, betas=(0.9, 1.0)),
     "Adam: betas must be two numbers in [0, 1), got (0.9, 1.0)"),
    (lambda: optim.Adam(ONE, betas=(0.9, "a", 0.99)), "Adam: betas must be two numbers in [0, 1)"),
    (lambda: optim.SGD(ONE, weight_decay=10**400), "SGD: weight_decay must be a finite number"),
    (lambda: optim.SGD(ONE, momentum=0.9, nesterov="False"), TypeError,
     "SGD: nesterov must be True or False, got 'False'"),
    (lambda: optim.SGD(ONE, lr=lambda step: math.nan).step(),
     "SGD: lr must be a finite number at step 0, got nan"),
    (lambda: optim.SGD(ONE, lr=lambda step: "a").step(), TypeError,
     "SGD: lr must be a finite number at step 0, got 'a'"),
    (lambda: optim.clip_grad_norm_(ONE, 0.0),
     "clip_grad_norm_: max_norm must be above 0, got 0.0; to switch clipping off"),
    (lambda: optim.warmup(3, 0.1), TypeError,
     "warmup: expected a schedule, such as optim.cosine(...), got 0.1; a constant one is lambda"),
    (lambda: optim.cosine(1.0, math.nan), "cosine: steps must be 1 or more, got nan"),
    (lambda: optim.cosine(1.0, 0), "cosine: steps must be 1 or more, got 0"),
    (lambda: optim.step_decay(1.0, 0), "step_decay: every must be 1 or more"),
    (lambda: optim.inverse_sqrt(1.0, 0), "inverse_sqrt: warmup_steps must be 1"),
    (lambda: optim.noam(0), "noam: d_model must be 1 or more, got 0"),
)  # fmt: skip
