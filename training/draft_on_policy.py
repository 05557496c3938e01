"""Teaches the draft stages the text that the model itself writes at temperature 0.

The stages of train.py have seen books and chats; what they must predict when serving is the
model's own greedy text, which repeats itself far more. Two steps, CPU or CUDA:

    draft_on_policy.py prompts --data DIR --out requests.jsonl
    galley batch requests.jsonl -o answers.jsonl --model models/nano --replay off
    draft_on_policy.py train --data DIR --model models/nano --requests requests.jsonl
                             --answers answers.jsonl --minutes 5 --out finished.pt
    export.py finished.pt DIR models/nano

Prompts come from the training books, never from the held-out ones. World documents stay in the
mix so that chats are not forgotten. Only the draft's own tensors change. The shipped drafts have
not been through this: on a busy CPU about 750 steps of 240 anchors moved held-out stories from 2.07 to
2.19 accepted (24 prompts), and with a world share of 13 % lost chats from 4.76 to 3.23; it wants a
GPU's number of anchors and the larger share of world documents that now stands below.
"""

import argparse
import json
import pathlib
import random
import sys
import time

import numpy as np
import torch
import torch.nn.functional as F

import checkpoint
import dspark
import engram
import fast
from export import read_training
from model import Config, Model, rms
from optim import Optimiser
from tokenizer import Tokenizer
from train import save

KEPT = 66  # context rows before the first anchor: the window and two
ROWS, ANCHORS = 6, 40
GREEDY_SHARE = 0.6
WORLD = (("world_chat", 240), ("story_chat", 200), ("tools", 160), ("sums", 160), ("json", 60))


def write_prompts(options):
    coder = Tokenizer.load(options.data / "tokenizer.json")
    ids = np.fromfile(options.data / "en_stories.u16", dtype=np.uint16)
    rng, made = np.random.default_rng(11), 0
    with open(options.out, "w", encoding="utf-8") as f:
        while made < options.count:
            start = rng.integers(0, len(ids) - 300)
            part = ids[start : start + int(rng.choice([64, 128, 255, 255]))]
            if (part < 3).any():
                continue
            f.write(json.dumps({"custom_id": str(made), "prompt": coder.decode(part.tolist()),
                                "max_tokens": 192, "temperature": 0}) + "\n")
            made += 1


def sequences(options, coder):
    """(tokens, prompt length) of greedy texts, then of world documents."""
    with open(options.requests, encoding="utf-8") as f:
        prompts = {r["custom_id"]: r["prompt"] for r in map(json.loads, f)}
    greedy, world = [], []
    with open(options.answers, encoding="utf-8") as f:
        for answer in map(json.loads, f):
            if len(answer.get("ids", ())) >= ANCHORS + 16:
                prompt = [0] + coder.encode(prompts[answer["custom_id"]], added_tokens=False)
                greedy.append((prompt + answer["ids"], len(prompt)))
    from world import documents

    source, rng = documents.World(coder.encode, []), random.Random(77)
    for name, count in WORLD:
        for _ in range(count):
            tokens = coder.encode(source.document(name, rng))[:420]
            if len(tokens) >= 60:
                world.append((tokens, 3))
    return greedy, world


@torch.no_grad()
def features(model, weights, ops, tokens, prompt, device):
    """What the draft trains on: context rows from `kept` on, and the backbone's best tokens."""
    padded = torch.tensor(tokens + [2] * (-len(tokens) % 32), device=device).unsqueeze(0)
    run = fast.FastBackbone(model, weights, ops, padded, capture=model.cfg.dspark_target_layer_ids).run()
    kept = max(0, prompt - KEPT)
    best = F.linear(run.hidden[0], weights["head"]).argmax(-1)[: len(tokens)].cpu()
    context = dspark.main_hidden(model.cfg, run.captured)[0, kept : len(tokens)].cpu()
    return {"tokens": torch.tensor(tokens), "best": best, "context": context, "kept": kept, "prompt": prompt}


def draw(pools, rng, block):
    """ROWS stretches of ANCHORS consecutive anchors, each with its window before it."""
    chosen = []
    while len(chosen) < ROWS:
        q = rng.choice(pools[0] if rng.random() < GREEDY_SHARE else pools[1])
        low, high = max(q["prompt"] - 1, q["kept"] + 1), len(q["tokens"]) - ANCHORS - block - 2
        if high >= low:
            start = rng.randint(low, high)
            chosen.append((q, start, max(q["kept"], start - 63)))
    length = max(start - first for _, start, first in chosen) + ANCHORS
    context = torch.zeros(ROWS, length, chosen[0][0]["context"].shape[1], dtype=torch.bfloat16)
    tokens = torch.zeros(ROWS, length + block + 2, dtype=torch.int64)
    best, positions = tokens.clone(), torch.zeros(ROWS, ANCHORS, dtype=torch.int64)
    for i, (q, start, first) in enumerate(chosen):
        rows, at = start - first + ANCHORS, first - q["kept"]
        context[i, :rows] = q["context"][at : at + rows]
        positions[i] = start - first + torch.arange(ANCHORS)
        size = min(tokens.shape[1], len(q["tokens"]) - first)
        tokens[i, :size] = q["tokens"][first : first + size]
        best[i, :size] = q["best"][first : first + size]
    return context, tokens, best, positions


