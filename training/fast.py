"""model.py's operations for training on CUDA: compiled regions and Triton kernels.

Same mathematics, other rounding: experts as one wide product masked by router weights, no bf16
rounding between experts, probabilities or scores. Every compiled region sees [tokens, ...] with a
constant token count, so that it is compiled once for all sequence lengths.
"""

import math

import torch
import torch.nn.functional as F

import quant
from model import BF16, Backbone, Ops, rms, rope, softplus
from quant import straight

if torch.cuda.is_available():
    import kernels
else:
    import kernels_plain as kernels


def _site(streams, mix, fn, base, scale, norm, eps, hc_eps):
    n = streams.shape[-2]
    v = streams.flatten(-2)
    nu = torch.rsqrt(v.float().square().mean(-1, keepdim=True) + eps)
    m = F.linear(v, fn.to(BF16)).float() * nu
    pre = torch.sigmoid(m[..., :n] * scale[0] + base[:n]) + hc_eps
    post = 2 * torch.sigmoid(m[..., n : 2 * n] * scale[1] + base[n : 2 * n])
    a = m[..., 2 * n :] * scale[2] + base[2 * n :]
    x = rms((mix.unsqueeze(-1) * streams.float()).sum(-2).to(BF16), norm, eps)
    return x, pre, post, a


def _q8(x, quantise):
    return straight(quant.q8, x) if quantise else x


def _project(x, wq_a, q_norm, wq_b, wkv, kv_norm, cos, sin, heads, eps, quantise):
    xq = _q8(x, quantise)
    latent = rms(F.linear(xq, wq_a), q_norm, eps)
    q = F.linear(_q8(latent, quantise), wq_b)
    q = rope(q.reshape(q.shape[0], heads, -1), cos.unsqueeze(-2), sin.unsqueeze(-2))
    kappa = rope(rms(F.linear(xq, wkv), kv_norm, eps), cos, sin)
    return latent, q, _q8(kappa, quantise)


def _output(o, cos, sin, wo_a, wo_b, groups, quantise):
    o = rope(o, cos.unsqueeze(-2), sin.unsqueeze(-2), inverse=True)
    g = o.reshape(o.shape[0], groups, -1).transpose(0, 1)
    u = torch.bmm(g, wo_a.reshape(groups, -1, wo_a.shape[-1]).transpose(1, 2))
    u = u.transpose(0, 1).reshape(o.shape[0], -1)
    return F.linear(_q8(u, quantise), wo_b)


def _route(x, gate, bias, active, factor):
    p = torch.sqrt(softplus(F.linear(x, gate.to(x.dtype)).float()))
    biased = p.detach() + bias
    number = torch.arange(biased.shape[-1], device=x.device)
    mine, other = biased.unsqueeze(-1), biased.unsqueeze(-2)
    ahead = (other > mine) | ((other == mine) & (number < number.unsqueeze(-1)))
    chosen = ahead.sum(-1) < active
    w = p * chosen
    return w / (w.sum(-1, keepdim=True) + 1e-20) * factor, chosen


def _ffn(x, gate, bias, w1, w3, w2, active, factor, limit, quantise):
    """w1, w3 [(E+1) * I, d], the shared expert last; w2 [d, (E+1) * I]."""
    weights, chosen = _route(x, gate, bias, active, factor)
    xq = _q8(x, quantise)
    a, b = F.linear(xq, w1), F.linear(xq, w3)
    a, b = a.float().clamp(max=limit), b.float().clamp(-limit, limit)
    v = a * torch.sigmoid(a) * b
    count = weights.shape[-1] + 1
    v = v.reshape(v.shape[0], count, -1)
    full = torch.cat((weights, torch.ones_like(weights[:, :1])), -1)
    v = (v * full.unsqueeze(-1)).to(BF16).reshape(v.shape[0], -1)
    return F.linear(_q8(v, quantise), w2), chosen.float().sum(0)


def _engram(streams, found, wkv, q_weight, k_weight, quantise):
    n, d = streams.shape[-2:]
    found = straight(quant.fp8_rows, found) if quantise else found
    kv = F.linear(_q8(found.flatten(-2).to(BF16), quantise), wkv).float()
    key, value = kv[..., : n * d].reshape(-1, n, d), kv[..., n * d :]
    s = streams.float()
    nu = torch.rsqrt(s.square().mean(-1) + 1e-20) * torch.rsqrt(key.square().mean(-1) + 1e-20)
    delta = (s * (q_weight * k_weight) * key).sum(-1) * nu * d**-0.5
    root = torch.sqrt(delta.abs().clamp(min=1e-6))
    gate = torch.sigmoid(torch.where(delta < 0, -root, root))
    return (s + gate.unsqueeze(-1) * value.unsqueeze(-2)).to(BF16), gate


