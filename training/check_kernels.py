"""On a CUDA machine: every kernel and its gradient against plain torch, then their times and the
compiled regions'. Prints one line each; exit code 1 if one disagrees."""

import sys
import time
import traceback

import torch

import kernels
import kernels_plain


def relative(a, b):
    a, b = a.detach().double(), b.detach().double()
    return ((a - b).norm() / b.norm().clamp(min=1e-30)).item()


def timed(f, repeat=10):
    f()
    torch.cuda.synchronize()
    begin = time.time()
    for _ in range(repeat):
        f()
    torch.cuda.synchronize()
    return (time.time() - begin) / repeat * 1e3


def gradients(f, inputs, g):
    leaves = [x.detach().clone().requires_grad_(True) for x in inputs]
    out = f(*leaves)
    out.backward(g)
    return [out] + [x.grad for x in leaves]


def sinkhorn():
    a = torch.randn(1000, 4, 4, device="cuda") * 2
    g = torch.randn_like(a)
    fast = gradients(lambda a: kernels.Sinkhorn.apply(a, 20, 1e-6), [a], g)
    slow = gradients(lambda a: kernels_plain.Sinkhorn.apply(a, 20, 1e-6), [a], g)
    big = torch.randn(65536, 4, 4, device="cuda", requires_grad=True)
    ms = timed(lambda: kernels.Sinkhorn.apply(big, 20, 1e-6).sum().backward())
    return [relative(x, y) for x, y in zip(fast, slow)], 1e-3, f"{ms:.3f} ms for 65536"


def expand():
    draw = lambda *s: torch.randn(*s, device="cuda")
    inputs = lambda n: [draw(n, 256).bfloat16(), draw(n, 4, 256).bfloat16(), draw(n, 4), draw(n, 4, 4)]
    small, g = inputs(1001), draw(1001, 4, 256).bfloat16()
    fast, slow = (gradients(m.Expand.apply, small, g) for m in (kernels, kernels_plain))
    big = [x.requires_grad_(True) for x in inputs(65536)]
    go = torch.randn_like(big[1])
    ms = timed(lambda: kernels.Expand.apply(*big).backward(go))
    return [relative(x, y) for x, y in zip(fast, slow)], 1e-2, f"{ms:.3f} ms for 65536"


def attention(ratio, masked):
    def run():
        torch.manual_seed(0)
        batch, length, count = 2, 256, 256 // ratio if ratio else 0
        draw = lambda *s: torch.randn(*s, device="cuda").to(torch.bfloat16)
        inputs = [draw(batch, length, 8, 64), draw(batch, length, 64), torch.randn(8, device="cuda")]
        if ratio:
            inputs.append(draw(batch, count, 64))
        mask = (torch.rand(batch, length, count, device="cuda") < 0.3).to(torch.uint8) if masked else None
        g = draw(batch, length, 8, 64)

        def call(module):
            return lambda q, w, s, e=None: module.Attention.apply(q, w, e, mask, s, ratio, 64)

        fast, slow = gradients(call(kernels), inputs, g), gradients(call(kernels_plain), inputs, g)
        big = [draw(64, 1024, 8, 64), draw(64, 1024, 64), torch.randn(8, device="cuda")]
        big += [draw(64, 1024 // ratio, 64)] if ratio else []
        m = torch.ones(64, 1024, 1024 // ratio, device="cuda", dtype=torch.uint8) if masked else None
        q, w, s, e = (x.requires_grad_(True) if x is not None else None for x in (big + [None])[:4])
        go = torch.randn_like(q)
        fwd = timed(lambda: kernels.Attention.apply(q, w, e, m, s, ratio, 64))
        both = timed(lambda: kernels.Attention.apply(q, w, e, m, s, ratio, 64).backward(go))
        return [relative(x, y) for x, y in zip(fast, slow)], 2e-2, f"64 x 1024: {fwd:.2f} ms, with gradient {both:.2f} ms"
    return run


def index():
    draw = lambda *s: torch.randn(*s, device="cuda").to(torch.bfloat16)
    errors = []
    for ratio, pooled in ((1, False), (2, False), (1, True)):
        q, w, k = draw(2, 256, 4, 64), draw(2, 256, 4), draw(2, 256 // ratio, 64)
        pool = (torch.rand(2, 256, 256 // ratio // 8, device="cuda") < 0.5).to(torch.uint8) if pooled else None
        a, b = (m.index_scores(q, w, k, ratio, pool) for m in (kernels, kernels_plain))
        if not bool(((a == float("-inf")) == (b == float("-inf"))).all()):
            errors.append(1.0)
        errors.append(relative(a.clamp(min=-1e6).nan_to_num(), b.clamp(min=-1e6).nan_to_num()))
        for s in (b, torch.relu(b - 2).masked_fill(b == float("-inf"), float("-inf"))):
            x, y = kernels.top_mask(s, 64), kernels_plain.top_mask(s, 64)
            errors.append(float((x != y).float().mean()))
    q, w, k = draw(16, 4096, 4, 64), draw(16, 4096, 4), draw(16, 4096, 64)
    s = kernels.index_scores(q, w, k, 1)
    return errors, 1e-2, (f"16 x 4096: scores {timed(lambda: kernels.index_scores(q, w, k, 1)):.2f} ms, "
                    f"top 64 {timed(lambda: kernels.top_mask(s, 64)):.2f} ms")


def main():
    good = True
    tests = {"sinkhorn": sinkhorn, "expand": expand, "attention window": attention(0, False), "attention r2": attention(2, False),
             "attention r1": attention(1, False), "attention r1 masked": attention(1, True), "index": index}
    for name, test in tests.items():
        begin = time.time()
        try:
            errors, limit, note = test()
            ok = max(errors) < limit
            print(f"{name}: {'ok' if ok else 'WRONG'} {' '.join(f'{e:.1e}' for e in errors)}; {note}; "
                  f"{time.time() - begin:.1f} s", flush=True)
        except Exception:
            ok = False
            print(f"{name}: FAILED\n{traceback.format_exc()[-1500:]}", flush=True)
        good = good and ok
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