def loss_of(model, weights, ops, batch, frequent):
    """Cross entropy towards the backbone's best token, over a sample of the vocabulary; a slot
    whose predecessors were not the backbone's choice is never reached and does not count."""
    cfg, block = model.cfg, model.cfg.dspark_block_size
    context, tokens, best, positions = batch
    hidden = dspark.draft_hidden(model, weights, ops, context, positions, tokens.gather(1, positions + 1))
    at = positions.unsqueeze(-1) + 1 + torch.arange(block, device=tokens.device)
    take = lambda source, shift: source.gather(1, (at + shift).flatten(1)).view(at.shape)
    label = take(best, 0)
    random_ids = torch.randint(0, cfg.vocab_size, (300,), device=label.device)
    words = torch.unique(torch.cat((label.flatten(), frequent, random_ids)))
    e = F.embedding(take(tokens, 0), weights["mtp.markov_embed"])
    z = rms(hidden, weights["mtp.norm"], cfg.rms_norm_eps)
    logits = F.linear(z, weights["head"][words]) + F.linear(e, weights["mtp.markov_head"][words])
    logits, target = logits.float(), torch.searchsorted(words, label)
    same = (label == take(tokens, 1)).float()
    reached = torch.cat((torch.ones_like(same[..., :1]), same.cumprod(-1)[..., :-1]), -1)
    weight = reached * 0.85 ** torch.arange(block, dtype=torch.float32, device=label.device)
    nll = F.cross_entropy(logits.flatten(0, 2), target.flatten(), reduction="none").view(label.shape)
    chance = torch.softmax(logits.detach(), -1).gather(-1, target.unsqueeze(-1)).squeeze(-1)
    sure = dspark.confidence(weights, hidden.detach(), e.detach())
    hits = ((logits.argmax(-1) == target) * reached).sum((0, 1)) / reached.sum((0, 1)).clamp(min=1)
    return (nll * weight).sum() / weight.sum() + 0.2 * F.binary_cross_entropy_with_logits(sure, chance), hits


def train(options):
    device = torch.device(options.device)
    coder = Tokenizer.load(options.data / "tokenizer.json")
    if options.model.is_dir():
        model = Model(Config.load(options.model / "config.json"))
        checkpoint.load(model, options.model)
    else:
        model = read_training(options.model)
    cid = engram.compressed_ids(options.data / "tokenizer.json", model.cfg.vocab_size)
    model.hasher, model.half = engram.Hasher(model.cfg, cid), True
    model = model.to(device)
    for name, p in model.params.items():
        p.requires_grad_(name.startswith("mtp.") and "gate_bias" not in name)
    ops = fast.FastOps(model.cfg, True, 0.0, compiled=False)
    with torch.no_grad():
        frozen = model.weights(True)
    pools = [[features(model, frozen, ops, t, p, device) for t, p in pool] for pool in sequences(options, coder)]
    print("greedy texts", len(pools[0]), "world documents", len(pools[1]), flush=True)
    counts = sum(torch.bincount(q["tokens"], minlength=model.cfg.vocab_size) for pool in pools for q in pool)
    frequent = counts.argsort(descending=True)[:900].to(device)
    own = [(n, p, None) for n, p in model.params.items() if p.requires_grad]
    matrix = lambda n: n.split(".")[-1] in ("wq_a", "wq_b", "wkv", "wo_a", "wo_b", "main_proj") or "_w" in n
    optimiser = Optimiser([
        {"kind": "adam", "lr": 8e-4, "decay": 0.0, "params": [x for x in own if matrix(x[0])]},
        {"kind": "adam", "lr": 5e-4, "decay": 0.0, "params": [x for x in own if ".hc_" in x[0]]},
        {"kind": "adam", "lr": 1.5e-3, "decay": 0.0,
         "params": [x for x in own if not matrix(x[0]) and ".hc_" not in x[0]]},
    ], betas=(0.9, 0.98))
    rng, begin, steps, mean, said = random.Random(5), time.time(), 0, None, 0.0
    torch.manual_seed(0)
    while (f := (time.time() - begin) / (options.minutes * 60)) < 1:
        batch = [x.to(device) for x in draw(pools, rng, model.cfg.dspark_block_size)]
        weights = {**frozen, **model.weights(True, "mtp.")}
        loss, hits = loss_of(model, weights, ops, batch, frequent)
        loss.backward()
        norm = torch.linalg.vector_norm(torch.stack([p.grad.norm() for _, p, _ in own if p.grad is not None]))
        for _, p, _ in own:
            if p.grad is not None:
                p.grad.mul_((1.0 / (norm + 1e-6)).clamp(max=1.0))
        optimiser.step(min(1.0, f / 0.05 + 0.05) * min(1.0, (1 - f) / 0.7))
        optimiser.zero_grad()
        steps += 1
        mean = hits if mean is None else 0.96 * mean + 0.04 * hits
        if time.time() - said > 30:
            said = time.time()
            print(f"f={f:.2f} step {steps} loss {loss.item():.3f} agreement "
                  + " ".join(f"{h:.3f}" for h in mean.tolist()), flush=True)
    save(model, options.out)
    print("steps", steps)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("verb", choices=("prompts", "train"))
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--count", type=int, default=960)
    parser.add_argument("--model", type=pathlib.Path, help="released directory, or what train.py saved")
    parser.add_argument("--requests")
    parser.add_argument("--answers")
    parser.add_argument("--minutes", type=float, default=28)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    (write_prompts if options.verb == "prompts" else train)(options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