def _loss(hidden, head, targets, weights):
    """Sum of weighted negative log likelihoods (nats), and the unweighted ones."""
    logits = F.linear(hidden, head).float()
    nll = torch.logsumexp(logits, -1) - logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    return (nll * weights).sum(), nll.detach()


_compiled = {}


def region(function):
    """The compiled form of a region; the plain one if the compiler refuses."""
    name = function.__name__
    if name not in _compiled:
        _compiled[name] = torch.compile(function, dynamic=False)

    def call(*args):
        try:
            return _compiled[name](*args)
        except Exception as error:  # a compiler bug costs speed, not the run
            if _compiled[name] is function:
                raise
            print(f"region {name}: not compiled: {type(error).__name__}: {str(error)[:300]}", flush=True)
            _compiled[name] = function
            return function(*args)

    return call


_checked = {}


def expand_kernel_is_right():
    """Compares the kernel and its gradient with plain torch once; a wrong one is not used."""
    if "expand" not in _checked:
        import kernels_plain

        draw = lambda *s: torch.randn(*s, device="cuda")
        inputs = [draw(999, 256).to(BF16), draw(999, 4, 256).to(BF16), draw(999, 4), draw(999, 4, 4)]
        g, sides = draw(999, 4, 256).to(BF16), []
        with torch.enable_grad():
            for module in (kernels, kernels_plain):
                leaves = [x.clone().requires_grad_(True) for x in inputs]
                out = module.Expand.apply(*leaves)
                out.backward(g)
                sides.append([out.detach()] + [x.grad for x in leaves])
        worst = max(float((a.float() - b.float()).norm() / b.float().norm()) for a, b in zip(*sides))
        print(f"expand kernel: worst relative difference {worst:.1e}", flush=True)
        _checked["expand"] = worst < 1e-2
    return _checked["expand"]


def _expand(y, streams, post, comb):
    kept = (comb.unsqueeze(-1) * streams.float().unsqueeze(-2)).sum(-3)
    return (post.unsqueeze(-1) * y.float().unsqueeze(-2) + kept).to(BF16)


