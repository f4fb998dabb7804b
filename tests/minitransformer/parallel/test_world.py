"""One rank: sending to oneself, on both devices, and what is said where MPI is missing."""

import numpy as np
import pytest

from minitransformer import Tensor, attention, parallel
from minitransformer.errors import UserError
from minitransformer.parallel import world

from .starting import needs_mpi


@needs_mpi
def test_arrays_of_a_device_come_back_to_it(device: str) -> None:
    one = parallel.World()
    array = Tensor(np.arange(6.0).reshape(2, 3).T, device=device).data  # not in one piece
    parts = {
        "sum": one.sum(array),
        "gather": one.gather(array)[0],
        "sum_to_each": one.sum_to_each(array[None]),
        "exchange": one.start_exchange({0: array}, {0: array})()[0],
    }
    for name, found in parts.items():
        assert type(found) is type(array), name
        assert found.tolist() == array.tolist(), name
    assert one.sent["Isend"] == parallel.Sent(1, 48)
    assert (one.messages, one.bytes) == (4, 4 * 48)
    assert "through the host" in one.describe() or world.cuda_aware()
    one.forget()
    assert (one.messages, one.bytes, one.seconds) == (0, 0, 0)


@needs_mpi
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", ["linear", "softmax", "relative_linear"])
def test_one_rank_is_one_process(name: str, causal: bool, device: str) -> None:
    draw, one, found = np.random.default_rng(0), parallel.World(), []
    arrays = [draw.standard_normal((1, 2, 7, width)) for width in (5, 5, 3)]
    if name == "relative_linear":
        arrays.append(draw.standard_normal((2, 5, 5)))
    for package, more in ((attention, {}), (parallel, {"world": one})):
        tensors = [Tensor(array, requires_grad=True, device=device) for array in arrays]
        output = getattr(package, f"{name}_attention")(*tensors, causal=causal, **more)
        output.sum().backward()
        assert output.device == device
        found.append([output.numpy(), *(x.grad.numpy() for x in tensors)])
    for expected, result in zip(*found, strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "error",
    [ModuleNotFoundError("No module named 'mpi4py'"), RuntimeError("cannot load MPI\nmore")],
)
def test_without_mpi_it_says_what_to_install(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> None:
        raise error

    world.mpi.cache_clear()
    monkeypatch.setattr(world.importlib, "import_module", missing)
    said = str(error).splitlines()[0]
    with pytest.raises(UserError, match=said) as raised:
        parallel.World()
    assert 'pip install "minitransformer[mpi]"' in str(raised.value)
    assert "more" not in str(raised.value)


@needs_mpi
def test_a_grid_needs_as_many_ranks_as_it_has_places() -> None:
    with pytest.raises(UserError, match=r"a grid of 2 x 3 needs 6 ranks, got 1; .* mpiexec -n 6"):
        parallel.Grid.of(parallel.World(), 2, 3)
    grid = parallel.Grid.of(parallel.World())
    assert (grid.data.size, grid.sequence.size) == (1, 1)


@needs_mpi
def test_what_no_slice_can_do_is_refused() -> None:
    one = {"world": parallel.World()}
    tensors = [Tensor(np.ones((1, 1, length, 2))) for length in (3, 3, 3, 2)]
    embedding = Tensor(np.ones((1, 3, 2)))
    with pytest.raises(TypeError, match="no option query_offset, there are feature_map"):
        parallel.linear_attention(*tensors[:3], query_offset=1, **one)
    with pytest.raises(ValueError, match="cut at the same places, got 2 and 3 rows on rank 0"):
        parallel.linear_attention(tensors[3], *tensors[1:3], causal=True, **one)
    with pytest.raises(ValueError, match="key_lengths must lie between 0 and 3"):
        parallel.linear_attention(*tensors[:3], key_lengths=[4], **one)
    with pytest.raises(ValueError, match=r"packed sequences .* need causal=True"):
        parallel.relative_linear_attention(*tensors[:3], embedding, cu_seqlens=[0, 3], **one)
    with pytest.raises(ValueError, match="must not go on where keys are padding"):
        parallel.relative_linear_attention(
            *tensors[:3], embedding, causal=True, key_lengths=[2], **one
        )
