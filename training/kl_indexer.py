"""Teaches the indexer by the attention its layers pay.

On a few query rows a step: the target is the attention probability of each compressed entry,
summed over heads and over all layers that share a selection, normalised to one. The loss is the
KL divergence from it to the softmax of the index scores: over all visible entries while attention
is dense; once the index sources select, over the selected ones, and in every other step over all
visible ones (what attention would pay if it could), so that an entry that was never selected can
still be learned. No gradient reaches the backbone.
"""

import math

import torch


class IndexProbe:
    def __init__(self, cfg, length, rows, device, generator=None, everything=False):
        self.cfg, self.everything = cfg, everything
        first = min(cfg.index_topk, length // 2)
        choice = torch.randint(first, length, (rows,), generator=generator)
        self.rows = choice.sort().values.to(device)
        self.scores, self.see, self.targets = {}, {}, {}

    def visible(self, ratio, entries):
        number = torch.arange(entries, device=self.rows.device)
        return number < ((self.rows + 1) // ratio).unsqueeze(-1)

    def index(self, l, qi, wi, keys, ratio, mask):
        q, w = qi[:, self.rows].float(), wi[:, self.rows].float()
        s = torch.einsum("brhc,bnc->brhn", q, keys.float())
        self.scores[l] = (torch.relu(s) * w.unsqueeze(-1)).sum(2)
        see = self.visible(ratio, keys.shape[1]).expand(q.shape[0], -1, -1)
        self.see[l] = see if mask is None or self.everything else see & (mask[:, self.rows] > 0)

    @torch.no_grad()
    def attention(self, l, q, window, entries, mask, ratio, sink):
        cfg, source = self.cfg, self.cfg.index_source(l)
        scale = cfg.head_dim**-0.5
        q = q[:, self.rows].float()
        s = torch.einsum("brhc,bnc->brhn", q, entries.float()) * scale
        s = s.masked_fill(~self.see[source].unsqueeze(2), -math.inf)
        at = self.rows.unsqueeze(1) - torch.arange(cfg.sliding_window, device=q.device)
        near = torch.einsum("brhc,brwc->brhw", q, window[:, at.clamp(min=0)].float()) * scale
        near = near.masked_fill((at < 0).unsqueeze(1), -math.inf)
        rest = torch.logaddexp(torch.logsumexp(near, -1), sink.float())
        total = torch.logaddexp(torch.logsumexp(s, -1), rest)
        p = torch.exp(s - total.unsqueeze(-1)).sum(2)
        self.targets[source] = self.targets[source] + p if source in self.targets else p

    def loss(self):
        """Mean KL over rows and sources, and the share of attention the top k would catch."""
        total, caught = 0.0, []
        for l, target in self.targets.items():
            p = target / target.sum(-1, keepdim=True).clamp(min=1e-20)
            score = self.scores[l].masked_fill(~self.see[l], -math.inf)
            log_q = torch.log_softmax(score, -1).masked_fill(~self.see[l], 0.0)
            total = total + (torch.xlogy(p, p) - p * log_q).sum(-1).mean()
            with torch.no_grad():
                k = min(self.cfg.index_topk, score.shape[-1])
                best = score.topk(k, -1).indices
                caught.append(p.gather(-1, best).sum(-1).mean())
        return total / len(self.targets), torch.stack(caught)