class FastOps(Ops):
    """`dropout` applies to what a sub-layer writes to the streams, in training only."""

    def __init__(self, cfg, quantise=True, dropout=0.0, compiled=True):
        super().__init__(cfg, quantise, bf16_scores=False, bf16_probabilities=False)
        self.dropout = dropout
        wrap = region if compiled else (lambda f: f)
        self._site, self._project = wrap(_site), wrap(_project)
        self._output, self._ffn, self._engram = wrap(_output), wrap(_ffn), wrap(_engram)
        self._spread = {}
        good = torch.cuda.is_available() and expand_kernel_is_right()
        self._expand = kernels.Expand.apply if good else wrap(_expand)

    def spread(self, table, batch):
        """RoPE tables [T, rho/2] repeated for [batch * T] rows; [batch, T, rho/2] as they are."""
        if table.dim() == 3:
            return table.reshape(-1, table.shape[-1])
        key = (table.data_ptr(), batch)
        if key not in self._spread:
            self._spread[key] = table.repeat(batch, 1)
        return self._spread[key]

    def site(self, streams, mix, fn, base, scale, norm):
        b, t, n, d = streams.shape
        cfg = self.cfg
        x, pre, post, a = self._site(streams.view(b * t, n, d), mix.reshape(b * t, n), fn, base,
                                     scale, norm, cfg.rms_norm_eps, cfg.hc_eps)
        comb = kernels.Sinkhorn.apply(a.view(b * t, n, n), cfg.hc_sinkhorn_iters, cfg.hc_eps)
        return (x.view(b, t, d), pre.view(b, t, n), post.view(b, t, n), comb.view(b, t, n, n))

    def expand(self, y, streams, post, comb):
        b, t, n, d = streams.shape
        if self.dropout > 0 and torch.is_grad_enabled():
            y = F.dropout(y, self.dropout)
        s = self._expand(y.reshape(b * t, d), streams.view(b * t, n, d),
                         post.reshape(b * t, n), comb.reshape(b * t, n, n))
        return s.view(b, t, n, d)

    def project(self, x, wq_a, q_norm, wq_b, wkv, kv_norm, cos, sin):
        b, t, d = x.shape
        cfg = self.cfg
        latent, q, window = self._project(x.reshape(b * t, d), wq_a, q_norm, wq_b, wkv, kv_norm,
                                          self.spread(cos, b), self.spread(sin, b),
                                          cfg.num_attention_heads, cfg.rms_norm_eps, self.quantise)
        return latent.view(b, t, -1), q.view(b, t, cfg.num_attention_heads, -1), window.view(b, t, -1)

    def attend(self, q, window, entries, mask, ratio, sink):
        return kernels.Attention.apply(q, window, entries, mask, sink, ratio, self.cfg.sliding_window)

    def output(self, o, cos, sin, wo_a, wo_b):
        b, t, h, c = o.shape
        y = self._output(o.reshape(b * t, h, c), self.spread(cos, b), self.spread(sin, b), wo_a, wo_b,
                         self.cfg.o_groups, self.quantise)
        return y.view(b, t, -1)

    def ffn(self, x, w, active):
        b, t, d = x.shape
        cfg = self.cfg
        y, load = self._ffn(x.reshape(b * t, d), w["gate"], w["gate_bias"], w["w1"], w["w3"],
                            w["w2"], active, cfg.routed_scaling_factor, cfg.swiglu_limit, self.quantise)
        return y.view(b, t, d), load

    def engram(self, streams, rows, table, wkv, q_weight, k_weight, dead):
        b, t, n, d = streams.shape
        found = F.embedding(rows.reshape(b * t, -1), table)
        s, gate = self._engram(streams.view(b * t, n, d), found, wkv, q_weight, k_weight, self.quantise)
        return s.view(b, t, n, d), gate.view(b, t, n)

    def select(self, qi, wi, keys, ratio, k, pool, is_source):
        """uint8 selection mask, and the pool as uint8 block mask where this source makes it."""
        cfg = self.cfg
        size = cfg.candidate_block_size
        score = kernels.index_scores(qi, wi, keys, ratio, pool, size)
        made = None
        if is_source:
            b, t, n = score.shape
            padded = F.pad(score, (0, -n % size), value=-math.inf)
            block = padded.view(b, t, -1, size).amax(-1)
            visible = (torch.arange(t, device=score.device) + 1) // ratio
            forced = ((visible - 1).clamp(min=0) // size).unsqueeze(-1)
            number = torch.arange(block.shape[-1], device=score.device)
            block = block.masked_fill((number == forced) & (visible > 0).unsqueeze(-1), math.inf)
            made = kernels.top_mask(block, cfg.candidate_topk_blocks)
        return kernels.top_mask(score, k), made


class FastBackbone(Backbone):
    """One training pass. `sparse` is whether the index sources select yet."""

    def __init__(self, model, weights, ops, tokens, **options):
        super().__init__(model, weights, ops, tokens, **options)
        self.blocks = unstack(weights, "layers.")

    def layer_weights(self, l):
        return self.blocks[l]

    def choose(self, l, qi, wi, keys, ratio):
        cfg = self.cfg
        after = l > cfg.candidate_source_layer_id >= 0
        mask, made = self.ops.select(qi, wi, keys, ratio, cfg.index_topk,
                                     self.pool if after else None, l == cfg.candidate_source_layer_id)
        self.pool = made if made is not None else self.pool
        return mask

    def ffn(self, l, x, w):
        y, load = self.ops.ffn(x, w, self.cfg.num_experts_per_tok)
        self.loads.append(load)
        return y


def unstack(weights, prefix):
    """Per layer dictionaries, with the experts joined into the matrices of `_ffn`."""
    stacked = {k[len(prefix):]: v for k, v in weights.items() if k.startswith(prefix)}
    stacked = {k: v for k, v in stacked.items() if k not in ("main_proj", "main_norm", "norm",
               "markov_embed", "markov_head", "confidence")}
    e1, e3, e2 = (stacked.pop(f"e_w{i}") for i in (1, 3, 2))
    s1, s3, s2 = (stacked.pop(f"s_w{i}") for i in (1, 3, 2))
    stacked["w1"] = torch.cat((e1.flatten(1, 2), s1), 1)
    stacked["w3"] = torch.cat((e3.flatten(1, 2), s3), 1)
    stacked["w2"] = torch.cat((e2.permute(0, 2, 1, 3).flatten(2), s2), 2)
    split = {k: v.unbind(0) for k, v in stacked.items()}
    return [{k: v[i] for k, v in split.items()} for i in range(stacked["w1"].shape[0])]
