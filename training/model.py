"""DeepSeek-V4.1-Flash's text backbone in PyTorch, written from spec/model.md.

One whole-sequence forward over [batch, T] tokens. On a CPU it is the project's reference: every
rounding point of the released code, float32 sums, so it writes goldens. On CUDA the same forward
trains with fake quantisation; train.py may swap members of `Ops` for fused kernels. No cache, no
decoding, no files: checkpoint.py reads and writes the released format.
"""

import json
import math

import numpy as np
import torch
import torch.nn.functional as F

import quant
from quant import straight

BF16 = torch.bfloat16


class Config:
    """text_config of a released config.json, as attributes with the JSON's names."""

    def __init__(self, nested):
        self.nested = nested
        self.__dict__.update(nested["text_config"])
        scaling = self.rope_scaling
        self.yarn = (
            scaling["factor"],
            scaling["original_max_position_embeddings"],
            scaling["beta_fast"],
            scaling["beta_slow"],
        )
        self.engram_layer_ids = list(getattr(self, "engram_layer_ids", []))

    @staticmethod
    def load(path):
        with open(path, encoding="utf-8") as f:
            return Config(json.load(f))

    def ratio(self, layer):
        return self.compress_ratios[layer]

    def kv_source(self, layer):
        """Most recent KV source at or before this layer, None for window-only layers."""
        before = [s for s in self.kv_source_layer_ids if s <= layer]
        return before[-1] if self.ratio(layer) > 0 else None

    def index_source(self, layer):
        before = [s for s in self.index_source_layer_ids if s <= layer]
        return before[-1] if self.ratio(layer) > 0 else None


