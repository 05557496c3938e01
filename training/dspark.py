"""The draft head of spec/dspark.md: its forward, its loss, and how many drafts are accepted.

Works on whole sequences: context rows come from one backbone pass, and many anchors are drafted
at once. With model.Ops on a CPU it is the reference for drafts; with fast.FastOps it trains.
"""

import torch
import torch.nn.functional as F

from model import rms


def stage_weights(weights, fast):
    if fast:
        from fast import unstack

        return unstack(weights, "mtp.")
    names = {k[4:]: v for k, v in weights.items() if k.startswith("mtp.")}
    count = names["attn_norm"].shape[0]
    single = ("main_proj", "main_norm", "norm", "markov_embed", "markov_head", "confidence")
    return [{k: v[s] for k, v in names.items() if k not in single} for s in range(count)]


def main_hidden(cfg, captured):
    """[B, T, targets * d] context rows m_p of one backbone pass."""
    return torch.cat([captured[l] for l in cfg.dspark_target_layer_ids], -1)


def draft_hidden(model, weights, ops, context, positions, anchors, trace=None):
    """context [B,T,targets*d]; positions [B,A]: p, the last token the backbone has processed;
    anchors [B,A]: the token at p+1. Returns pre-norm hidden rows [B, A, block, d]."""
    cfg, fast = model.cfg, hasattr(ops, "ffn")
    block, width, n = cfg.dspark_block_size, cfg.sliding_window, cfg.hc_mult
    batch, count = positions.shape
    length = context.shape[1]
    cos, sin = model.tables(length + block + 1, context.device)[0]
    ids = torch.full((batch, count, block), cfg.dspark_noise_token_id, device=context.device)
    ids[..., 0] = anchors
    at = positions.unsqueeze(-1) + 1 + torch.arange(block, device=context.device)
    row_cos, row_sin = cos[at.flatten(1)], sin[at.flatten(1)]
    seen = positions.unsqueeze(-1) - torch.arange(width - 1, -1, -1, device=context.device)
    see = (seen >= 0).unsqueeze(2).expand(-1, -1, block, -1)
    see = torch.cat((see, see.new_ones(batch, count, block, block)), -1)
    take = (seen.clamp(min=0) + torch.arange(batch, device=context.device)[:, None, None] * length)

    x = ops.mmq(context, weights["mtp.main_proj"])
    main = rms(x, weights["mtp.main_norm"], cfg.rms_norm_eps)
    x = F.embedding(ids.flatten(1), weights["embed"]).to(torch.bfloat16)
    streams = x.unsqueeze(2).expand(-1, -1, n, -1).contiguous()
    mix = torch.zeros(streams.shape[:3], device=x.device)
    mix[..., 0] = 1.0
    for s, w in enumerate(stage_weights(weights, fast)):
        old = ops.window_key(main, w["wkv"], w["kv_norm"], cos[:length], sin[:length])
        if trace is not None:
            trace[f"stage{s}.context_kv"] = old[0].detach()
        x, pre, post, comb = ops.site(streams, mix, w["hc_attn_fn"], w["hc_attn_base"],
                                      w["hc_attn_scale"], w["attn_norm"])
        _, q, own = ops.project(x, w["wq_a"], w["q_norm"], w["wq_b"], w["wkv"], w["kv_norm"],
                                row_cos, row_sin)
        keys = F.embedding(take, old.reshape(batch * length, -1))
        keys = torch.cat((keys, own.view(batch, count, block, -1)), 2)
        o = ops.attend_rows(q.reshape(batch * count, block, q.shape[2], q.shape[3]),
                            keys.flatten(0, 1), see.flatten(0, 1), w["attn_sink"])
        y = ops.output(o.reshape(q.shape), row_cos, row_sin, w["wo_a"], w["wo_b"])
        streams = ops.expand(y, streams, post, comb)
        x, mix, post, comb = ops.site(streams, pre, w["hc_ffn_fn"], w["hc_ffn_base"],
                                      w["hc_ffn_scale"], w["ffn_norm"])
        if fast:
            y, load = ops.ffn(x, w, cfg.dspark_num_experts_per_tok)
            if trace is not None:
                trace.setdefault("loads", []).append(load)
        else:
            routed, _, _ = ops.route(x, w["gate"], w["gate_bias"], cfg.dspark_num_experts_per_tok)
            y = ops.experts(x, routed, w["e_w1"], w["e_w3"], w["e_w2"], w["s_w1"], w["s_w3"],
                            w["s_w2"])
        streams = ops.expand(y, streams, post, comb)
    return ops.collapse(streams, mix).view(batch, count, block, -1)


