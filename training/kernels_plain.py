"""kernels.py without Triton: the same interface in plain torch, for machines without CUDA and to
check the kernels against."""

import math
import types

import torch

from model import Ops


class Sinkhorn:
    @staticmethod
    def apply(a, iterations, eps):
        return Ops(types.SimpleNamespace(hc_eps=eps, hc_sinkhorn_iters=iterations)).sinkhorn(a)


class Expand:
    @staticmethod
    def apply(y, streams, post, comb):
        return Ops(None).expand(y, streams, post, comb)


class Attention:
    @staticmethod
    def apply(q, window, entries, mask, sink, ratio, width):
        ops = Ops(types.SimpleNamespace(sliding_window=width, head_dim=q.shape[-1]),
                  bf16_probabilities=False)
        return ops.attend(q, window, entries, None if mask is None else mask > 0, ratio, sink)


def index_scores(q, w, keys, ratio, pool=None, pool_block=8):
    s = torch.relu(torch.einsum("bthc,bnc->bthn", q.float(), keys.float()))
    s = (s * w.float().unsqueeze(-1)).sum(2)
    visible = (torch.arange(q.shape[1], device=q.device) + 1) // ratio
    see = (torch.arange(keys.shape[1], device=q.device) < visible.unsqueeze(-1)).expand(s.shape)
    if pool is not None:
        see = see & (pool.repeat_interleave(pool_block, -1)[..., : s.shape[-1]] > 0)
    return s.masked_fill(~see, -math.inf)


def top_mask(scores, k):
    return Ops(None).best(scores, k).to(torch.uint8)