def rope_frequencies(theta, rho, yarn):
    """omega_u as float32 [rho/2]: power correctly rounded, then a float32 reciprocal."""
    exponent = [float(np.float32(2 * u) / np.float32(rho)) for u in range(rho // 2)]
    power = np.array([float(theta) ** e for e in exponent], dtype=np.float32)
    omega = np.float32(1.0) / power
    if yarn is not None and yarn[1] > 0:
        factor, original, fast, slow = yarn

        def turn(beta):
            return rho * math.log(original / (2 * math.pi * beta)) / (2 * math.log(theta))

        lo, hi = max(math.floor(turn(fast)), 0), min(math.ceil(turn(slow)), rho - 1)
        ramp = np.arange(rho // 2, dtype=np.float32) - np.float32(lo)
        ramp = np.clip(ramp / np.float32(max(hi - lo, 1e-3)), 0, 1).astype(np.float32)
        omega = omega / np.float32(factor) * ramp + omega * (np.float32(1) - ramp)
    return torch.from_numpy(omega.astype(np.float32))


def rope_table(cfg, compressed, length, device):
    theta = cfg.compress_rope_theta if compressed else cfg.rope_theta
    omega = rope_frequencies(theta, cfg.qk_rope_head_dim, cfg.yarn if compressed else None)
    angle = torch.arange(length, dtype=torch.float32).unsqueeze(1) * omega
    return torch.cos(angle).to(device), torch.sin(angle).to(device)


def rope(x, cos, sin, inverse=False):
    """Rotates adjacent pairs of the last channels; cos/sin broadcast against x's leading axes."""
    rho = 2 * cos.shape[-1]
    keep, turn = x[..., :-rho], x[..., -rho:].float()
    pair = turn.reshape(turn.shape[:-1] + (rho // 2, 2))
    a, b = pair[..., 0], pair[..., 1]
    s = -sin if inverse else sin
    turned = torch.stack((a * cos - b * s, a * s + b * cos), -1).reshape(turn.shape)
    return torch.cat((keep, turned.to(x.dtype)), -1)


def rms(x, w, eps):
    v = x.float()
    return (v * torch.rsqrt(v.square().mean(-1, keepdim=True) + eps) * w).to(x.dtype)


def mm(x, w):
    """bf16 product with float32 sums. Off CUDA the weights are float32 holding bf16 values."""
    if x.is_cuda:
        return F.linear(x, w)
    return F.linear(x.float(), w.float()).to(BF16)


def softplus(g):
    return torch.where(g > 20.0, g, torch.log1p(torch.exp(g.clamp(max=20.0))))


class Ops:
    """The model's operations. `quantise` off gives the unquantised master."""

    def __init__(self, cfg, quantise=True, bf16_scores=True, bf16_probabilities=True):
        self.cfg = cfg
        self.quantise = quantise
        self.bf16_scores = bf16_scores
        self.bf16_probabilities = bf16_probabilities

    def q8(self, x):
        return straight(quant.q8, x) if self.quantise else x

    def q4e8(self, x):
        return straight(quant.q4e8, x) if self.quantise else x

    def q4e4(self, x):
        return straight(quant.q4e4, x) if self.quantise else x

    def mmq(self, x, w):
        return mm(self.q8(x), w)

    # Hyper-connections (spec 3).

    def coefficients(self, streams, fn, base, scale):
        """streams [.., n, d] -> pre, post [.., n], C [.., n, n]; all float32."""
        n, cfg = self.cfg.hc_mult, self.cfg
        v = streams.flatten(-2).float()
        nu = torch.rsqrt(v.square().mean(-1, keepdim=True) + cfg.rms_norm_eps)
        m = F.linear(v, fn) * nu
        pre = torch.sigmoid(m[..., :n] * scale[0] + base[:n]) + cfg.hc_eps
        post = 2 * torch.sigmoid(m[..., n : 2 * n] * scale[1] + base[n : 2 * n])
        a = m[..., 2 * n :] * scale[2] + base[2 * n :]
        return pre, post, self.sinkhorn(a.reshape(a.shape[:-1] + (n, n)))

    def sinkhorn(self, a):
        eps = self.cfg.hc_eps
        a = torch.exp(a - a.amax(-1, keepdim=True))
        a = a / a.sum(-1, keepdim=True) + eps
        a = a / (a.sum(-2, keepdim=True) + eps)
        for _ in range(self.cfg.hc_sinkhorn_iters - 1):
            a = a / (a.sum(-1, keepdim=True) + eps)
            a = a / (a.sum(-2, keepdim=True) + eps)
        return a

    def collapse(self, streams, mix):
        return (mix.unsqueeze(-1) * streams.float()).sum(-2).to(BF16)

    def site(self, streams, mix, fn, base, scale, norm):
        """Everything a sub-layer needs before it runs: its input, and its coefficients."""
        pre, post, comb = self.coefficients(streams, fn, base, scale)
        return rms(self.collapse(streams, mix), norm, self.cfg.rms_norm_eps), pre, post, comb

    def expand(self, y, streams, post, comb):
        kept = (comb.unsqueeze(-1) * streams.float().unsqueeze(-2)).sum(-3)
        return (post.unsqueeze(-1) * y.float().unsqueeze(-2) + kept).to(BF16)

    # Attention (spec 4).

    def project(self, x, wq_a, q_norm, wq_b, wkv, kv_norm, cos, sin):
        """x [B,T,d] -> latent [B,T,q_lora], q [B,T,h,c], window keys [B,T,c]."""
        cfg = self.cfg
        latent = rms(self.mmq(x, wq_a), q_norm, cfg.rms_norm_eps)
        q = self.mmq(latent, wq_b)
        q = q.reshape(q.shape[:-1] + (cfg.num_attention_heads, cfg.head_dim))
        q = rope(q, cos.unsqueeze(-2), sin.unsqueeze(-2))
        return latent, q, self.window_key(x, wkv, kv_norm, cos, sin)

    def window_key(self, x, wkv, kv_norm, cos, sin):
        kappa = rms(self.mmq(x, wkv), kv_norm, self.cfg.rms_norm_eps)
        return self.q8(rope(kappa, cos, sin))

    def compress(self, x, ratio, wkv, wgate, norm):
        """Latents [B, T div r, c], and float32 (a, b) of an unfinished group."""
        eps = self.cfg.rms_norm_eps
        if ratio == 1:
            return rms(mm(x, wkv), norm, eps), None
        a, b = F.linear(x.float(), wkv.float()), F.linear(x.float(), wgate.float())
        full = a.shape[1] // ratio * ratio
        pending = (a[:, full:], b[:, full:])
        shape = (a.shape[0], full // ratio, ratio, a.shape[2])
        p = torch.softmax(b[:, :full].reshape(shape), 2)
        return rms((p * a[:, :full].reshape(shape)).sum(2).to(BF16), norm, eps), pending

    def compressed_kv(self, latent, cos, sin):
        return self.q4e4(rope(latent, cos, sin))

    def index_key(self, latent, wk, k_norm, cos, sin):
        return self.q4e8(rope(rms(mm(latent, wk), k_norm, self.cfg.rms_norm_eps), cos, sin))

    def index_query(self, latent, x, wq_b, weights_proj, cos, sin):
        cfg = self.cfg
        heads, width = cfg.index_n_heads, cfg.index_head_dim
        q = self.mmq(latent, wq_b)
        q = q.reshape(q.shape[:-1] + (heads, width))
        q = self.q4e8(rope(q, cos.unsqueeze(-2), sin.unsqueeze(-2)))
        return q, (mm(x, weights_proj).float() * (width**-0.5 * heads**-0.5)).to(BF16)

    def scores(self, q, w, keys):
        """Index scores [B,T,N] float32; head sums in float32, invisible ones not yet masked."""
        s = torch.relu(torch.einsum("bthc,bnc->bthn", q.float(), keys.float()))
        if self.bf16_scores:
            s = (s.to(BF16) * w.unsqueeze(-1)).float().sum(2).to(BF16).float()
            return s
        return (s * w.float().unsqueeze(-1)).sum(2)

    def best(self, score, k):
        """bool mask of the k best per row, -inf never, ties to the lower index."""
        k = min(k, score.shape[-1])
        order = torch.sort(score, stable=True, dim=-1, descending=True).indices[..., :k]
        mask = torch.zeros_like(score, dtype=torch.bool).scatter_(-1, order, True)
        return mask & (score > -math.inf)

    def candidates(self, score, visible):
        """Pool membership [B,T,N]; score holds -inf where not visible, visible = N(t) [T]."""
        size, entries = self.cfg.candidate_block_size, score.shape[-1]
        padded = F.pad(score, (0, -entries % size), value=-math.inf)
        block = padded.reshape(padded.shape[:-1] + (-1, size)).amax(-1)
        forced = ((visible - 1).clamp(min=0) // size).unsqueeze(-1)
        numbers = torch.arange(block.shape[-1], device=score.device)
        block = torch.where((numbers == forced) & (visible.unsqueeze(-1) > 0), math.inf, block)
        keep = self.best(block, self.cfg.candidate_topk_blocks)
        return keep.repeat_interleave(size, -1)[..., :entries]

    def attend(self, q, window, entries, mask, ratio, sink):
        """q [B,T,h,c], window keys [B,T,c], entries [B,N,c] with mask [B,T,N] (None: all that
        are visible), sink [h] -> [B,T,h,c] bf16."""
        cfg, length = self.cfg, q.shape[1]
        at, out = torch.arange(length, device=q.device), []
        for start in range(0, length, 256):
            t = at[start : start + 256].unsqueeze(1)
            first = max(0, start - cfg.sliding_window + 1)
            last = min(length, start + 256)
            keys = window[:, first:last]
            see = (at[first:last] <= t) & (at[first:last] > t - cfg.sliding_window)
            see = see.expand(q.shape[0], -1, -1)
            slot = (at[first:last] - t + cfg.sliding_window - 1).expand(q.shape[0], -1, -1)
            if entries is not None:
                keys = torch.cat((keys, entries), 1)
                number = torch.arange(entries.shape[1], device=q.device)
                chosen = number < (t + 1) // ratio
                chosen = chosen.expand(q.shape[0], -1, -1)
                if mask is not None:
                    chosen = chosen & mask[:, start : start + 256]
                see = torch.cat((see, chosen), 2)
                slot = torch.cat((slot, cfg.sliding_window - 1 + chosen.cumsum(-1)), 2)
            out.append(self.attend_rows(q[:, start : start + 256], keys, see, sink, slot))
        return torch.cat(out, 1)

    def attend_rows(self, q, keys, see, sink, slot=None):
        """slot [B,T,N]: each key's place among the row's slots, window first. With it,
        probabilities round as an online softmax over blocks of 64 slots rounds them: against
        the largest score so far, not the largest of all (spec 4.6)."""
        s = torch.einsum("bthc,bnc->bthn", q.float(), keys.float()) * self.cfg.head_dim**-0.5
        s = s.masked_fill(~see.unsqueeze(2), -math.inf)
        top = s.amax(-1, keepdim=True).clamp(min=-1e30)
        p = torch.exp(s - top)
        total = p.sum(-1, keepdim=True) + torch.exp(sink.unsqueeze(-1) - top)
        if self.bf16_probabilities and slot is not None:
            so_far = self.running_top(s, see, slot)
            p = torch.exp(s - so_far).to(BF16).float() * torch.exp(so_far - top)
        elif self.bf16_probabilities:
            p = p.to(BF16).float()
        return (torch.einsum("bthn,bnc->bthc", p, keys.float()) / total).to(BF16)

    @staticmethod
    def running_top(s, see, slot):
        """For each key, the largest visible score in its block of 64 slots or an earlier one."""
        block = (slot // 64).clamp(min=0).masked_fill(~see, 0).unsqueeze(2)
        tops, top = [], torch.full_like(s[..., :1], -1e30)
        for b in range(int(block.max()) + 1):
            here = s.masked_fill(block != b, -math.inf).amax(-1, keepdim=True)
            top = torch.maximum(top, here)
            tops.append(top)
        return torch.cat(tops, -1).gather(-1, block.expand(-1, -1, s.shape[2], -1))

    def output(self, o, cos, sin, wo_a, wo_b):
        """wo_a [groups * o_lora, h*c/groups] is not quantised on its input, wo_b is."""
        groups = self.cfg.o_groups
        o = rope(o, cos.unsqueeze(-2), sin.unsqueeze(-2), inverse=True)
        g = o.reshape(o.shape[:-2] + (groups, -1))
        w = wo_a.reshape(groups, -1, wo_a.shape[-1])
        if o.is_cuda:
            u = torch.einsum("btgi,goi->btgo", g, w)
        else:
            u = torch.einsum("btgi,goi->btgo", g.float(), w.float()).to(BF16)
        return self.mmq(u.flatten(-2), wo_b)

    # Experts (spec 5).

    def route(self, x, gate, bias, active):
        """Weights [.., E] (zero where not chosen), chosen mask, biased scores; float32."""
        p = torch.sqrt(softplus(F.linear(x.float(), gate.float())))
        biased = p.detach() + bias
        ahead = biased.unsqueeze(-2) > biased.unsqueeze(-1)
        number = torch.arange(biased.shape[-1], device=x.device)
        tie = (biased.unsqueeze(-2) == biased.unsqueeze(-1)) & (number < number.unsqueeze(-1))
        chosen = (ahead | tie).sum(-1) < active
        w = p * chosen
        return w / (w.sum(-1, keepdim=True) + 1e-20) * self.cfg.routed_scaling_factor, chosen, biased

    def swiglu(self, a, b):
        limit = self.cfg.swiglu_limit
        a, b = a.float().clamp(max=limit), b.float().clamp(-limit, limit)
        return a * torch.sigmoid(a) * b

    def experts(self, x, weights, w1, w3, w2, s1, s3, s2):
        """weights [.., E]; w1, w3 [E,I,d], w2 [E,d,I], shared s1, s3, s2."""
        xq, total = self.q8(x), 0.0
        for e in range(w1.shape[0]):
            v = self.swiglu(mm(xq, w1[e]), mm(xq, w3[e])) * weights[..., e : e + 1]
            total = total + self.mmq(v.to(BF16), w2[e]).float()
        v = self.swiglu(mm(xq, s1), mm(xq, s3)).to(BF16)
        return (total + self.mmq(v, s2).float()).to(BF16)

    # Engram (spec 6).

    def engram(self, streams, rows, table, wkv, q_weight, k_weight, dead):
        cfg = self.cfg
        n, d = cfg.hc_mult, cfg.hidden_size
        found = F.embedding(rows, table)
        found = straight(quant.fp8_rows, found) if self.quantise else found
        kv = self.mmq(found.flatten(-2).to(BF16), wkv).float()
        key, value = kv[..., : n * d], kv[..., n * d :]
        key = key.reshape(key.shape[:-1] + (n, d))
        return self.engram_write(streams, key, value, q_weight, k_weight, dead)

    def engram_write(self, streams, key, value, q_weight, k_weight, dead):
        s, d = streams.float(), streams.shape[-1]
        nu = torch.rsqrt(s.square().mean(-1) + 1e-20) * torch.rsqrt(key.square().mean(-1) + 1e-20)
        delta = (s * (q_weight * k_weight) * key).sum(-1) * nu * d**-0.5
        root = torch.sqrt(delta.abs().clamp(min=1e-6))
        gate = torch.sigmoid(torch.where(delta < 0, -root, root))
        if dead is not None:
            gate = gate * (~dead).unsqueeze(-1)
        return (s + gate.unsqueeze(-1) * value.unsqueeze(-2)).to(BF16), gate


ATTENTION = ("wq_a", "q_norm", "wq_b", "wkv", "kv_norm", "wo_a", "wo_b", "attn_sink")

# How each parameter is stored: the forward sees its value after this round trip.
STORED = {
    "fp8": ("wq_a", "wq_b", "wkv", "wo_a", "wo_b", "s_w1", "s_w2", "s_w3", "i_wq_b", "eng_wkv",
            "main_proj"),
    "fp4": ("e_w1", "e_w2", "e_w3"),
    "f32": ("hc_attn_fn", "hc_attn_base", "hc_attn_scale", "hc_ffn_fn", "hc_ffn_base",
            "hc_ffn_scale", "attn_sink", "gate_bias", "gate_bias_vl"),
    "row": ("eng_table",),
}  # everything else is bf16
VECTORS = ("norm", "q_norm", "kv_norm", "attn_norm", "ffn_norm", "c_norm", "k_norm", "eng_q",
           "eng_k", "main_norm")


def stored_as(name):
    leaf = name.split(".")[-1].split("@")[0]
    return next((kind for kind, names in STORED.items() if leaf in names), "bf16")


def block_shapes(cfg, count, experts):
    """Shapes of `count` stacked layers (backbone or draft stages)."""
    d, n, c, h = cfg.hidden_size, cfg.hc_mult, cfg.head_dim, cfg.num_attention_heads
    inner, rows = cfg.moe_intermediate_size, (2 + cfg.hc_mult) * cfg.hc_mult
    one = {
        "attn_norm": (d,), "ffn_norm": (d,),
        "wq_a": (cfg.q_lora_rank, d), "q_norm": (cfg.q_lora_rank,),
        "wq_b": (h * c, cfg.q_lora_rank), "wkv": (c, d), "kv_norm": (c,),
        "wo_a": (cfg.o_groups * cfg.o_lora_rank, h * c // cfg.o_groups),
        "wo_b": (d, cfg.o_groups * cfg.o_lora_rank), "attn_sink": (h,),
        "gate": (experts, d), "gate_bias": (experts,), "gate_bias_vl": (experts,),
        "s_w1": (inner, d), "s_w3": (inner, d), "s_w2": (d, inner),
        "e_w1": (experts, inner, d), "e_w3": (experts, inner, d), "e_w2": (experts, d, inner),
    }
    for site in ("attn", "ffn"):
        one[f"hc_{site}_fn"] = (rows, n * d)
        one[f"hc_{site}_base"] = (rows,)
        one[f"hc_{site}_scale"] = (3,)
    return {name: (count,) + shape for name, shape in one.items()}


def parameter_shapes(cfg):
    d, c, shapes = cfg.hidden_size, cfg.head_dim, {}
    shapes["embed"] = shapes["head"] = (cfg.vocab_size, d)
    shapes["norm"] = (d,)
    for name, shape in block_shapes(cfg, cfg.num_hidden_layers, cfg.n_routed_experts).items():
        shapes[f"layers.{name}"] = shape
    for l in cfg.kv_source_layer_ids:
        shapes[f"source.c_wkv@{l}"] = (c, d)
        if cfg.ratio(l) > 1:
            shapes[f"source.c_wgate@{l}"] = (c, d)
        shapes[f"source.c_norm@{l}"] = (c,)
        shapes[f"source.i_wk@{l}"] = (cfg.index_head_dim, c)
        shapes[f"source.k_norm@{l}"] = (cfg.index_head_dim,)
    for l in cfg.index_source_layer_ids:
        shapes[f"index.i_wq_b@{l}"] = (cfg.index_n_heads * cfg.index_head_dim, cfg.q_lora_rank)
        shapes[f"index.i_wp@{l}"] = (cfg.index_n_heads, d)
    columns = (cfg.engram_max_ngram_size - 1) * cfg.engram_n_heads if cfg.engram_layer_ids else 0
    for k, l in enumerate(cfg.engram_layer_ids):
        shapes[f"engram.eng_table@{l}"] = (cfg.engram_num_embeddings[k], cfg.engram_head_dim)
        shapes[f"engram.eng_wkv@{l}"] = ((cfg.hc_mult + 1) * d, columns * cfg.engram_head_dim)
        shapes[f"engram.eng_q@{l}"] = shapes[f"engram.eng_k@{l}"] = (cfg.hc_mult, d)
    stages = cfg.num_nextn_predict_layers
    if stages:
        for name, shape in block_shapes(cfg, stages, cfg.dspark_n_routed_experts).items():
            shapes[f"mtp.{name}"] = shape
        rank = cfg.dspark_markov_rank
        shapes["mtp.main_proj"] = (d, d * len(cfg.dspark_target_layer_ids))
        shapes["mtp.main_norm"] = shapes["mtp.norm"] = (d,)
        shapes["mtp.markov_embed"] = shapes["mtp.markov_head"] = (cfg.vocab_size, rank)
        shapes["mtp.confidence"] = (1, d + rank)
    return shapes


def initial(name, shape, generator):
    """Start of training: projections fan_in**-0.5, residual writers smaller, norms at one."""
    leaf = name.split(".")[-1].split("@")[0]
    if leaf in VECTORS:
        if leaf in ("eng_q", "eng_k"):
            return torch.ones(shape)
        return torch.ones(shape)
    if leaf in ("attn_sink", "gate_bias", "gate_bias_vl"):
        return torch.zeros(shape)
    if leaf.startswith("hc_") and leaf.endswith("_fn"):
        return torch.randn(shape, generator=generator) * 0.01
    if leaf.startswith("hc_") and leaf.endswith("_scale"):
        return torch.full(shape, 0.3)
    if leaf.startswith("hc_") and leaf.endswith("_base"):
        # pre near 1/n each, post near 1, C near the identity with a little mixing
        n = int((1 + shape[-1]) ** 0.5 - 1)
        base = torch.zeros(shape)
        base[..., :n] = -math.log(n - 1.0)
        base[..., 2 * n :] = (torch.eye(n) * 4.0).flatten()
        return base
    std = shape[-1] ** -0.5
    if leaf in ("embed", "markov_embed"):
        std = 1.0 if leaf == "embed" else 0.02
    if leaf == "head":
        std = 0.5 * shape[-1] ** -0.5
    if leaf in ("markov_head", "confidence", "eng_wkv"):
        std *= 0.5
    if leaf == "eng_table":
        std = 0.3
    if leaf in ("wo_b", "e_w2", "s_w2"):
        std *= 0.5
    return torch.randn(shape, generator=generator) * std


class Model(torch.nn.Module):
    def __init__(self, cfg, hasher=None, seed=0):
        super().__init__()
        self.cfg, self.hasher = cfg, hasher
        self.half = False  # products' operands as bf16 tensors, for CUDA
        generator = torch.Generator().manual_seed(seed)
        self.params = {}
        for name, shape in parameter_shapes(cfg).items():
            p = torch.nn.Parameter(initial(name, shape, generator))
            self.register_parameter(name.replace(".", "/"), p)
            self.params[name] = p
        for name in ("layers.gate_bias", "layers.gate_bias_vl", "mtp.gate_bias", "mtp.gate_bias_vl"):
            if name in self.params:
                self.params[name].requires_grad_(False)  # moved by load, not by gradient
        self._tables = {}

    def weights(self, quantise=True, prefix=None):
        """Every parameter as the forward uses it: bf16 for products if `half`, else float32."""
        result = {}
        for name, p in self.params.items():
            if prefix is not None and not name.startswith(prefix):
                continue
            kind = stored_as(name)
            if kind in ("f32", "row"):
                result[name] = p
                continue
            if quantise and kind == "fp8":
                p = straight(quant.fp8_weight, p)
            elif quantise and kind == "fp4":
                p = straight(quant.fp4_rows, p)
            w = p.to(BF16)
            leaf = name.split(".")[-1].split("@")[0]
            result[name] = w if self.half and leaf not in VECTORS else w.float()
        return result

    def tables(self, length, device):
        key = (length, device)
        if key not in self._tables:
            self._tables[key] = [rope_table(self.cfg, c, length, device) for c in (False, True)]
        return self._tables[key]

    def forward(self, tokens, weights=None, ops=None, **options):
        ops = ops or Ops(self.cfg)
        weights = self.weights(ops.quantise) if weights is None else weights
        return Backbone(self, weights, ops, tokens, **options).run()


class Backbone:
    """One pass over [B, T] tokens. Keeps what later layers and callers read.

    sparse: index sources select (else every visible entry is attended to).
    trace: dict filled with tensors of batch row 0 under the golden format's names.
    layer_hook(layer, streams_in, mix): called before each layer, may return replacements.
    probe: object with index(layer, ...) and attention(layer, ...) methods, see kl_indexer.py.
    """

    def __init__(self, model, weights, ops, tokens, sparse=True, trace=None, image=None,
                 embed_in=None, rows=None, layer_hook=None, probe=None, capture=(), engram=True):
        self.model, self.cfg, self.w, self.ops = model, model.cfg, weights, ops
        self.tokens, self.sparse, self.trace = tokens, sparse, trace
        self.image, self.embed_in, self.layer_hook = image, embed_in, layer_hook
        self.probe, self.capture = probe, capture
        self.loads, self.captured = [], {}
        self.keys, self.entries, self.selected, self.pool = {}, {}, {}, None
        self.tables = model.tables(tokens.shape[1], tokens.device)
        self.rows = rows
        if rows is None and self.cfg.engram_layer_ids and model.hasher and engram:
            self.rows = model.hasher.rows(tokens, image)

    def layer_weights(self, l):
        return {k[7:]: v[l] for k, v in self.w.items() if k.startswith("layers.")}

    def note(self, name, value):
        if self.trace is not None:
            self.trace[name] = value[0].detach()

    def run(self):
        cfg = self.cfg
        x = F.embedding(self.tokens, self.w["embed"]).to(BF16)
        x = x if self.embed_in is None else self.embed_in
        self.note("embed_in", x)
        if self.rows is not None:
            self.note("engram_rows", self.rows)
        streams = x.unsqueeze(2).expand(-1, -1, cfg.hc_mult, -1).contiguous()
        mix = torch.zeros(streams.shape[:3], device=x.device)
        mix[..., 0] = 1.0
        for l in range(cfg.num_hidden_layers):
            if self.layer_hook is not None:
                streams, mix = self.layer_hook(l, streams, mix) or (streams, mix)
            streams, mix = self.layer(l, streams, mix)
        hidden = self.ops.collapse(streams, mix)
        self.hidden = rms(hidden, self.w["norm"], cfg.rms_norm_eps)
        return self

    def logits(self, rows=slice(None)):
        h = self.hidden[:, rows]
        return F.linear(h.float(), self.w["head"].float())

    def layer(self, l, streams, mix):
        ops, w = self.ops, self.layer_weights(l)
        self.note(f"layer{l}.pre_in", mix)
        if l in self.cfg.engram_layer_ids and self.rows is not None:
            k = self.cfg.engram_layer_ids.index(l)
            e = {n: self.w[f"engram.{n}@{l}"] for n in ("eng_table", "eng_wkv", "eng_q", "eng_k")}
            streams, gate = ops.engram(streams, self.rows[:, :, k], e["eng_table"], e["eng_wkv"],
                                       e["eng_q"], e["eng_k"], self.image)
            self.note(f"layer{l}.engram_gate", gate)
            self.note(f"layer{l}.engram_out", streams)
        if l in self.capture:
            self.captured[l] = streams.float().mean(2).to(BF16)
        x, pre, post, comb = ops.site(streams, mix, w["hc_attn_fn"], w["hc_attn_base"],
                                      w["hc_attn_scale"], w["attn_norm"])
        self.note(f"layer{l}.attn_in", x)
        y = self.attention(l, x, w)
        self.note(f"layer{l}.attn_out", y)
        streams = ops.expand(y, streams, post, comb)
        x, mix, post, comb = ops.site(streams, pre, w["hc_ffn_fn"], w["hc_ffn_base"],
                                      w["hc_ffn_scale"], w["ffn_norm"])
        self.note(f"layer{l}.ffn_in", x)
        y = self.ffn(l, x, w)
        self.note(f"layer{l}.ffn_out", y)
        streams = ops.expand(y, streams, post, comb)
        self.note(f"layer{l}.streams_out", streams)
        return streams, mix

    def attention(self, l, x, w):
        cfg, ops = self.cfg, self.ops
        ratio = cfg.ratio(l)
        cos, sin = self.tables[1 if ratio else 0]
        latent, q, window = ops.project(x, w["wq_a"], w["q_norm"], w["wq_b"], w["wkv"],
                                        w["kv_norm"], cos, sin)
        self.note_ring(l, window)
        entries = mask = None
        if ratio:
            if l in cfg.kv_source_layer_ids:
                self.make_entries(l, x, ratio, cos, sin)
            if l in cfg.index_source_layer_ids and (self.sparse or self.probe is not None):
                self.select(l, latent, x, ratio, cos, sin)
            entries = self.entries[cfg.kv_source(l)]
            mask = self.selected.get(cfg.index_source(l)) if self.sparse else None
        o = ops.attend(q, window, entries, mask, ratio, w["attn_sink"])
        if self.probe is not None and ratio:
            self.probe.attention(l, q, window, entries, mask, ratio, w["attn_sink"])
        return ops.output(o, cos, sin, w["wo_a"], w["wo_b"])

    def note_ring(self, l, window):
        if self.trace is None:
            return
        width, length = self.cfg.sliding_window, window.shape[1]
        ring = torch.zeros((width, window.shape[2]), dtype=window.dtype)
        for t in range(max(0, length - width), length):
            ring[t % width] = window[0, t]
        self.trace[f"layer{l}.window_ring"] = ring

    def make_entries(self, l, x, ratio, cos, sin):
        ops, w = self.ops, self.w
        latent, pending = ops.compress(x, ratio, w[f"source.c_wkv@{l}"],
                                       w.get(f"source.c_wgate@{l}"), w[f"source.c_norm@{l}"])
        count = latent.shape[1]
        ecos, esin = cos[: count * ratio : ratio], sin[: count * ratio : ratio]
        self.entries[l] = ops.compressed_kv(latent, ecos, esin)
        if self.sparse or self.probe is not None:
            self.keys[l] = ops.index_key(latent.detach(), w[f"source.i_wk@{l}"],
                                         w[f"source.k_norm@{l}"], ecos, esin)
            self.note(f"layer{l}.index_key", self.keys[l])
        self.note(f"layer{l}.compress_kv", self.entries[l])
        if pending is not None:
            self.note(f"layer{l}.pending_kv", pending[0])
            self.note(f"layer{l}.pending_gate", pending[1])

    def select(self, l, latent, x, ratio, cos, sin):
        cfg, ops = self.cfg, self.ops
        qi, wi = ops.index_query(latent.detach(), x.detach(), self.w[f"index.i_wq_b@{l}"],
                                 self.w[f"index.i_wp@{l}"], cos, sin)
        keys = self.keys[cfg.kv_source(l)]
        if self.sparse:
            with torch.no_grad():
                self.selected[l] = self.choose(l, qi, wi, keys, ratio)
        if self.probe is not None:
            self.probe.index(l, qi, wi, keys, ratio, self.selected.get(l))

    def choose(self, l, qi, wi, keys, ratio):
        cfg, ops = self.cfg, self.ops
        visible = (torch.arange(qi.shape[1], device=qi.device) + 1) // ratio
        number = torch.arange(keys.shape[1], device=qi.device)
        score = ops.scores(qi, wi, keys)
        score = score.masked_fill(~(number < visible.unsqueeze(-1)), -math.inf)
        self.note(f"layer{l}.index_score", score)
        if l > cfg.candidate_source_layer_id >= 0 and self.pool is not None:
            score = score.masked_fill(~self.pool, -math.inf)
        if l == cfg.candidate_source_layer_id:
            self.pool = ops.candidates(score, visible)
            self.note(f"layer{l}.candidates", self.pool)
        mask = ops.best(score, cfg.index_topk)
        self.note(f"layer{l}.selected_mask", mask)
        return mask

    def ffn(self, l, x, w):
        ops, cfg = self.ops, self.cfg
        bias = w["gate_bias"]
        if self.image is not None:
            bias = torch.where(self.image.unsqueeze(-1), w["gate_bias_vl"], bias)
        weights, chosen, biased = ops.route(x, w["gate"], bias, cfg.num_experts_per_tok)
        self.loads.append(chosen)
        self.note(f"layer{l}.router_mask", chosen)
        self.note(f"layer{l}.router_weight_of", weights)
        self.note(f"layer{l}.router_score", biased)
        return ops.experts(x, weights, w["e_w1"], w["e_w3"], w["e_w2"], w["s_w1"], w["s_w3"],
                           w["s_w2"])
