"""Each fault is the one that is meant, does what is said of it, and the rest stays as it was."""

import numpy as np
import pytest

from minitransformer import Tensor, nn, random
from minitransformer.experiments.copy_faults import (
    ALL,
    DEAD,
    ELU,
    FAULTS,
    LOOP,
    MASK,
    NONE,
    SLOW,
    TWICE,
    Dead,
    FaultyCopy,
    FaultyLinear,
    planted,
    report,
    reversed_elu,
    too_early,
)

SIZES = {"length": 6, "layers": 2, "heads": 2, "head_dim": 16}


def inputs(length=6):
    generator = np.random.default_rng(0)
    return [
        Tensor(generator.standard_normal((2, 2, length, 16)).astype(np.float32), requires_grad=True)
        for _ in range(3)
    ]


def passes(variant, causal):
    qkv = inputs()
    output = variant(*qkv, causal=causal)
    output.backward(np.random.default_rng(1).standard_normal(output.shape).astype(np.float32))
    return [output.numpy(), *(x.grad.numpy() for x in qkv)]


def model(*names):
    random.manual_seed(0)
    task = FaultyCopy(**SIZES, faults=frozenset(names))
    return task, task.build("linear"), task.draw(np.random.default_rng(0), 4)


@pytest.mark.parametrize("causal", [True, False])
def test_state_by_state_is_the_same(causal):
    walked = passes(FaultyLinear(frozenset({LOOP})), causal)
    for found, wanted in zip(walked, passes(nn.LinearAttention(), causal), strict=True):
        np.testing.assert_allclose(found, wanted, atol=2e-5)


@pytest.mark.parametrize("faults", [(MASK,), (MASK, LOOP)], ids=" and ".join)
def test_without_its_mask_attention_sees_the_future(faults):
    variant = FaultyLinear(frozenset(faults))
    both = nn.LinearAttention()(*inputs()).numpy()
    np.testing.assert_allclose(variant(*inputs(), causal=True).numpy(), both, atol=1e-5)
    sound = FaultyLinear(frozenset())(*inputs(), causal=True).numpy()
    assert np.abs(sound - both)[:, :, :-1].max() > 0.1
    np.testing.assert_allclose(sound[:, :, -1], both[:, :, -1], atol=1e-5)


def test_elu_is_reversed():
    x = np.array([-3.0, -0.5, 0.0, 0.5, 2.0], np.float32)
    found = reversed_elu(Tensor(x)).numpy()
    np.testing.assert_allclose(found, [-2.0, 0.5, 1.0, np.exp(0.5), np.exp(2.0)], rtol=1e-6)
    query, key, value = inputs()
    phi_q, phi_k = (reversed_elu(t).numpy() for t in (query, key))
    scores = phi_q @ phi_k.swapaxes(2, 3)
    wanted = scores @ value.numpy() / (scores.sum(axis=3, keepdims=True) + 1e-6)
    output = FaultyLinear(frozenset({ELU}))(query, key, value).numpy()
    np.testing.assert_allclose(output, wanted, rtol=1e-3, atol=1e-3)


def test_half_of_the_encoder_is_dead():
    task, faulty, batch = model(DEAD)
    layers = [*faulty.encoder.layers]
    assert [isinstance(layer, Dead) for layer in layers] == [False, True]
    x = Tensor(np.random.default_rng(0).standard_normal((1, 3, 32)).astype(np.float32))
    assert layers[1](x) is x
    task.loss(faulty, batch)[0].backward()
    gradients = {name: p.grad for name, p in faulty.named_parameters()}
    dead = [name for name, grad in gradients.items() if grad is None]
    assert dead and all(name.startswith("encoder.layers.1.") for name in dead)
    assert len(dead) == sum(name.startswith("encoder.layers.1.") for name in gradients)


def test_a_forward_too_many_is_thrown_away(monkeypatch):
    calls = []
    forward = nn.Transformer.forward
    monkeypatch.setattr(nn.Transformer, "forward", lambda *args: calls.append(1) or forward(*args))
    losses = [task.loss(made, batch)[0].item() for task, made, batch in (model(), model(TWICE))]
    assert losses[0] == losses[1]
    assert len(calls) == 1 + 2


def test_softmax_has_no_fault_of_attention():
    task = FaultyCopy(**SIZES, faults=frozenset({MASK, ELU, LOOP}))
    variants = {type(m) for m in task.build("softmax").modules() if hasattr(m, "remember")}
    assert FaultyLinear not in variants


def test_names_stand_for_faults():
    assert planted(NONE) == frozenset()
    assert planted(SLOW) == {SLOW}
    assert planted(ALL) == set(FAULTS)


def row(fault, losses, right, ended=None):
    return {"fault": fault, "seed": 0, "length": 8, "layers": 2, "heads": 4, "head_dim": 16,
            "steps": 30, "every": 10, "losses": losses, "accuracies": losses, "ended": ended,
            "symbols": right, "sequences": right}  # fmt: skip


def test_the_report_names_the_fault_that_lies():
    sound, early = [2.3, 0.5, 0.01], [2.3, 0.01, 0.01]
    rows = [
        row(NONE, sound, 1.0),
        row(MASK, early, 0.2),
        row(ELU, [2.3], 0.1, ended=12),
        row(SLOW, [2.3, 2.2, 2.0], 0.2),
        row(DEAD, early, 0.99),
        row(TWICE, sound, 1.0),
    ]
    assert [too_early([r]) for r in rows] == [False, True, False, False, False, False]
    text = report(rows).text
    assert f"- *{MASK}*: **yes**; it is below 0.1 after 20 steps, 0.67 times as many" in text
    assert "and of the symbols copied 20.0% are right, not 100.0%." in text
    assert f"- *{ELU}*: no; of 1 of 1 seeds the loss is not finite" in text
    assert f"- *{SLOW}*: no; it ends at 2, and of the symbols copied 20.0% are right." in text
    assert f"- *{DEAD}*: no; it takes 0.67 times as many steps, and 99.0%" in text
    assert f"- *{TWICE}*: no; the losses are the same, number for number." in text
    assert (
        "| elu reversed | 0 of 1 | - | not finite at step 12 (12 .. 12) | 10.0% | 10.0% |" in text
    )