def base_logits(cfg, weights, hidden):
    z = rms(hidden, weights["mtp.norm"], cfg.rms_norm_eps)
    return F.linear(z, weights["head"]).float() if z.is_cuda else F.linear(z.float(), weights["head"].float())


def markov(weights, before):
    """What the previous token adds to the logits; `before` any shape of ids."""
    e = F.embedding(before, weights["mtp.markov_embed"])
    return F.linear(e, weights["mtp.markov_head"]).float(), e


def confidence(weights, hidden, e):
    joined = torch.cat((hidden.float(), e.float()), -1)
    return F.linear(joined, weights["mtp.confidence"].float()).squeeze(-1)


def draft_greedy(cfg, weights, hidden, anchors):
    """ids [B,A,block], logits [B,A,block,V], confidence logits [B,A,block]."""
    base, before = base_logits(cfg, weights, hidden), anchors
    ids, logits, sure = [], [], []
    for i in range(cfg.dspark_block_size):
        add, e = markov(weights, before)
        logits.append(base[:, :, i] + add)
        sure.append(confidence(weights, hidden[:, :, i], e))
        before = logits[-1].argmax(-1)
        ids.append(before)
    return torch.stack(ids, 2), torch.stack(logits, 2), torch.stack(sure, 2)


def loss(cfg, weights, hidden, tokens, positions, target_logits, decay=0.8):
    """KL from the backbone's next-token law to the draft's, earlier slots weighing more, plus the
    confidence head's cross entropy towards the acceptance rate 1 - |p - q| / 2.
    tokens [B,T]; target_logits [B,A,block,V] are the backbone's rows p+1 .. p+block."""
    block = cfg.dspark_block_size
    at = positions.unsqueeze(-1) + 1 + torch.arange(block, device=tokens.device)
    before = tokens.gather(1, at.flatten(1)).view(at.shape)
    add, e = markov(weights, before)
    log_q = torch.log_softmax(base_logits(cfg, weights, hidden) + add, -1)
    log_p = torch.log_softmax(target_logits.float(), -1)
    p = log_p.exp()
    weight = decay ** torch.arange(block, device=tokens.device, dtype=torch.float32)
    kl = (p * (log_p - log_q)).sum(-1)
    overlap = 1 - 0.5 * (p - log_q.detach().exp()).abs().sum(-1)
    sure = confidence(weights, hidden.detach(), e.detach())
    sure_loss = F.binary_cross_entropy_with_logits(sure, overlap)
    hit = (log_q.argmax(-1) == log_p.argmax(-1)).float().mean((0, 1))
    return (kl * weight).sum(-1).mean() / weight.sum() + 0.2 * sure_loss, hit


def accepted_lengths(drafts, truth, start, stop):
    """Walks one sequence: drafts [A, block] for consecutive positions p = start, start+1, ..;
    truth = token list. Rounds until `stop` (exclusive) tokens are committed; each round commits
    its accepted drafts and one token of the backbone."""
    p, rounds = start, []
    while p + 2 < stop and p - start < len(drafts):
        row, good = drafts[p - start], 0
        while good < len(row) and p + 2 + good < stop and row[good] == truth[p + 2 + good]:
            good += 1
        rounds.append(good + 1)
        p += good + 1
    return rounds
