"""Muon for matrices, AdamW for everything else.

Muon (Jordan 2024): momentum, then the update's singular values pushed towards one by five
Newton-Schulz steps, all matrices of one shape in one batch.
"""

import torch


def orthogonalise(g, steps=5):
    a, b, c = 3.4445, -4.7750, 2.0315
    x = g.to(torch.bfloat16) if g.is_cuda else g.float()
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x.mT if tall else x).float()


class Optimiser:
    """groups: list of dicts {kind: muon|adam, params: [(name, tensor, split)], lr, decay}.
    `split` reshapes a stacked parameter into [count, rows, columns] for Muon."""

    def __init__(self, groups, momentum=0.95, betas=(0.9, 0.95), eps=1e-10):
        self.groups, self.momentum, self.betas, self.eps = groups, momentum, betas, eps
        self.state, self.steps = {}, 0

    def zero_grad(self):
        for group in self.groups:
            for _, p, _ in group["params"]:
                p.grad = None

    @torch.no_grad()
    def step(self, factor, momentum=None):
        self.steps += 1
        for group in self.groups:
            (self._muon if group["kind"] == "muon" else self._adam)(group, factor, momentum)

    def _muon(self, group, factor, momentum):
        lr, mu = group["lr"] * factor, momentum or self.momentum
        batches = {}
        for name, p, split in group["params"]:
            if p.grad is None:
                continue
            m = self.state.setdefault(name, torch.zeros_like(p))
            m.lerp_(p.grad, 1 - mu)
            batches.setdefault(tuple(split[1:]), []).append((p, p.grad.lerp(m, mu).reshape(split)))
        for (rows, columns), members in batches.items():
            update = orthogonalise(torch.cat([u for _, u in members]))
            scale = max(1.0, rows / columns) ** 0.5
            at = 0
            for p, u in members:
                p.mul_(1 - lr * group["decay"])
                p.add_(update[at : at + u.shape[0]].reshape(p.shape), alpha=-lr * scale)
                at += u.shape[0]

    def _adam(self, group, factor, momentum):
        lr = group["lr"] * factor
        b1, b2 = group.get("betas", self.betas)
        ps = [p for _, p, _ in group["params"] if p.grad is not None]
        names = [n for n, p, _ in group["params"] if p.grad is not None]
        if not ps:
            return
        for n, p in zip(names, ps):
            if n not in self.state:
                self.state[n] = (torch.zeros_like(p), torch.zeros_like(p))
        m = [self.state[n][0] for n in names]
        v = [self.state[n][1] for n in names]
        grads = [p.grad for p in ps]
        torch._foreach_mul_(m, b1)
        torch._foreach_add_(m, grads, alpha=1 - b1)
        torch._foreach_mul_(v, b2)
        torch._foreach_addcmul_(v, grads, grads, 1 - b2)
        root = torch._foreach_sqrt(v)
        torch._foreach_div_(root, (1 - b2**self.steps) ** 0.5)
        torch._foreach_add_(root, self.eps)
        if group["decay"]:
            torch._foreach_mul_(ps, 1 - lr * group["decay"])
        torch._foreach_addcdiv_(ps, m, root, value=-lr / (1 - b1**self.steps))
