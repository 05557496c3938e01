"""Triton kernels for training on CUDA, each with its gradient: Sinkhorn, attention over window and
selected entries, index scores, top-k masks. model.py's `Ops` is what they must agree with; check.py
compares them. Training precision (bf16 products, float32 sums), not bit exactness.
"""

import torch
import triton
import triton.language as tl


# Sinkhorn of [M, 4, 4] matrices. Every division's divisor is kept: going back, the state before a
# division is the state after it times the divisor, so nothing else needs storing.


@triton.jit
def _sinkhorn_forward(a_ptr, z_ptr, divisor_ptr, count, eps, ITERS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    four = tl.arange(0, 4)
    ok = row < count
    at = row[:, None, None] * 16 + four[None, :, None] * 4 + four[None, None, :]
    ok3 = ok[:, None, None] & (four[None, :, None] < 4) & (four[None, None, :] < 4)
    a = tl.load(a_ptr + at, mask=ok3, other=0.0)
    z = tl.exp(a - tl.max(a, 2)[:, :, None])
    z = z / tl.sum(z, 2)[:, :, None] + eps
    c = tl.sum(z, 1) + eps
    z = z / c[:, None, :]
    keep = divisor_ptr + row[:, None] * ((2 * ITERS - 1) * 4) + four[None, :]
    ok2 = ok[:, None] & (four[None, :] < 4)
    tl.store(keep, c, mask=ok2)
    for i in tl.range(1, ITERS):
        r = tl.sum(z, 2) + eps
        z = z / r[:, :, None]
        c = tl.sum(z, 1) + eps
        z = z / c[:, None, :]
        tl.store(keep + (2 * i - 1) * 4, r, mask=ok2)
        tl.store(keep + (2 * i) * 4, c, mask=ok2)
    tl.store(z_ptr + at, z, mask=ok3)


@triton.jit
def _sinkhorn_backward(z_ptr, divisor_ptr, g_ptr, out_ptr, count, eps, ITERS: tl.constexpr,
                       BLOCK: tl.constexpr):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    four = tl.arange(0, 4)
    ok = row < count
    at = row[:, None, None] * 16 + four[None, :, None] * 4 + four[None, None, :]
    ok3 = ok[:, None, None] & (four[None, :, None] < 4) & (four[None, None, :] < 4)
    ok2 = ok[:, None] & (four[None, :] < 4)
    z = tl.load(z_ptr + at, mask=ok3, other=0.25)
    g = tl.load(g_ptr + at, mask=ok3, other=0.0)
    keep = divisor_ptr + row[:, None] * ((2 * ITERS - 1) * 4) + four[None, :]
    for step in tl.range(1, ITERS):
        i = ITERS - step
        c = tl.load(keep + (2 * i) * 4, mask=ok2, other=1.0)
        g = (g - tl.sum(g * z, 1)[:, None, :]) / c[:, None, :]
        z = z * c[:, None, :]
        r = tl.load(keep + (2 * i - 1) * 4, mask=ok2, other=1.0)
        g = (g - tl.sum(g * z, 2)[:, :, None]) / r[:, :, None]
        z = z * r[:, :, None]
    c = tl.load(keep, mask=ok2, other=1.0)
    g = (g - tl.sum(g * z, 1)[:, None, :]) / c[:, None, :]
    p = z * c[:, None, :] - eps
    g = p * (g - tl.sum(g * p, 2)[:, :, None])
    tl.store(out_ptr + at, g, mask=ok3)


class Sinkhorn(torch.autograd.Function):
    BLOCK = 64

    @staticmethod
    def forward(ctx, a, iterations, eps):
        a = a.contiguous()
        count = a.numel() // 16
        z = torch.empty_like(a)
        divisors = torch.empty((count, 2 * iterations - 1, 4), device=a.device)
        grid = (triton.cdiv(count, Sinkhorn.BLOCK),)
        _sinkhorn_forward[grid](a, z, divisors, count, eps, iterations, Sinkhorn.BLOCK)
        ctx.save_for_backward(z, divisors)
        ctx.iterations, ctx.eps = iterations, eps
        return z

    @staticmethod
    def backward(ctx, g):
        z, divisors = ctx.saved_tensors
        count = z.numel() // 16
        out = torch.empty_like(z)
        grid = (triton.cdiv(count, Sinkhorn.BLOCK),)
        _sinkhorn_backward[grid](z, divisors, g.contiguous(), out, count, ctx.eps, ctx.iterations,
                                 Sinkhorn.BLOCK)
        return out, None, None


# Writing a sub-layer's output to the four streams: out_j = post_j y + sum_i C[i][j] S_i.


@triton.jit
def _expand_forward(y_ptr, s_ptr, post_ptr, c_ptr, out_ptr, count, D: tl.constexpr, BT: tl.constexpr):
    t = (tl.program_id(0) * BT + tl.arange(0, BT)).to(tl.int64)
    ok = t < count
    at = t[:, None] * D + tl.arange(0, D)[None, :]
    s_at = t[:, None] * (4 * D) + tl.arange(0, D)[None, :]
    m = ok[:, None]
    y = tl.load(y_ptr + at, mask=m, other=0.0).to(tl.float32)
    s0 = tl.load(s_ptr + s_at, mask=m, other=0.0).to(tl.float32)
    s1 = tl.load(s_ptr + s_at + D, mask=m, other=0.0).to(tl.float32)
    s2 = tl.load(s_ptr + s_at + 2 * D, mask=m, other=0.0).to(tl.float32)
    s3 = tl.load(s_ptr + s_at + 3 * D, mask=m, other=0.0).to(tl.float32)
    for j in tl.static_range(4):
        out = tl.load(post_ptr + t * 4 + j, mask=ok, other=0.0)[:, None] * y
        out += tl.load(c_ptr + t * 16 + j, mask=ok, other=0.0)[:, None] * s0
        out += tl.load(c_ptr + t * 16 + 4 + j, mask=ok, other=0.0)[:, None] * s1
        out += tl.load(c_ptr + t * 16 + 8 + j, mask=ok, other=0.0)[:, None] * s2
        out += tl.load(c_ptr + t * 16 + 12 + j, mask=ok, other=0.0)[:, None] * s3
        tl.store(out_ptr + s_at + j * D, out.to(tl.bfloat16), mask=m)


@triton.jit
def _expand_backward(y_ptr, s_ptr, post_ptr, c_ptr, g_ptr, dy_ptr, ds_ptr, dpost_ptr, dc_ptr, count,
                     D: tl.constexpr, BT: tl.constexpr):
    t = (tl.program_id(0) * BT + tl.arange(0, BT)).to(tl.int64)
    ok = t < count
    at = t[:, None] * D + tl.arange(0, D)[None, :]
    s_at = t[:, None] * (4 * D) + tl.arange(0, D)[None, :]
    m = ok[:, None]
    g0 = tl.load(g_ptr + s_at, mask=m, other=0.0).to(tl.float32)
    g1 = tl.load(g_ptr + s_at + D, mask=m, other=0.0).to(tl.float32)
    g2 = tl.load(g_ptr + s_at + 2 * D, mask=m, other=0.0).to(tl.float32)
    g3 = tl.load(g_ptr + s_at + 3 * D, mask=m, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + at, mask=m, other=0.0).to(tl.float32)
    tl.store(dpost_ptr + t * 4, tl.sum(g0 * y, 1), mask=ok)
    tl.store(dpost_ptr + t * 4 + 1, tl.sum(g1 * y, 1), mask=ok)
    tl.store(dpost_ptr + t * 4 + 2, tl.sum(g2 * y, 1), mask=ok)
    tl.store(dpost_ptr + t * 4 + 3, tl.sum(g3 * y, 1), mask=ok)
    dy = tl.load(post_ptr + t * 4, mask=ok, other=0.0)[:, None] * g0
    dy += tl.load(post_ptr + t * 4 + 1, mask=ok, other=0.0)[:, None] * g1
    dy += tl.load(post_ptr + t * 4 + 2, mask=ok, other=0.0)[:, None] * g2
    dy += tl.load(post_ptr + t * 4 + 3, mask=ok, other=0.0)[:, None] * g3
    tl.store(dy_ptr + at, dy.to(tl.bfloat16), mask=m)
    for i in tl.static_range(4):
        s = tl.load(s_ptr + s_at + i * D, mask=m, other=0.0).to(tl.float32)
        tl.store(dc_ptr + t * 16 + i * 4, tl.sum(s * g0, 1), mask=ok)
        tl.store(dc_ptr + t * 16 + i * 4 + 1, tl.sum(s * g1, 1), mask=ok)
        tl.store(dc_ptr + t * 16 + i * 4 + 2, tl.sum(s * g2, 1), mask=ok)
        tl.store(dc_ptr + t * 16 + i * 4 + 3, tl.sum(s * g3, 1), mask=ok)
        ds = tl.load(c_ptr + t * 16 + i * 4, mask=ok, other=0.0)[:, None] * g0
        ds += tl.load(c_ptr + t * 16 + i * 4 + 1, mask=ok, other=0.0)[:, None] * g1
        ds += tl.load(c_ptr + t * 16 + i * 4 + 2, mask=ok, other=0.0)[:, None] * g2
        ds += tl.load(c_ptr + t * 16 + i * 4 + 3, mask=ok, other=0.0)[:, None] * g3
        tl.store(ds_ptr + s_at + i * D, ds.to(tl.bfloat16), mask=m)


class Expand(torch.autograd.Function):
    """y [M,D] bf16, streams [M,4,D] bf16, post [M,4], comb [M,4,4]; D a power of two."""

    BT = 4

    @staticmethod
    def forward(ctx, y, streams, post, comb):
        y, streams, post, comb = (x.contiguous() for x in (y, streams, post, comb))
        count, d = y.shape
        out = torch.empty_like(streams)
        grid = (triton.cdiv(count, Expand.BT),)
        _expand_forward[grid](y, streams, post, comb, out, count, D=d, BT=Expand.BT)
        ctx.save_for_backward(y, streams, post, comb)
        return out

    @staticmethod
    def backward(ctx, g):
        y, streams, post, comb = ctx.saved_tensors
        count, d = y.shape
        dy, ds = torch.empty_like(y), torch.empty_like(streams)
        dpost, dcomb = torch.empty_like(post), torch.empty_like(comb)
        grid = (triton.cdiv(count, Expand.BT),)
        _expand_backward[grid](y, streams, post, comb, g.contiguous(), dy, ds, dpost, dcomb, count,
                               D=d, BT=Expand.BT)
        return dy, ds, dpost, dcomb


# Attention. One program owns PT positions and all H heads of them: they share their keys.


@triton.jit
def _scores_of(q, k, scale):
    return tl.dot(q, tl.trans(k)) * scale


@triton.jit
def _attention_forward(q_ptr, w_ptr, e_ptr, mask_ptr, sink_ptr, o_ptr, lse_ptr, length, entries,
                       scale, RATIO: tl.constexpr, MASKED: tl.constexpr, WINDOW: tl.constexpr,
                       H: tl.constexpr, C: tl.constexpr, PT: tl.constexpr, BN: tl.constexpr):
    b = tl.program_id(1).to(tl.int64)
    t0 = tl.program_id(0) * PT
    r = tl.arange(0, PT * H)
    t, head = t0 + r // H, r % H
    ch = tl.arange(0, C)
    n = tl.arange(0, BN)
    q_at = (b * length * H + t0 * H + r)[:, None] * C + ch[None, :]
    q = tl.load(q_ptr + q_at)
    m = tl.load(sink_ptr + head)
    total = tl.full((PT * H,), 1.0, tl.float32)
    acc = tl.zeros((PT * H, C), tl.float32)
    start = tl.maximum(t0 - WINDOW + 1, 0) // BN * BN
    for j0 in tl.range(start, t0 + PT, BN):
        j = j0 + n
        k = tl.load(w_ptr + (b * length + j)[:, None] * C + ch[None, :], mask=(j < length)[:, None], other=0.0)
        s = _scores_of(q, k, scale)
        see = (j[None, :] <= t[:, None]) & (j[None, :] > t[:, None] - WINDOW)
        s = tl.where(see, s, -1.0e30)
        top = tl.maximum(m, tl.max(s, 1))
        p = tl.where(see, tl.exp(s - top[:, None]), 0.0)
        fade = tl.exp(m - top)
        total = total * fade + tl.sum(p, 1)
        acc = acc * fade[:, None] + tl.dot(p.to(tl.bfloat16), k)
        m = top
    if RATIO > 0:
        for j0 in tl.range(0, (t0 + PT) // RATIO, BN):
            j = j0 + n
            k = tl.load(e_ptr + (b * entries + j)[:, None] * C + ch[None, :], mask=(j < entries)[:, None], other=0.0)
            s = _scores_of(q, k, scale)
            see = (j[None, :] < ((t + 1) // RATIO)[:, None]) & (j < entries)[None, :]
            if MASKED:
                chosen = tl.load(mask_ptr + (b * length + t)[:, None] * entries + j[None, :], mask=see, other=0)
                see = see & (chosen != 0)
            s = tl.where(see, s, -1.0e30)
            top = tl.maximum(m, tl.max(s, 1))
            p = tl.where(see, tl.exp(s - top[:, None]), 0.0)
            fade = tl.exp(m - top)
            total = total * fade + tl.sum(p, 1)
            acc = acc * fade[:, None] + tl.dot(p.to(tl.bfloat16), k)
            m = top
    tl.store(o_ptr + q_at, (acc / total[:, None]).to(tl.bfloat16))
    tl.store(lse_ptr + b * length * H + t0 * H + r, m + tl.log(total))


@triton.jit
def _attention_backward(q_ptr, w_ptr, e_ptr, mask_ptr, o_ptr, do_ptr, lse_ptr, delta_ptr, dq_ptr,
                        dw_ptr, de_ptr, length, entries, scale, RATIO: tl.constexpr, MASKED: tl.constexpr,
                        WINDOW: tl.constexpr, H: tl.constexpr, C: tl.constexpr, PT: tl.constexpr,
                        BN: tl.constexpr):
    b = tl.program_id(1).to(tl.int64)
    t0 = tl.program_id(0) * PT
    r = tl.arange(0, PT * H)
    t = t0 + r // H
    ch = tl.arange(0, C)
    n = tl.arange(0, BN)
    row = b * length * H + t0 * H + r
    q_at = row[:, None] * C + ch[None, :]
    q = tl.load(q_ptr + q_at)
    do = tl.load(do_ptr + q_at)
    lse = tl.load(lse_ptr + row)
    delta = tl.sum(do.to(tl.float32) * tl.load(o_ptr + q_at).to(tl.float32), 1)
    tl.store(delta_ptr + row, delta)
    dq = tl.zeros((PT * H, C), tl.float32)
    start = tl.maximum(t0 - WINDOW + 1, 0) // BN * BN
    for j0 in tl.range(start, t0 + PT, BN):
        j = j0 + n
        k_at = (b * length + j)[:, None] * C + ch[None, :]
        k = tl.load(w_ptr + k_at, mask=(j < length)[:, None], other=0.0)
        see = (j[None, :] <= t[:, None]) & (j[None, :] > t[:, None] - WINDOW)
        p = tl.where(see, tl.exp(_scores_of(q, k, scale) - lse[:, None]), 0.0)
        ds = (p * (tl.dot(do, tl.trans(k)) - delta[:, None]) * scale).to(tl.bfloat16)
        dq += tl.dot(ds, k)
        dk = tl.dot(tl.trans(ds), q) + tl.dot(tl.trans(p.to(tl.bfloat16)), do)
        tl.atomic_add(dw_ptr + k_at, dk, mask=(j < length)[:, None], sem="relaxed")
    if RATIO > 0:
        for j0 in tl.range(0, (t0 + PT) // RATIO, BN):
            j = j0 + n
            k_at = (b * entries + j)[:, None] * C + ch[None, :]
            k = tl.load(e_ptr + k_at, mask=(j < entries)[:, None], other=0.0)
            see = (j[None, :] < ((t + 1) // RATIO)[:, None]) & (j < entries)[None, :]
            if MASKED:
                chosen = tl.load(mask_ptr + (b * length + t)[:, None] * entries + j[None, :], mask=see, other=0)
                see = see & (chosen != 0)
            p = tl.where(see, tl.exp(_scores_of(q, k, scale) - lse[:, None]), 0.0)
            ds = (p * (tl.dot(do, tl.trans(k)) - delta[:, None]) * scale).to(tl.bfloat16)
            dq += tl.dot(ds, k)
            dk = tl.dot(tl.trans(ds), q) + tl.dot(tl.trans(p.to(tl.bfloat16)), do)
            tl.atomic_add(de_ptr + k_at, dk, mask=(j < entries)[:, None], sem="relaxed")
    tl.store(dq_ptr + q_at, dq.to(tl.bfloat16))


class Attention(torch.autograd.Function):
    """q [B,T,H,C], window [B,T,C], entries [B,N,C] or None, mask uint8 [B,T,N] or None, sink [H].
    T must be a multiple of 16, H and C powers of two."""

    PT, BN = 16, 64

    @staticmethod
    def forward(ctx, q, window, entries, mask, sink, ratio, width):
        q, window = q.contiguous(), window.contiguous()
        batch, length, heads, c = q.shape
        o = torch.empty_like(q)
        lse = torch.empty((batch, length, heads), device=q.device)
        e = entries.contiguous() if entries is not None else window
        count = e.shape[1] if entries is not None else 0
        ratio = ratio if entries is not None else 0
        args = dict(RATIO=ratio, MASKED=mask is not None, WINDOW=width, H=heads, C=c,
                    PT=Attention.PT, BN=Attention.BN)
        grid = (length // Attention.PT, batch)
        m = mask if mask is not None else window
        _attention_forward[grid](q, window, e, m, sink.float().contiguous(), o, lse, length, count,
                                 c**-0.5, num_warps=8, num_stages=2, **args)
        ctx.save_for_backward(q, window, e, mask, sink, o, lse)
        ctx.args, ctx.count, ctx.has = args, count, entries is not None
        return o

    @staticmethod
    def backward(ctx, do):
        q, window, e, mask, sink, o, lse = ctx.saved_tensors
        batch, length, heads, c = q.shape
        do = do.contiguous()
        delta = torch.empty_like(lse)
        dq = torch.empty_like(q)
        dw = torch.zeros(window.shape, device=q.device)
        de = torch.zeros(e.shape, device=q.device) if ctx.has else dw
        grid = (length // Attention.PT, batch)
        m = mask if mask is not None else window
        _attention_backward[grid](q, window, e, m, o, do, lse, delta, dq, dw, de, length, ctx.count,
                                  c**-0.5, num_warps=8, num_stages=1, **ctx.args)
        dsink = -(torch.exp(sink.float() - lse) * delta).sum((0, 1))
        de = de.to(e.dtype) if ctx.has else None
        return dq, dw.to(window.dtype), de, None, dsink.to(sink.dtype), None, None


# Indexer.


@triton.jit
def _index_scores(q_ptr, w_ptr, k_ptr, pool_ptr, out_ptr, length, entries, RATIO: tl.constexpr,
                  POOL: tl.constexpr, H: tl.constexpr, C: tl.constexpr, BT: tl.constexpr,
                  BN: tl.constexpr):
    b = tl.program_id(2).to(tl.int64)
    t = tl.program_id(1) * BT + tl.arange(0, BT)
    j = tl.program_id(0) * BN + tl.arange(0, BN)
    ch = tl.arange(0, C)
    k = tl.load(k_ptr + (b * entries + j)[:, None] * C + ch[None, :], mask=(j < entries)[:, None], other=0.0)
    score = tl.zeros((BT, BN), tl.float32)
    for h in tl.static_range(H):
        q = tl.load(q_ptr + ((b * length + t)[:, None] * H + h) * C + ch[None, :])
        w = tl.load(w_ptr + (b * length + t) * H + h).to(tl.float32)
        score += tl.maximum(tl.dot(q, tl.trans(k)), 0.0) * w[:, None]
    see = (j[None, :] < ((t + 1) // RATIO)[:, None]) & (j < entries)[None, :]
    at = (b * length + t)[:, None] * entries + j[None, :]
    if POOL > 0:
        blocks = (entries + POOL - 1) // POOL
        inside = tl.load(pool_ptr + (b * length + t)[:, None] * blocks + (j // POOL)[None, :], mask=see, other=0)
        see = see & (inside != 0)
    tl.store(out_ptr + at, tl.where(see, score, float("-inf")), mask=(j < entries)[None, :] & (t < length)[:, None])


def index_scores(q, w, keys, ratio, pool=None, pool_block=8):
    """q [B,T,H,C] bf16, w [B,T,H] bf16, keys [B,N,C], pool uint8 [B,T,N/8] -> float32 [B,T,N],
    -inf where not visible or outside the pool."""
    batch, length, heads, c = q.shape
    count = keys.shape[1]
    out = torch.empty((batch, length, count), device=q.device)
    grid = (triton.cdiv(count, 64), length // 32, batch)
    _index_scores[grid](q.contiguous(), w.contiguous(), keys.contiguous(),
                        pool if pool is not None else q, out, length, count, RATIO=ratio,
                        POOL=pool_block if pool is not None else 0, H=heads, C=c, BT=32, BN=64)
    return out


@triton.jit
def _top_mask(s_ptr, out_ptr, count, k, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    j = tl.arange(0, BLOCK)
    s = tl.load(s_ptr + row * count + j, mask=j < count, other=float("-inf"))
    alive = s > float("-inf")
    bits = s.to(tl.int32, bitcast=True)
    key = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    # the largest threshold that at least k keys reach; keys grow with scores
    low = tl.min(tl.where(alive, key, 2147483647), 0).to(tl.int64)
    high = tl.max(tl.where(alive, key, -2147483647), 0).to(tl.int64) + 1
    for _ in tl.range(0, 32):
        middle = (low + high) // 2
        enough = tl.sum((alive & (key.to(tl.int64) >= middle)).to(tl.int32), 0) >= k
        low = tl.where(enough & (middle > low), middle, low)
        high = tl.where(enough, high, tl.maximum(middle, low + 1))
    # ties at the threshold go to the lower index: relu makes exact zeros common
    above = alive & (key.to(tl.int64) > low)
    tie = (alive & (key.to(tl.int64) == low)).to(tl.int32)
    room = k - tl.sum(above.to(tl.int32), 0)
    chosen = above | ((tie > 0) & (tl.cumsum(tie, 0) <= room))
    tl.store(out_ptr + row * count + j, chosen.to(tl.uint8), mask=j < count)


def top_mask(scores, k):
    """uint8 mask of the k best of the last axis (ties to the lower index), never a -inf."""
    scores = scores.contiguous()
    count = scores.shape[-1]
    out = torch.empty(scores.shape, dtype=torch.uint8, device=scores.device)
    rows = scores.numel() // count
    _top_mask[(rows,)](scores, out, count, k, BLOCK=triton.next_power_of_2(count), num_warps=4)
    return out
