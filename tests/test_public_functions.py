"""Each public function of torch and each method of tensors is called on the device at least once, as on the CPU.

PyTorch's operator database has no entry for many of them. What a new torch adds without a call here fails
`test_every_name_has_a_call`.
"""

from __future__ import annotations

import inspect
import io
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy
import pytest
import torch
import torch.nn.functional as F


class Tensors:
    """Arguments on a device. Asked for in the same order they are the same everywhere."""

    def __init__(self, place: str, seed: int) -> None:
        self.place, self._generator = place, torch.Generator().manual_seed(seed)

    def on(self, value: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
        return torch.as_tensor(value, dtype=dtype).to(self.place)

    def normal(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.randn(shape, generator=self._generator, dtype=dtype).to(self.place)

    def uniform(self, *shape: int) -> torch.Tensor:
        """Of numbers between 0.05 and 0.95."""
        return (torch.rand(shape, generator=self._generator) * 0.9 + 0.05).to(self.place)

    def integers(self, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(high, shape, generator=self._generator).to(self.place)

    def truth(self, *shape: int) -> torch.Tensor:
        return self.integers(2, *shape).bool()

    def apart(self, *shape: int) -> torch.Tensor:
        """Of numbers of which no two are near each other, so that their order is the same everywhere."""
        return self.on(torch.randperm(math.prod(shape), generator=self._generator).view(shape).float() / 4 - 2)

    def definite(self, *batch: int) -> torch.Tensor:
        """Symmetric, positive definite matrices."""
        root = self.normal(*batch, 4, 4)
        return root @ root.mT + 4 * torch.eye(4, device=self.place)

    def sparse(self) -> torch.Tensor:
        return self.on([[0.0, 2.0, 0.0], [3.0, 0.0, 4.0]]).to_sparse()

    def compressed(self) -> torch.Tensor:
        return self.on([[0.0, 2.0, 0.0], [3.0, 0.0, 4.0]]).to_sparse_csr()

    x = property(lambda self: self.normal(3, 4))
    p = property(lambda self: self.uniform(3, 4))
    i = property(lambda self: self.integers(7, 3, 4) + 1)
    b = property(lambda self: self.truth(3, 4))
    z = property(lambda self: self.normal(3, 4, dtype=torch.complex64))
    v = property(lambda self: self.normal(4))
    m = property(lambda self: self.normal(4, 4) + 4 * torch.eye(4, device=self.place))
    line = property(lambda self: self.apart(2, 4, 8))
    image = property(lambda self: self.apart(2, 4, 6, 6))
    volume = property(lambda self: self.apart(1, 2, 4, 4, 4))
    places = property(lambda self: self.on([2, 0, 2]))
    many = property(lambda self: torch.ones(100, 200, device=self.place))


Call = Callable[[Any, Tensors], Any]
Calls = Mapping[str, Call]


def by_name(table: Calls) -> dict[str, Call]:
    """A table whose keys are several names each, with a key for each name."""
    calls: dict[str, Call] = {}
    for names, call in table.items():
        for name in names.split():
            assert name not in calls, f"{name} has two calls"
            calls[name] = call
    return calls


def names_of(reasons: Mapping[str, str]) -> set[str]:
    return {name for names in reasons.values() for name in names.split()}


def attention(f: Any, t: Tensors) -> Any:
    x, weights, biases = t.normal(5, 2, 8), t.normal(24, 8), t.normal(24)
    return f(x, x, x, 8, 2, weights, biases, None, None, False, 0.0, t.normal(8, 8), t.normal(8))


def recurrent(gates: int, cells: int) -> Call:
    """A call of a recurrent network of one layer on a batch of sequences."""

    def call(f: Any, t: Tensors) -> Any:
        x, states = t.normal(5, 2, 3), [t.normal(1, 2, 4) for _ in range(cells)]
        parameters = [t.normal(gates * 4, 3), t.normal(gates * 4, 4), t.normal(gates * 4), t.normal(gates * 4)]
        state = states[0] if cells == 1 else states
        return f(x, state, parameters, True, 1, 0.0, False, False, False)

    return call


def recurrent_cell(gates: int, cells: int) -> Call:
    def call(f: Any, t: Tensors) -> Any:
        x, states = t.normal(2, 3), [t.normal(2, 4) for _ in range(cells)]
        parameters = [t.normal(gates * 4, 3), t.normal(gates * 4, 4), t.normal(gates * 4), t.normal(gates * 4)]
        return f(x, states[0] if cells == 1 else states, *parameters)

    return call


def unpooled(dims: int) -> Call:
    pool = getattr(F, f"max_pool{dims}d")

    def call(f: Any, t: Tensors) -> Any:
        return f(*pool(t.apart(2, 3, *[4] * dims), 2, return_indices=True), 2)

    return call


def factors(f: Any, t: Tensors) -> Any:
    """What a factorisation is made of, put together again: signs and the order within it are free."""
    u, s, v = f(t.m)
    return u @ torch.diag(s) @ v.mT


def saved(f: Any, t: Tensors) -> Any:
    buffer = io.BytesIO()
    torch.save(t.x, buffer)
    buffer.seek(0)
    return torch.load(buffer)


# ---- torch ----

# Functions of the elements of one tensor, of two, and what else takes the same arguments; in place as well.
OF_ONE = (
    "abs absolute adjoint alias_copy angle arcsinh arctan argwhere asinh atan atleast_1d atleast_2d atleast_3d ceil "
    "celu clone conj conj_physical corrcoef cos cosh cov deg2rad detach detach_copy diag_embed diagflat "
    "digamma erf erfc exp exp2 expm1 fix flatten fliplr flipud floor frac frexp hardshrink i0 is_complex is_conj "
    "is_distributed is_floating_point is_inference is_neg is_signed is_tensor isfinite isinf isnan isneginf isposinf "
    "lgamma logical_not msort nan_to_num nanmean nansum neg negative nonzero norm numel ones_like positive "
    "rad2deg ravel real reciprocal relu resolve_conj resolve_neg rot90 round selu sgn sigmoid sign signbit sin sinc "
    "sinh square squeeze squeeze_copy std std_mean sum t t_copy tan tanh trapezoid trapz tril triu trunc unbind "
    "unbind_copy var var_mean zeros_like all any diag diagonal diagonal_copy amax amin aminmax argmax argmin argsort "
    "max mean median min nanmedian prod unique unique_consecutive hash_tensor"
)
OF_TWO = (
    "add allclose arctan2 atan2 copysign div divide eq equal floor_divide fmax fmin fmod ge greater "
    "greater_equal gt hypot is_same_size isclose ldexp le less less_equal logaddexp logaddexp2 lt maximum minimum mul "
    "multiply ne nextafter not_equal remainder rsub sub subtract true_divide pairwise_distance cosine_similarity "
    "result_type logical_and logical_or logical_xor dist isin"
)

TORCH: dict[str, Call] = by_name(
    {
        OF_ONE: lambda f, t: f(t.x),
        OF_TWO: lambda f, t: f(t.x, t.x),
        "acos arccos arcsin asin arctanh atanh erfinv log log10 log1p log2 logit rsqrt sqrt": lambda f, t: f(t.p),
        "float_power": lambda f, t: f(t.normal(3, 4, dtype=torch.float64), 3),
        "typename": lambda f, t: f(t.x).split(".")[-1],
        "get_device": lambda f, t: f(t.x) == (-1 if t.place == "cpu" else t.x.device.index),
        "acosh arccosh": lambda f, t: f(1 + t.p),
        "bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift gcd lcm": lambda f, t: f(t.i, t.i),
        "bitwise_not bincount": lambda f, t: f(t.i.flatten()),
        "imag view_as_real view_as_real_copy": lambda f, t: f(t.z),
        "view_as_complex view_as_complex_copy": lambda f, t: f(t.normal(3, 4, 2)),
        "complex polar": lambda f, t: f(t.x, t.x),
        "heaviside": lambda f, t: f(t.x.round(), t.x),
        "igamma igammac xlogy": lambda f, t: f(t.p, t.p),
        "polygamma": lambda f, t: f(2, t.p),
        "mvlgamma": lambda f, t: f(t.p + 2, 2),
        "pow": lambda f, t: f(t.p, t.x),
        "clamp clip": lambda f, t: f(t.x, -0.5, 0.5),
        "clamp_max clamp_min": lambda f, t: f(t.x, 0.25),
        "threshold": lambda f, t: f(t.x, 0.1, 20.0),
        "fill": lambda f, t: f(t.x, 2.0),
        "zero_": lambda f, t: f(t.x),
        "resize_as_": lambda f, t: f(t.x, t.x),
        "lerp": lambda f, t: f(t.x, t.x, 0.3),
        "addcdiv": lambda f, t: f(t.x, t.x, t.p),
        "addcmul": lambda f, t: f(t.x, t.x, t.x),
        "where": lambda f, t: f(t.b, t.x, t.x),
        "masked_fill": lambda f, t: f(t.x, t.b, 1.5),
        "masked_scatter": lambda f, t: f(t.x, t.b, t.x),
        "masked_select": lambda f, t: f(t.x, t.b),
        "is_nonzero": lambda f, t: f(t.normal(1)),
        "isreal": lambda f, t: f(t.z),
        # products
        "addbmm": lambda f, t: f(t.x, t.normal(2, 3, 5), t.normal(2, 5, 4)),
        "addmm": lambda f, t: f(t.x, t.normal(3, 5), t.normal(5, 4)),
        "addmv": lambda f, t: f(t.normal(3), t.x, t.v),
        "addr": lambda f, t: f(t.x, t.normal(3), t.v),
        "baddbmm": lambda f, t: f(t.normal(2, 3, 4), t.normal(2, 3, 5), t.normal(2, 5, 4)),
        "bmm": lambda f, t: f(t.normal(2, 3, 5), t.normal(2, 5, 4)),
        "mm matmul": lambda f, t: f(t.x, t.m),
        "mv": lambda f, t: f(t.x, t.v),
        "dot inner vdot outer ger kron": lambda f, t: f(t.v, t.v),
        "chain_matmul": lambda f, t: f(t.x, t.m, t.m),
        "einsum": lambda f, t: f("ij,jk->ki", t.x, t.m),
        "tensordot": lambda f, t: f(t.x, t.x, 2),
        "bilinear": lambda f, t: f(t.x, t.normal(3, 5), t.normal(2, 4, 5), t.normal(2)),
        "cross": lambda f, t: f(t.x, t.x, dim=0),
        "cartesian_prod": lambda f, t: f(t.v, t.normal(3)),
        "combinations vander": lambda f, t: f(t.v),
        # along dimensions
        "trace": lambda f, t: f(t.x),
        "cummax cummin cumprod cumsum logcumsumexp logsumexp softmax log_softmax": lambda f, t: f(t.x, 1),
        "cumulative_trapezoid diff gradient": lambda f, t: f(t.x),
        "count_nonzero": lambda f, t: f(t.i - 3, 1),
        "kthvalue": lambda f, t: f(t.apart(3, 4), 2),
        "mode": lambda f, t: f(t.i),
        "quantile nanquantile": lambda f, t: f(t.x, 0.3),
        "sort": lambda f, t: f(t.apart(3, 4)),
        "topk": lambda f, t: f(t.apart(3, 4), 2),
        "renorm": lambda f, t: f(t.x, 2, 0, 1.0),
        "histc": lambda f, t: f(t.p, 5, 0, 1),
        "histogram": lambda f, t: f(t.p, 5, range=(0.0, 1.0)),
        "histogramdd": lambda f, t: f(t.uniform(9, 2), [2, 3]),
        "bucketize": lambda f, t: f(t.x, t.on([-1.0, 0.0, 1.0])),
        "searchsorted": lambda f, t: f(t.on([-1.0, 0.0, 1.0]), t.x),
        "segment_reduce": lambda f, t: f(t.x, "sum", lengths=t.on([1, 2])),
        "norm_except_dim": lambda f, t: f(t.x, 2, 0),
        "frobenius_norm": lambda f, t: f(t.x, [1], False),
        "nuclear_norm": lambda f, t: f(t.x),
        "native_norm": lambda f, t: f(t.sparse()),
        "cdist": lambda f, t: f(t.x, t.x),
        "pdist": lambda f, t: f(t.x),
        # shapes
        "as_strided as_strided_copy": lambda f, t: f(t.x, (2, 2), (1, 3)),
        "as_strided_scatter": lambda f, t: f(t.x, t.normal(2, 2), (2, 2), (1, 3)),
        "as_strided_": lambda f, t: f(t.x, (2, 2), (1, 3)),
        "block_diag": lambda f, t: f(t.x, t.v),
        "broadcast_tensors": lambda f, t: f(t.x, t.v),
        "broadcast_to expand_copy": lambda f, t: f(t.v, (3, 4)),
        "cat concat concatenate column_stack dstack hstack row_stack stack vstack": lambda f, t: f((t.x, t.x)),
        "chunk tensor_split unsafe_chunk split split_copy unsafe_split hsplit": lambda f, t: f(t.x, 2),
        "vsplit": lambda f, t: f(t.x, 3),
        "dsplit": lambda f, t: f(t.normal(2, 2, 4), 2),
        "split_with_sizes split_with_sizes_copy unsafe_split_with_sizes": lambda f, t: f(t.x, [1, 3], 1),
        "diagonal_scatter": lambda f, t: f(t.m, t.v),
        "flip": lambda f, t: f(t.x, (0, 1)),
        "roll": lambda f, t: f(t.x, 1, 1),
        "meshgrid": lambda f, t: f(t.v, t.normal(3), indexing="ij"),
        "moveaxis movedim swapaxes swapdims transpose transpose_copy": lambda f, t: f(t.x, 0, 1),
        "narrow narrow_copy": lambda f, t: f(t.x, 1, 1, 2),
        "permute permute_copy": lambda f, t: f(t.x, (1, 0)),
        "repeat_interleave": lambda f, t: f(t.x, 2, 1),
        "reshape view_copy": lambda f, t: f(t.x, (2, 6)),
        "select select_copy": lambda f, t: f(t.x, 1, 2),
        "select_scatter": lambda f, t: f(t.x, t.v, 0, 1),
        "slice_copy": lambda f, t: f(t.x, 1, 0, 4, 2),
        "slice_scatter": lambda f, t: f(t.x, t.normal(3, 2), 1, 0, 4, 2),
        "slice_inverse": lambda f, t: f((y := t.x)[:, 1:3], y, 1, 1, 3, 1),
        "tile": lambda f, t: f(t.x, (2, 1)),
        "unflatten": lambda f, t: f(t.x, 1, (2, 2)),
        "unfold_copy": lambda f, t: f(t.x, 1, 2, 1),
        "unsqueeze unsqueeze_copy": lambda f, t: f(t.x, 1),
        "constant_pad_nd": lambda f, t: f(t.x, (1, 2), 0.5),
        "channel_shuffle native_channel_shuffle pixel_shuffle pixel_unshuffle": lambda f, t: f(t.image, 2),
        # places
        "gather": lambda f, t: f(t.x, 1, t.integers(4, 3, 2)),
        "take_along_dim": lambda f, t: f(t.x, t.integers(4, 3, 2), 1),
        "take": lambda f, t: f(t.x, t.integers(12, 5)),
        "put": lambda f, t: f(t.x, t.on([3, 7]), t.normal(2)),
        "index_add index_copy": lambda f, t: f(t.x, 0, t.on([2, 0]), t.normal(2, 4)),
        "index_fill": lambda f, t: f(t.x, 0, t.places, 2.0),
        "index_put": lambda f, t: f(t.x, (t.on([2, 0]), t.on([1, 3])), t.normal(2)),
        "index_reduce": lambda f, t: f(t.x, 0, t.places, t.x, "amax"),
        "index_select": lambda f, t: f(t.x, 0, t.places),
        "scatter": lambda f, t: f(t.x, 1, t.on([[0, 1], [2, 3], [1, 0]]), t.normal(3, 2)),
        "scatter_add": lambda f, t: f(t.x, 1, t.integers(4, 3, 2), t.normal(3, 2)),
        "scatter_reduce": lambda f, t: f(t.x, 1, t.integers(4, 3, 2), t.normal(3, 2), "prod"),
        "nonzero_static": lambda f, t: f(t.x, size=5),
        "unravel_index": lambda f, t: f(t.integers(12, 5), (3, 4)),
        # linear algebra
        "cholesky cholesky_inverse det inverse logdet slogdet pinverse": lambda f, t: f(t.definite()),
        "cholesky_solve": lambda f, t: f(t.x.mT, torch.linalg.cholesky(t.definite())),
        "geqrf": lambda f, t: [part.abs() for part in f(t.m)],
        "orgqr": lambda f, t: f(t.m, t.uniform(3)),
        "ormqr": lambda f, t: f(t.m, t.uniform(4), t.x.mT),
        "qr": lambda f, t: (lambda q, r: q @ r)(*f(t.m)),
        "svd": factors,
        "pca_lowrank svd_lowrank": lambda f, t: f(t.normal(6, 4))[1],
        "lobpcg": lambda f, t: f(t.on([9.0, 5.0, 3.0, 2.0, 1.0, 0.5, 0.25]).diag(), k=1, niter=60)[0],
        "lu": lambda f, t: f(t.m),
        "lu_solve": lambda f, t: f(t.x.mT, *torch.linalg.lu_factor(t.m)),
        "lu_unpack": lambda f, t: f(*torch.linalg.lu_factor(t.m)),
        "matrix_exp": lambda f, t: f(t.m),
        "matrix_power": lambda f, t: f(t.m, 3),
        "triangular_solve": lambda f, t: f(t.x.mT, t.m.triu()),
        # networks
        "adaptive_avg_pool1d adaptive_max_pool1d": lambda f, t: f(t.line, 3),
        "avg_pool1d max_pool1d max_pool1d_with_indices": lambda f, t: f(t.line, 2),
        "max_pool2d": lambda f, t: f(t.image, 2),
        "max_pool3d": lambda f, t: f(t.volume, 2),
        "affine_grid_generator": lambda f, t: f(t.normal(2, 2, 3), (2, 1, 4, 5), False),
        "batch_norm": lambda f, t: f(t.image, t.v, t.v, t.v, t.uniform(4), True, 0.1, 1e-5, False),
        "native_batch_norm": lambda f, t: f(t.image, t.v, t.v, t.v, t.uniform(4), True, 0.1, 1e-5),
        "batch_norm_update_stats": lambda f, t: f(t.image, t.v, t.uniform(4), 0.1),
        "group_norm": lambda f, t: f(t.image, 2, t.v, t.v),
        "native_group_norm": lambda f, t: f(t.image, t.v, t.v, 2, 4, 36, 2, 1e-5),
        "instance_norm": lambda f, t: f(t.image, t.v, t.v, t.v, t.uniform(4), True, 0.1, 1e-5, False),
        "layer_norm": lambda f, t: f(t.x, (4,), t.v, t.v),
        "native_layer_norm": lambda f, t: f(t.x, (4,), t.v, t.v, 1e-5),
        "rms_norm": lambda f, t: f(t.x, (4,), t.v),
        "conv1d": lambda f, t: f(t.line, t.normal(3, 4, 3)),
        "conv2d": lambda f, t: f(t.image, t.normal(3, 4, 3, 3)),
        "conv3d": lambda f, t: f(t.volume, t.normal(3, 2, 3, 3, 3)),
        "conv_tbc": lambda f, t: f(t.normal(8, 2, 4), t.normal(3, 4, 5), t.normal(5), 1),
        "conv_transpose1d": lambda f, t: f(t.line, t.normal(4, 3, 3)),
        "conv_transpose2d": lambda f, t: f(t.image, t.normal(4, 3, 3, 3)),
        "conv_transpose3d": lambda f, t: f(t.volume, t.normal(2, 3, 3, 3, 3)),
        "convolution": lambda f, t: f(t.image, t.normal(3, 4, 3, 3), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1),
        "embedding": lambda f, t: f(t.x, t.places),
        "embedding_bag": lambda f, t: f(t.x, t.places, t.on([0, 1]))[0],
        "embedding_renorm_": lambda f, t: f(t.x, t.places, 1.0, 2.0),
        "grid_sampler grid_sampler_2d": lambda f, t: f(t.image, t.normal(2, 3, 3, 2), 0, 0, False),
        "grid_sampler_3d": lambda f, t: f(t.volume, t.normal(1, 3, 3, 3, 3), 0, 0, False),
        "prelu": lambda f, t: f(t.x, t.v),
        "lstm": recurrent(4, 2),
        "gru": recurrent(3, 1),
        "rnn_tanh rnn_relu": recurrent(1, 1),
        "lstm_cell": recurrent_cell(4, 2),
        "gru_cell": recurrent_cell(3, 1),
        "rnn_tanh_cell rnn_relu_cell": recurrent_cell(1, 1),
        "binary_cross_entropy_with_logits": lambda f, t: f(t.x, t.p),
        "cosine_embedding_loss": lambda f, t: f(t.x, t.x, t.on([1.0, -1.0, 1.0])),
        "margin_ranking_loss": lambda f, t: f(t.normal(3), t.normal(3), t.on([1.0, -1.0, 1.0])),
        "ctc_loss": lambda f, t: f(
            t.normal(6, 2, 5).log_softmax(2), t.integers(4, 2, 3) + 1, t.on([6, 5]), t.on([3, 2])
        ),
        "hinge_embedding_loss": lambda f, t: f(t.x, t.x.sign()),
        "kl_div": lambda f, t: f(t.x, t.p),
        "poisson_nll_loss": lambda f, t: f(t.x, t.p, True, False, 1e-8, 1),
        "triplet_margin_loss": lambda f, t: f(t.x, t.x, t.x),
        "rrelu": lambda f, t: f(t.x, 0.1, 0.3, False),
        "stft": lambda f, t: f(t.normal(64), 16, window=t.uniform(16), return_complex=True),
        "istft": lambda f, t: f(t.normal(9, 5, dtype=torch.complex64), 16, window=t.uniform(16)),
        "choose_qparams_optimized": lambda f, t: f(t.normal(64), 64, 200, 0.16, 8),
        "fake_quantize_per_tensor_affine": lambda f, t: f(t.x, 0.1, 3, 0, 255),
        "fake_quantize_per_channel_affine": lambda f, t: f(t.x, t.uniform(4), t.on([1, 2, 3, 4]).int(), 1, 0, 255),
        "fused_moving_avg_obs_fake_quant": lambda f, t: f(
            t.x, t.on([1]), t.on([1]), t.on([-1.0]), t.on([1.0]), t.on([1.0]), t.on([0]).int(), 0.01, 0, 255, 0
        ),
        # tensors made of numbers
        "arange range": lambda f, t: f(1, 9, 2, device=t.place),
        "linspace logspace": lambda f, t: f(0, 3, 7, device=t.place),
        "bartlett_window blackman_window hamming_window hann_window kaiser_window": lambda f, t: [
            f(n, periodic, device=t.place) for n in (0, 1, 2, 5, 64) for periodic in (True, False)
        ],
        "empty": lambda f, t: f(3, 4, device=t.place).zero_(),
        "empty_like": lambda f, t: f(t.x).zero_(),
        "empty_permuted empty_strided": lambda f, t: f((3, 4), (1, 0), device=t.place).zero_(),
        "eye": lambda f, t: f(3, 4, device=t.place),
        "full": lambda f, t: f((3, 4), 2.5, device=t.place),
        "full_like": lambda f, t: f(t.x, 2.5),
        "ones zeros": lambda f, t: f(3, 4, device=t.place),
        "scalar_tensor": lambda f, t: f(2.5, device=t.place),
        "tril_indices triu_indices": lambda f, t: f(3, 4, device=t.place),
        "tensor as_tensor asarray": lambda f, t: f([[1.0, 2.0], [3.0, 4.0]], device=t.place),
        "from_dlpack": lambda f, t: f(t.x),
        "to_dlpack": lambda f, t: torch.from_dlpack(f(t.x)),
        # sparse tensors
        "sparse_coo_tensor": lambda f, t: f(t.on([[0, 1], [2, 0]]), t.normal(2), (2, 3)),
        "sparse_csr_tensor": lambda f, t: f(t.on([0, 1, 2]), t.on([2, 0]), t.normal(2), (2, 3)),
        "sparse_csc_tensor": lambda f, t: f(t.on([0, 1, 2]), t.on([2, 0]), t.normal(2), (3, 2)),
        "sparse_bsr_tensor sparse_bsc_tensor": lambda f, t: f(t.on([0, 1]), t.on([0]), t.normal(1, 2, 2), (2, 2)),
        "sparse_compressed_tensor": lambda f, t: f(
            t.on([0, 1, 2]), t.on([2, 0]), t.normal(2), (2, 3), layout=torch.sparse_csr
        ),
        "smm spmm dsmm hspmm hsmm": lambda f, t: f(t.sparse(), t.x),
        "saddmm sspaddmm": lambda f, t: f(t.normal(2, 4).to_sparse(), t.sparse(), t.x),
        "resize_as_sparse_": lambda f, t: f(t.sparse(), t.sparse()),
        "ccol_indices_copy row_indices_copy": lambda f, t: f(t.compressed().to_sparse_csc()),
        "crow_indices_copy col_indices_copy values_copy": lambda f, t: f(t.compressed()),
        # functions of functions
        "cond": lambda f, t: f(t.on(True), lambda x: x + 1, lambda x: x - 1, (t.x,)),
        "while_loop": lambda f, t: f(lambda n, x: n < 3, lambda n, x: (n + 1, x * 2), (t.on(0), t.x)),
        "vmap": lambda f, t: f(torch.dot)(t.x, t.x),
        "fork wait": lambda f, t: torch.jit.wait(torch.jit.fork(torch.add, t.x, t.x)),
        "save load": saved,
    }
)

NO_TENSORS = {
    "settings of torch, and what asks for them": (
        "are_deterministic_algorithms_enabled autocast_decrement_nesting autocast_increment_nesting "
        "clear_autocast_cache compiled_with_cxx11_abi get_autocast_cpu_dtype get_autocast_dtype get_autocast_gpu_dtype "
        "get_autocast_ipu_dtype get_autocast_xla_dtype get_default_device get_default_dtype "
        "get_deterministic_debug_mode get_device_module get_file_path get_float32_matmul_precision "
        "get_num_interop_threads get_num_threads init_num_threads is_anomaly_check_nan_enabled is_anomaly_enabled "
        "is_autocast_cache_enabled is_autocast_cpu_enabled is_autocast_enabled is_autocast_ipu_enabled "
        "is_autocast_xla_enabled is_deterministic_algorithms_warn_only_enabled is_grad_enabled "
        "is_inference_mode_enabled is_vulkan_available is_warn_always_enabled prepare_multiprocessing_environment "
        "profiler_allow_cudagraph_cupti_lazy_reinit_cuda12 set_anomaly_enabled set_autocast_cache_enabled "
        "set_autocast_cpu_dtype set_autocast_cpu_enabled set_autocast_dtype set_autocast_enabled "
        "set_autocast_gpu_dtype set_autocast_ipu_dtype set_autocast_ipu_enabled set_autocast_xla_dtype "
        "set_autocast_xla_enabled set_default_device set_default_dtype set_default_tensor_type "
        "set_deterministic_debug_mode set_float32_matmul_precision set_flush_denormal set_num_interop_threads "
        "set_num_threads set_printoptions set_warn_always use_deterministic_algorithms"
    ),
    "of dtypes, shapes and symbolic numbers": (
        "broadcast_shapes can_cast promote_types sym_constrain_range sym_constrain_range_for_size sym_float "
        "sym_fresh_size sym_int sym_ite sym_max sym_min sym_not sym_sqrt sym_sum"
    ),
    "of TorchScript and other programs": (
        "classproperty compile import_ir_module import_ir_module_from_buffer merge_type_from_type_comment parse_ir "
        "parse_schema parse_type_comment unify_type_list is_storage"
    ),
    "generators of the CPU": "get_rng_state initial_seed manual_seed seed set_rng_state thread_safe_generator",
    "makes tensors of the host's memory": "from_file from_numpy frombuffer",
}
OF_OTHER_DEVICES = {
    "CUDA's and ROCm's": (
        "batch_norm_backward_elemt batch_norm_backward_reduce batch_norm_elemt batch_norm_gather_stats "
        "batch_norm_gather_stats_with_counts batch_norm_stats cudnn_affine_grid_generator cudnn_batch_norm "
        "cudnn_convolution cudnn_convolution_add_relu cudnn_convolution_relu cudnn_convolution_transpose "
        "cudnn_grid_sampler cudnn_is_acceptable miopen_batch_norm miopen_convolution miopen_convolution_add_relu "
        "miopen_convolution_relu miopen_convolution_transpose miopen_ctc_loss miopen_depthwise_convolution miopen_rnn"
    ),
    "of the CPU's libraries": (
        "fbgemm_linear_fp16_weight fbgemm_linear_fp16_weight_fp32_activation fbgemm_linear_int8_weight "
        "fbgemm_linear_int8_weight_fp32_activation fbgemm_linear_quantize_weight fbgemm_pack_gemm_matrix_fp16 "
        "fbgemm_pack_quantized_matrix mkldnn_adaptive_avg_pool2d mkldnn_convolution mkldnn_linear_backward_weights "
        "mkldnn_max_pool2d mkldnn_max_pool3d mkldnn_rnn_layer"
    ),
    "of quantized tensors, which a PrivateUse1 device has not": (
        "dequantize empty_quantized int_repr q_per_channel_axis q_per_channel_scales q_per_channel_zero_points q_scale "
        "q_zero_point quantize_per_channel quantize_per_tensor quantize_per_tensor_dynamic quantized_batch_norm "
        "quantized_gru quantized_gru_cell quantized_lstm quantized_lstm_cell quantized_max_pool1d quantized_max_pool2d "
        "quantized_max_pool3d quantized_rnn_relu_cell quantized_rnn_tanh_cell"
    ),
}
REMOVED = {
    "torch has taken it away, it only raises": "eig lstsq matrix_rank solve symeig",
    "torch has it for no sparse tensor, not on the CPU either": "indices_copy",
}

# ---- torch.nn.functional ----

FUNCTIONAL: dict[str, Call] = by_name(
    {
        (
            "celu elu gelu glu hardshrink hardsigmoid hardswish hardtanh leaky_relu logsigmoid mish normalize relu "
            "relu6 selu sigmoid silu softplus softshrink softsign tanh tanhshrink pdist"
        ): lambda f, t: f(t.x),
        "softmax softmin log_softmax": lambda f, t: f(t.x, 1),
        "threshold": lambda f, t: f(t.x, 0.1, 20.0),
        "rrelu": lambda f, t: f(t.x, 0.1, 0.3),
        "prelu": lambda f, t: f(t.x, t.v),
        "linear": lambda f, t: f(t.x, t.m, t.v),
        "bilinear": TORCH["bilinear"],
        "adaptive_avg_pool1d adaptive_max_pool1d adaptive_max_pool1d_with_indices": lambda f, t: f(t.line, 3),
        "adaptive_avg_pool2d adaptive_max_pool2d adaptive_max_pool2d_with_indices": lambda f, t: f(t.image, 4),
        "adaptive_avg_pool3d adaptive_max_pool3d adaptive_max_pool3d_with_indices": lambda f, t: f(t.volume, 3),
        "avg_pool1d max_pool1d max_pool1d_with_indices": lambda f, t: f(t.line, 2),
        "avg_pool2d max_pool2d max_pool2d_with_indices": lambda f, t: f(t.image, 2),
        "avg_pool3d max_pool3d max_pool3d_with_indices": lambda f, t: f(t.volume, 2),
        "fractional_max_pool2d fractional_max_pool2d_with_indices": lambda f, t: f(
            t.image, 2, output_size=3, _random_samples=t.uniform(2, 4, 2)
        ),
        "fractional_max_pool3d fractional_max_pool3d_with_indices": lambda f, t: f(
            t.volume, 2, output_size=2, _random_samples=t.uniform(1, 2, 3)
        ),
        "lp_pool1d": lambda f, t: f(t.line, 2, 2),
        "lp_pool2d": lambda f, t: f(t.image, 2, 2),
        "lp_pool3d": lambda f, t: f(t.volume, 2, 2),
        "max_unpool1d": unpooled(1),
        "max_unpool2d": unpooled(2),
        "max_unpool3d": unpooled(3),
        "conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d": lambda f, t: TORCH[
            f.__name__
        ](f, t),
        "fold": lambda f, t: f(t.normal(2, 12, 9), (4, 4), 2),
        "unfold": lambda f, t: f(t.image, 2),
        "affine_grid": lambda f, t: f(t.normal(2, 2, 3), [2, 1, 4, 5], align_corners=False),
        "grid_sample": lambda f, t: f(t.image, t.normal(2, 3, 3, 2), align_corners=False),
        "interpolate": lambda f, t: [
            f(t.image, scale_factor=1.5, mode=mode)
            for mode in ("nearest", "nearest-exact", "bilinear", "bicubic", "area")
        ],
        "upsample upsample_nearest upsample_bilinear": lambda f, t: f(t.image, 9),
        "pad": lambda f, t: (
            [f(t.image, (1, 2), value=0.5)]
            + [f(t.image, (1, 2, 1, 0), mode=mode) for mode in ("reflect", "replicate", "circular")]
        ),
        "channel_shuffle native_channel_shuffle pixel_shuffle pixel_unshuffle": lambda f, t: f(t.image, 2),
        "batch_norm": lambda f, t: f(t.image, t.v, t.uniform(4), t.v, t.v, True),
        "instance_norm": lambda f, t: f(t.image, t.v, t.uniform(4), t.v, t.v),
        "group_norm": lambda f, t: f(t.image, 2, t.v, t.v),
        "layer_norm": lambda f, t: f(t.x, (4,), t.v, t.v),
        "rms_norm": lambda f, t: f(t.x, (4,), t.v),
        "local_response_norm": lambda f, t: f(t.image, 3),
        "embedding": lambda f, t: f(t.places, t.x),
        "embedding_bag": lambda f, t: f(t.places, t.x, t.on([0, 1])),
        "one_hot": lambda f, t: f(t.places),
        "cosine_similarity pairwise_distance l1_loss mse_loss huber_loss smooth_l1_loss": lambda f, t: f(t.x, t.x),
        "binary_cross_entropy": lambda f, t: f(t.p, t.p),
        "binary_cross_entropy_with_logits": lambda f, t: f(t.x, t.p),
        "cosine_embedding_loss": TORCH["cosine_embedding_loss"],
        "margin_ranking_loss": TORCH["margin_ranking_loss"],
        "cross_entropy multi_margin_loss": lambda f, t: f(t.x, t.places),
        "nll_loss": lambda f, t: f(t.x.log_softmax(1), t.places),
        "linear_cross_entropy": lambda f, t: f(t.x, t.normal(5, 4), t.places),
        "ctc_loss": TORCH["ctc_loss"],
        "gaussian_nll_loss": lambda f, t: f(t.x, t.x, t.p),
        "hinge_embedding_loss soft_margin_loss": lambda f, t: f(t.x, t.x.sign()),
        "kl_div": lambda f, t: f(t.x, t.p, reduction="batchmean"),
        "multilabel_margin_loss": lambda f, t: f(t.x, t.on([[3, 0, -1, 1]] * 3)),
        "multilabel_soft_margin_loss": lambda f, t: f(t.x, t.b.float()),
        "poisson_nll_loss": lambda f, t: f(t.x, t.p),
        "triplet_margin_loss triplet_margin_with_distance_loss": lambda f, t: f(t.x, t.x, t.x),
        "multi_head_attention_forward": attention,
        "scaled_dot_product_attention": lambda f, t: f(*(t.normal(2, 2, 6, 8) for _ in range(3))),
        "grouped_mm": lambda f, t: f(
            t.normal(16, 16, dtype=torch.bfloat16), t.normal(2, 16, 16, dtype=torch.bfloat16), offs=t.on([8, 16]).int()
        ),
    }
)
NOT_FUNCTIONAL = {
    "parts of other functions": (
        "assert_int_or_pair boolean_dispatch handle_torch_function has_torch_function has_torch_function_unary "
        "has_torch_function_variadic Optional"
    ),
    "float8, with scales as CUDA has them": "scaled_addmm scaled_addmm_ scaled_grouped_mm scaled_mm",
}

# ---- torch.special, torch.signal.windows, torch.linalg, torch.fft ----

SPECIAL: dict[str, Call] = by_name(
    {
        (
            "airy_ai bessel_j0 bessel_j1 bessel_y0 bessel_y1 digamma entr erf erfc erfcx erfinv exp2 expit expm1 "
            "gammaln i0 i0e i1 i1e log1p log_ndtr logit modified_bessel_i0 modified_bessel_i1 modified_bessel_k0 "
            "modified_bessel_k1 ndtr ndtri psi round scaled_modified_bessel_k0 scaled_modified_bessel_k1 sinc "
            "spherical_bessel_j0"
        ): lambda f, t: f(t.p),
        (
            "chebyshev_polynomial_t chebyshev_polynomial_u chebyshev_polynomial_v chebyshev_polynomial_w "
            "hermite_polynomial_h hermite_polynomial_he laguerre_polynomial_l legendre_polynomial_p "
            "shifted_chebyshev_polynomial_t shifted_chebyshev_polynomial_u shifted_chebyshev_polynomial_v "
            "shifted_chebyshev_polynomial_w"
        ): lambda f, t: [f(t.p, t.i), f(t.p, 3), f(0.3, t.i)],
        "gammainc gammaincc": lambda f, t: f(t.p, t.p),
        "xlog1py xlogy": lambda f, t: [f(t.p, t.p), f(2, t.p), f(t.p, 2)],
        "zeta": lambda f, t: [f(t.p + 2, t.p), f(2, t.p), f(t.p + 2, 2)],
        "logsumexp softmax log_softmax": lambda f, t: f(t.x, 1),
        "multigammaln": lambda f, t: f(t.p + 2, 2),
        "polygamma": lambda f, t: f(2, t.p),
    }
)

WINDOWS: dict[str, Call] = by_name(
    {
        "bartlett blackman cosine exponential gaussian hamming hann kaiser nuttall": lambda f, t: [
            f(n, sym=symmetric, device=t.place) for n in (0, 1, 2, 5, 64) for symmetric in (True, False)
        ],
        "general_cosine": lambda f, t: f(7, a=[0.5, 0.3, 0.2], device=t.place),
        "general_hamming": lambda f, t: f(7, alpha=0.6, device=t.place),
    }
)

LINALG: dict[str, Call] = by_name(
    {
        "cholesky cholesky_ex eigvalsh inv_ex pinv matrix_rank": lambda f, t: f(t.definite(2)),
        "cond det inv matrix_exp matrix_norm norm slogdet svdvals diagonal": lambda f, t: f(t.m),
        "cross": lambda f, t: f(t.normal(4, 3), t.normal(4, 3)),
        "eig": lambda f, t: (lambda values, vectors: vectors @ values.diag() @ vectors.inverse())(*f(t.m)),
        "eigh": lambda f, t: (lambda values, vectors: vectors @ values.diag() @ vectors.mT)(*f(t.definite())),
        "eigvals": lambda f, t: f(t.m).abs().sort().values,
        "householder_product": lambda f, t: f(t.m, t.uniform(3)),
        "ldl_factor ldl_factor_ex": lambda f, t: f(t.definite()),
        "ldl_solve": lambda f, t: f(*torch.linalg.ldl_factor(t.definite()), t.x.mT),
        "lstsq": lambda f, t: f(t.normal(6, 4), t.normal(6, 2)).solution,
        "lu lu_factor lu_factor_ex": lambda f, t: f(t.m),
        "lu_solve": lambda f, t: f(*torch.linalg.lu_factor(t.m), t.x.mT),
        "matmul": lambda f, t: f(t.x, t.m),
        "matrix_power": lambda f, t: f(t.m, 3),
        "matrix_sqrth polar": lambda f, t: f(t.definite()),
        "multi_dot": lambda f, t: f([t.x, t.m, t.m]),
        "qr": lambda f, t: (lambda q, r: q @ r)(*f(t.m)),
        "solve solve_ex": lambda f, t: f(t.m, t.x.mT),
        "solve_triangular": lambda f, t: f(t.m.triu(), t.x.mT, upper=True),
        "svd": lambda f, t: (lambda u, s, v: u @ s.diag() @ v)(*f(t.m)),
        "tensorinv": lambda f, t: f(t.m.view(2, 2, 4), ind=2),
        "tensorsolve": lambda f, t: f(t.m.view(2, 2, 4), t.normal(2, 2)),
        "vander vector_norm": lambda f, t: f(t.v),
        "vecdot": lambda f, t: f(t.x, t.x),
    }
)

FFT: dict[str, Call] = by_name(
    {
        "fft fft2 fftn ifft ifft2 ifftn hfft hfft2 hfftn irfft irfft2 irfftn fftshift ifftshift": lambda f, t: f(t.z),
        "rfft rfft2 rfftn ihfft ihfft2 ihfftn": lambda f, t: f(t.x),
        "fftfreq rfftfreq": lambda f, t: [f(n, 0.5, device=t.place) for n in (1, 2, 5, 8)],
    }
)

# ---- methods of tensors ----


def attribute(f: Any, t: Tensors) -> Any:
    return f.__get__(t.x)


def gradient_of(f: Any, t: Tensors) -> Any:
    x = t.x.requires_grad_()
    f((x * x).sum())
    return x.grad


def hooked(f: Any, t: Tensors) -> Any:
    """What hooks of a gradient are given."""
    x, seen = t.x.requires_grad_(), []
    f(x, lambda given: seen.append(given.clone()))
    (x * x).sum().backward()
    return seen


def retained(f: Any, t: Tensors) -> Any:
    y = t.x.requires_grad_() * 2
    f(y)
    y.sum().backward()
    return y.grad


METHODS: dict[str, Call] = TORCH | by_name(
    {
        (
            "H T mH mT data real ndim nbytes itemsize dtype layout is_leaf is_sparse is_sparse_csr is_nested shape "
            "is_quantized is_meta is_mkldnn is_cuda is_ipu is_maia is_mps is_mtia is_vulkan is_xla is_xpu name "
            "output_nr grad grad_dtype grad_fn requires_grad retains_grad"
        ): attribute,
        "imag": lambda f, t: f.__get__(t.z),
        "device": lambda f, t: torch.empty(0, device=f.__get__(t.x)),
        (
            "bfloat16 bool byte cdouble cfloat chalf char double float half int long short contiguous cpu dim "
            "dim_order element_size is_contiguous is_distributed is_pinned nelement ndimension requires_grad_ "
            "size storage_offset stride tolist to_sparse to_sparse_coo to_sparse_csr to_sparse_csc"
        ): lambda f, t: f(t.x),
        "to_sparse_bsr to_sparse_bsc": lambda f, t: f(t.x, (1, 2)),
        "is_set_to copy_ expand_as reshape_as type_as view_as resize_as set_": lambda f, t: f(t.x, t.x),
        "as_subclass": lambda f, t: f(t.x, torch.nn.Parameter).data,
        "backward": gradient_of,
        "expand": lambda f, t: f(t.v, (3, 4)),
        "fill_diagonal_": lambda f, t: f(t.x, 2.0),
        "item": lambda f, t: f(t.v[1]),
        "module_load": lambda f, t: f(t.x, t.x),
        "new": lambda f, t: f(t.x, 3, 4).zero_(),
        "new_empty": lambda f, t: f(t.x, (3, 4)).zero_(),
        "new_empty_strided": lambda f, t: f(t.x, (3, 4), (1, 3)).zero_(),
        "new_full": lambda f, t: f(t.x, (3, 4), 2.5),
        "new_ones new_zeros": lambda f, t: f(t.x, (3, 4)),
        "new_tensor": lambda f, t: f(t.x, [1.0, 2.0]),
        "polygamma": lambda f, t: f(t.p, 2),
        "register_hook register_post_accumulate_grad_hook": hooked,
        "repeat": lambda f, t: f(t.x, 2, 1),
        "resize resize_": lambda f, t: f(t.x, 2, 6),
        "retain_grad": retained,
        "sum_to_size": lambda f, t: f(t.x, 1, 4),
        "to": lambda f, t: f(t.x, torch.float64),
        "type": lambda f, t: f(t.x, torch.float64),
        "unfold": lambda f, t: f(t.x, 1, 2, 1),
        "view": lambda f, t: f(t.x, 2, 6),
        "where": lambda f, t: f(t.x, t.b, t.x),
        "coalesce is_coalesced dense_dim sparse_dim to_dense": lambda f, t: f(t.sparse()),
        "indices": lambda f, t: f(t.sparse().coalesce()),
        "crow_indices col_indices values": lambda f, t: f(t.compressed()),
        "ccol_indices row_indices": lambda f, t: f(t.compressed().to_sparse_csc()),
        "sparse_mask": lambda f, t: f(t.normal(2, 3), t.sparse().coalesce()),
        "sparse_resize_ sparse_resize_and_clear_": lambda f, t: f(t.sparse(), (3, 4), 2, 0),
        "to_padded_tensor": lambda f, t: f(torch.nested.nested_tensor([t.normal(2, 3), t.normal(4, 3)]), 0.5),
    }
)
NO_METHODS = {
    "addresses and storages, of which other tests are": (
        "const_data_ptr data_ptr record_stream share_memory_ is_shared storage storage_type untyped_storage pin_memory"
    ),
    "torch has them for the CPU only": "apply_ map_ map2_ numpy to_mkldnn",
    "of functorch's first-class dimensions": "index",
    "other devices": "cuda ipu mtia xpu is_cpu",
    "the device's own": "ocl is_ocl",
    "of quantized tensors": (
        "dequantize int_repr q_per_channel_axis q_per_channel_scales q_per_channel_zero_points q_scale q_zero_point "
        "qscheme"
    ),
    "torch has taken it away, it only raises": "eig lstsq reinforce solve symeig volatile",
}

# ---- random numbers ----

RANDOM: dict[str, Call] = by_name(
    {
        "alpha_dropout dropout feature_alpha_dropout feature_dropout native_dropout": lambda f, t: f(t.many, 0.3, True),
        "dropout1d": lambda f, t: f(t.many.view(100, 100, 2), 0.3),
        "dropout2d": lambda f, t: f(t.many.view(100, 100, 2, 1), 0.3),
        "dropout3d": lambda f, t: f(t.many.view(100, 100, 2, 1, 1), 0.3),
        "gumbel_softmax": lambda f, t: f(t.many.view(-1, 2)),
        "bernoulli": lambda f, t: f(t.many * 0.3),
        "binomial": lambda f, t: f(t.many * 10, t.many * 0.3),
        "multinomial": lambda f, t: f(t.on([1.0, 2.0, 3.0]), 20000, True),
        "normal": lambda f, t: f(t.many, 2.0),
        "poisson": lambda f, t: f(t.many * 4),
        "rand randn": lambda f, t: f(100, 200, device=t.place),
        "rand_like randn_like": lambda f, t: f(t.many),
        "randint": lambda f, t: f(50, (100, 200), device=t.place),
        "randint_like": lambda f, t: f(t.many, 50),
        "randperm": lambda f, t: f(20000, device=t.place),
        "bernoulli_ geometric_": lambda f, t: f(t.many, 0.3),
        "cauchy_ exponential_ log_normal_ normal_ uniform_": lambda f, t: f(t.many),
        "random_": lambda f, t: f(t.many, 0, 50),
    }
)

# ---- the tests ----

MODULES: list[tuple[str, Any, Calls, tuple[Mapping[str, str], ...]]] = [
    ("torch", torch, TORCH, (NO_TENSORS, OF_OTHER_DEVICES, REMOVED)),
    ("torch.nn.functional", F, FUNCTIONAL, (NOT_FUNCTIONAL,)),
    ("torch.special", torch.special, SPECIAL, ()),
    ("torch.signal.windows", torch.signal.windows, WINDOWS, ()),
    ("torch.linalg", torch.linalg, LINALG, ()),
    ("torch.fft", torch.fft, FFT, ()),
    ("torch.Tensor", torch.Tensor, METHODS, (NO_METHODS,)),
]


def public(module: Any) -> Iterator[str]:
    """The names of a module's functions, or of all that tensors have."""
    for name in dir(module):
        value = None if name.startswith("_") else getattr(module, name)
        if (module is torch.Tensor and not name.startswith("_")) or (callable(value) and not inspect.isclass(value)):
            yield name


def find(name: str, calls: Calls) -> Call | None:
    """The call of a name; what works in place is called as what does not, with tensors of its own."""
    return calls.get(name) or (calls.get(name[:-1]) if name.endswith("_") else None)


def functions(random: bool) -> Iterator[Any]:
    """A parameter for each function with a call of `RANDOM`, or of the table of its module."""
    for prefix, module, calls, _ in MODULES:
        for name in public(module):
            call = find(name, RANDOM)
            is_random = call is not None
            if is_random == random and (call := call or find(name, calls)) is not None:
                yield pytest.param(getattr(module, name), call, id=f"{prefix}.{name}")


def check(actual: Any, expected: Any) -> None:
    """Compares what a function gives on the device with what it gives on the CPU."""
    if isinstance(expected, torch.Tensor):
        assert isinstance(actual, torch.Tensor)
        assert actual.layout == expected.layout and actual.is_leaf == expected.is_leaf
        if expected.layout != torch.strided:
            actual, expected = actual.to_dense(), expected.to_dense()
        torch.testing.assert_close(actual.detach().cpu(), expected.detach(), rtol=1e-4, atol=1e-4, equal_nan=True)
    elif isinstance(expected, (list, tuple)):
        assert len(actual) == len(expected)
        for a, b in zip(actual, expected, strict=True):
            check(a, b)
    elif isinstance(expected, (numpy.ndarray, float)):
        numpy.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)
    elif isinstance(expected, torch.autograd.graph.Node):
        assert type(actual) is type(expected)
    else:
        assert actual == expected


def tensors_in(result: Any) -> Iterator[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        yield result
    elif isinstance(result, (list, tuple)):
        for item in result:
            yield from tensors_in(item)


GIVE_CPU_TENSORS = (torch.Tensor.cpu,)


@pytest.mark.thorough  # a kernel or two for each of 1,400 calls: minutes
@pytest.mark.parametrize(("function", "call"), list(functions(random=False)))
@pytest.mark.filterwarnings("ignore")
def test_as_on_the_cpu(function: Any, call: Call, device: str, seeded: int) -> None:
    expected = call(function, Tensors("cpu", seeded))
    actual = call(function, Tensors(device, seeded))
    check(actual, expected)
    for tensor in tensors_in(actual):
        assert tensor.device.type == torch.device(device).type or function in GIVE_CPU_TENSORS


# Two samples of this many numbers with one distribution are further apart once in a million times.
FURTHEST = 0.04


@pytest.mark.thorough
@pytest.mark.parametrize(("function", "call"), list(functions(random=True)))
@pytest.mark.filterwarnings("ignore")
def test_distributed_as_on_the_cpu(function: Any, call: Call, device: str, seeded: int) -> None:
    expected, *_ = tensors_in(call(function, Tensors("cpu", seeded)))
    actual, *_ = tensors_in(call(function, Tensors(device, seeded)))
    assert actual.device.type == torch.device(device).type
    assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype)
    # Kolmogorov's and Smirnov's distance, between the two samples' cumulative distributions.
    samples = [tensor.cpu().double().flatten().sort().values for tensor in (actual, expected)]
    points = torch.cat(samples)
    below, below_expected = (torch.searchsorted(s, points, right=True).double() / s.numel() for s in samples)
    assert (below - below_expected).abs().max().item() < FURTHEST


def test_every_name_has_a_call() -> None:
    for prefix, module, calls, reasons in MODULES:
        left_out = set().union(*map(names_of, reasons))
        without = [
            name
            for name in public(module)
            if name not in left_out and find(name, calls) is None and find(name, RANDOM) is None
        ]
        assert not without, (
            f"{prefix} has {', '.join(without)}, which tests/test_public_functions.py neither calls nor leaves out for "
            "a reason: give each a call in the table of its module"
        )


def test_sobol_engine_on_the_device(device: str) -> None:
    """torch's own private functions of it read memory as the host's, without waiting for kernels."""

    def call(place: str) -> Any:
        states, steps = torch.zeros(2, 3, 30, dtype=torch.int64, device=place)
        shifts = torch.ones(3, 30, 30, dtype=torch.int64, device=place).tril()
        torch._sobol_engine_initialize_state_(states, 3)
        torch._sobol_engine_scramble_(states, shifts, 3)
        first = steps[:, 0].clone()
        moved = torch._sobol_engine_ff_(first, 2, states, 3, 0)
        assert moved is first
        return states, moved, *torch._sobol_engine_draw(first, 4, states, 3, 2, dtype=torch.float32)

    for name in ("initialize_state_", "scramble_", "ff_", "draw"):
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::_sobol_engine_{name}", "PrivateUse1")
    results = call(device)
    check(list(results), list(call("cpu")))
    assert {result.device.type for result in results} == {torch.device(device).type}
