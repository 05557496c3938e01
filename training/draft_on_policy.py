"""Teaches the draft stages the text that the model itself writes at temperature 0.

The stages of train.py have seen books and chats; what they must predict when serving is the
model's own greedy text, which repeats itself far more. Five steps; the second on any machine, the
fourth wants a GPU:

    draft_on_policy.py prompts --data DIR --out requests.jsonl
    galley batch requests.jsonl -o answers.jsonl --model models/nano --replay off
    draft_on_policy.py pack --data DIR --requests requests.jsonl --answers answers.jsonl --out texts.npz
    draft_on_policy.py train --data DIR --model models/nano --texts texts.npz --out finished.pt
    draft_on_policy.py export --data DIR --model models/nano --drafts finished.pt --out models/nano

`measure` with the texts of `pack` says how many drafts a model gets accepted; any machine does.
Prompts come from the training books, never from the held-out ones. World documents stay in the
mix so that chats are not forgotten. The backbone is frozen: its passes over all texts are made
once and kept on the device, and every step draws anchors from them. Only the draft's own tensors
change; `--set` may give it another shape (stages, experts, captured layers), and what fits of the
old tensors is where training starts.
"""

import argparse
import copy
import json
import multiprocessing
import os
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
import export
import fast
import train
from export import read_training
from model import Config, Model, rms
from optim import Optimiser
from tokenizer import Tokenizer

KEPT = 66  # context rows before a stretch's first anchor: the window and two
STRETCH = 168  # anchors of one stretch
GREEDY, WORLD, HELD, HELD_WORLD = range(4)
WORLD_SHARES = (("world_chat", 4400), ("story_chat", 3600), ("tools", 2400), ("sums", 1600),
                ("json", 800), ("small_talk", 200))
DEFAULTS = {
    "seconds": 300.0, "rows": 64, "anchors": 64, "greedy": 0.65, "soft": 0.25, "decay": 0.85,
    "muon_lr": 0.012, "adam_lr": 0.003, "hc_lr": 0.0006, "cooldown_from": 0.3, "warmup": 0.03,
    "bias_rate": 0.002, "dropout": 0.0, "config": {},
}


def write_prompts(options):
    """Requests of three kinds: training stories and, in shard 0, held-out stories and the task
    set's chats. Shards are different prompts, so that many processes may answer them."""
    from corpus import Corpus

    ids = np.fromfile(options.data / "en_stories.u16", dtype=np.uint16)
    coder = Tokenizer.load(options.data / "tokenizer.json")
    rng, made = np.random.default_rng(11 + options.shard), 0
    with open(options.out, "w", encoding="utf-8") as f:
        def write(kind, number, prompt, limit):
            f.write(json.dumps({"custom_id": f"{kind}-{options.shard}-{number}", "ids": prompt, "max_tokens": limit,
                                "temperature": 0}) + "\n")

        if options.shard == 0:
            windows = Corpus(options.data, torch.device("cpu")).heldout_windows(512)[0]
            order = torch.randperm(len(windows) - 8, generator=torch.Generator().manual_seed(5))
            for number, i in enumerate(order[:192]):
                write(HELD, number, windows[i][:256].tolist(), 128)
            with open(pathlib.Path(__file__).parent / "tasks" / "chat.jsonl", encoding="utf-8") as tasks:
                for number, case in enumerate(map(json.loads, tasks)):
                    write(HELD_WORLD, number, coder.encode(case["prompt"]), case["max_tokens"])
        while made < options.count:
            start = rng.integers(0, len(ids) - 300)
            part = ids[start : start + int(rng.choice([64, 128, 255, 255]))]
            if (part >= 3).all():
                write(GREEDY, made, [0] + part.tolist(), 160)
                made += 1


def world_documents(job):
    from world import documents

    data, name, count, seed = job
    coder, rng = Tokenizer.load(data / "tokenizer.json"), random.Random(f"draft {name} {seed}")
    source = documents.World(coder.encode, [])
    return [coder.encode(source.document(name, rng))[:1000] for _ in range(count)]


def pack(options):
    """Tokens of all texts in one array, with length, prompt length and kind of each."""
    texts = []
    for request_file, answer_file in zip(options.requests, options.answers):
        with open(request_file, encoding="utf-8") as f:
            prompts = {r["custom_id"]: r["ids"] for r in map(json.loads, f)}
        with open(answer_file, encoding="utf-8") as f:
            for line in f:
                answer = json.loads(line) if line.endswith("\n") else {}
                if len(answer.get("ids", ())) >= 2:
                    prompt = prompts[answer["custom_id"]]
                    texts.append((prompt + answer["ids"], len(prompt), int(answer["custom_id"].split("-")[0])))
    jobs = [(options.data, name, count // 8, seed) for name, count in WORLD_SHARES for seed in range(8)]
    with multiprocessing.Pool(os.cpu_count()) as pool:
        for some in pool.imap_unordered(world_documents, jobs):
            texts += [(t, 3, WORLD) for t in some if len(t) >= 40]
    np.savez_compressed(options.out, tokens=np.concatenate([np.array(t, dtype=np.uint16) for t, _, _ in texts]),
                        length=np.array([len(t) for t, _, _ in texts]),
                        prompt=np.array([p for _, p, _ in texts]), kind=np.array([k for _, _, k in texts]))
    print("texts by kind", np.bincount([k for _, _, k in texts]).tolist())


class Stretches:
    """Backbone rows of many texts, flat on the device, and the stretches of anchors in them.

    tokens, best [N]; context [N, targets * d]; hidden [N, d], of which `best` is the head's choice.
    Each stretch: base (row of its first context row), low and high (first and last anchor, from base)."""

    def __init__(self, device):
        self.device, self.parts, self.rows = device, [], 0
        self.table = {kind: [] for kind in range(4)}
        self.whole = {kind: [] for kind in range(4)}

    def add(self, kind, tokens, best, context, hidden, prompt, block):
        kept = max(0, prompt - KEPT)
        self.parts.append([x[kept:].clone() for x in (tokens, best, context, hidden)])
        start, end = prompt - 1 - kept, len(tokens) - kept
        self.whole[kind].append((self.rows, start, end))
        for low in range(max(start, 1), end - block - 1, STRETCH):
            base = max(0, low - KEPT + 2)
            self.table[kind].append((self.rows + base, low - base, min(low + STRETCH, end - block - 1) - 1 - base))
        self.rows += end

    def seal(self):
        self.tokens, self.best, self.context, self.hidden = (torch.cat(x) for x in zip(*self.parts))
        self.parts = None
        self.table = {k: torch.tensor(v, device=self.device) for k, v in self.table.items() if v}

    def draw(self, counts, anchors, block):
        """context [R,T,targets*d], positions [R,A], and rows [R,A,block+2] of p .. p+block+1."""
        chosen = torch.cat([self.table[k][torch.randint(len(self.table[k]), (n,), device=self.device)]
                            for k, n in counts.items()])
        base, low, high = (x.unsqueeze(1) for x in chosen.unbind(1))
        uniform = torch.rand(len(chosen), anchors, device=self.device)
        positions = (low + (uniform * (high - low + 1)).long()).clamp(max=high)
        index = (base + torch.arange(KEPT + STRETCH, device=self.device)).clamp(max=self.rows - 1)
        rows = (base + positions).unsqueeze(-1) + torch.arange(block + 2, device=self.device)
        return self.context[index], positions, rows


@torch.no_grad()
def backbone_rows(model, weights, ops, texts, device):
    """Stretches of all texts; texts of like length share a padded pass."""
    cfg, store = model.cfg, Stretches(device)
    starts = np.concatenate(([0], np.cumsum(texts["length"])))
    for length in (512, 1024):
        low = length // 2 if length > 512 else 0
        members = [i for i, n in enumerate(texts["length"]) if low < n <= length]
        size = 65536 // length if device.type == "cuda" else 4
        for at in range(0, len(members), size):
            chosen = members[at : at + size]
            tokens = torch.full((size, length), 2, dtype=torch.int64)
            for r, i in enumerate(chosen):
                part = texts["tokens"][starts[i] : starts[i + 1]].astype(np.int64)
                tokens[r, : len(part)] = torch.from_numpy(part)
            tokens = tokens.to(device)
            run = fast.FastBackbone(model, weights, ops, tokens, capture=cfg.dspark_target_layer_ids).run()
            context = dspark.main_hidden(cfg, run.captured)
            best = F.linear(run.hidden, weights["head"]).argmax(-1)
            for r, i in enumerate(chosen):
                n = int(texts["length"][i])
                store.add(int(texts["kind"][i]), tokens[r, :n], best[r, :n], context[r, :n],
                          run.hidden[r, :n], int(texts["prompt"][i]), cfg.dspark_block_size)
    store.seal()
    return store


def _draft_loss(hidden, before, label, weight, target, head, markov_embed, markov_head, norm, eps, soft):
    """Weighted cross entropy towards the backbone's best token and, with share `soft`, its law.
    hidden, target [M, d] rows of draft and backbone; before, label [M]; weight [M]."""
    e = F.embedding(before, markov_embed)
    logits = (F.linear(rms(hidden, norm, eps), head) + F.linear(e, markov_head)).float()
    total = torch.logsumexp(logits, -1)
    nll = total - logits.gather(1, label.unsqueeze(1)).squeeze(1)
    p = torch.softmax(F.linear(target, head).float(), -1)
    cross = total - (p * logits).sum(-1)
    loss = (((1 - soft) * nll + soft * cross) * weight).sum() / weight.sum()
    hit = (logits.argmax(-1) == label).float()
    chance = torch.exp(-nll)
    return loss, hit.detach(), chance.detach(), e.detach()


def loss_of(model, weights, ops, store, counts, setting, loss_region, trace):
    """A slot whose predecessors were not the backbone's choice is never reached and does not count."""
    cfg, block = model.cfg, model.cfg.dspark_block_size
    context, positions, rows = store.draw(counts, setting["anchors"], block)
    tokens, best = store.tokens[rows], store.best[rows]
    hidden = dspark.draft_hidden(model, weights, ops, context, positions, tokens[..., 1], trace)
    before, label = tokens[..., 1 : block + 1], best[..., 1 : block + 1]
    same = (label == tokens[..., 2:]).float()
    reached = torch.cat((torch.ones_like(same[..., :1]), same.cumprod(-1)[..., :-1]), -1)
    weight = reached * setting["decay"] ** torch.arange(block, dtype=torch.float32, device=rows.device)
    loss, hit, chance, e = loss_region(
        hidden.flatten(0, 2), before.flatten(), label.flatten(), weight.flatten(),
        store.hidden[rows[..., 1 : block + 1]].flatten(0, 2), weights["head"], weights["mtp.markov_embed"],
        weights["mtp.markov_head"], weights["mtp.norm"], cfg.rms_norm_eps, setting["soft"])
    sure = dspark.confidence(weights, hidden.detach().flatten(0, 2), e)
    sure_loss = F.binary_cross_entropy_with_logits(sure, chance)
    hit = hit.view(reached.shape)
    return loss + 0.2 * sure_loss, (hit * reached).sum((0, 1)) / reached.sum((0, 1)).clamp(min=1)


@torch.no_grad()
def accepted(model, weights, ops, store, kind, count=None):
    """Mean accepted length, bonus included, over the greedy texts of one kind."""
    cfg, rounds = model.cfg, []
    for base, start, end in store.whole[kind][:count]:
        positions = torch.arange(start, end - 1, device=store.device).unsqueeze(0)
        context = store.context[base : base + end].unsqueeze(0)
        tokens = store.tokens[base : base + end]
        first = tokens[positions + 1]
        hidden = dspark.draft_hidden(model, weights, ops, context, positions, first)
        drafts = dspark.draft_greedy(cfg, weights, hidden, first)[0][0].tolist()
        rounds += dspark.accepted_lengths(drafts, tokens.tolist(), start, end)
    return sum(rounds) / max(len(rounds), 1)


def reshape_draft(model, changes):
    """A model of the changed configuration: backbone as it was, draft tensors as far as they fit."""
    nested = copy.deepcopy(model.cfg.nested)
    text = nested["text_config"]
    text.update(changes)
    text["compress_ratios"] = (text["compress_ratios"][: text["num_hidden_layers"]]
                               + [0] * text["num_nextn_predict_layers"])
    other = Model(Config(nested), seed=1)
    moved = text["dspark_target_layer_ids"] != model.cfg.dspark_target_layer_ids
    with torch.no_grad():
        for name, p in other.params.items():
            old = model.params[name]
            if not (moved and "main_proj" in name):
                part = tuple(slice(0, min(a, b)) for a, b in zip(p.shape, old.shape))
                p[part] = old[part]
    return other


def read_model(path):
    """From a released directory, or what train.py saved."""
    if not path.is_dir():
        return read_training(path)
    model = Model(Config.load(path / "config.json"))
    checkpoint.load(model, path)
    return model


def save_drafts(model, path, steps):
    """The draft's tensors alone, as the released format will hold them."""
    train.save(model, path, exact=False, prefix="mtp.", steps=steps)


def export_drafts(options):
    model, drafts = read_model(options.model), torch.load(options.drafts, map_location="cpu")
    text = drafts["config"]["text_config"]
    model = reshape_draft(model, {k: v for k, v in text.items() if "dspark" in k or "nextn" in k})
    with torch.no_grad():
        for name, value in drafts["params"].items():
            model.params[name].copy_(value.float())
    print(json.dumps(export.write(model, options.data, options.out)))


def train_drafts(options, setting):
    device = torch.device(options.device)
    model = read_model(options.model)
    if setting["config"]:
        model = reshape_draft(model, setting["config"])
    cfg = model.cfg
    model.hasher = engram.Hasher(cfg, engram.compressed_ids(options.data / "tokenizer.json", cfg.vocab_size))
    model.half, model = True, model.to(device)
    model.params = {n.replace("/", "."): p for n, p in model.named_parameters()}
    for name, p in model.params.items():
        p.requires_grad_(name.startswith("mtp.") and "gate_bias" not in name)
    compiled = device.type == "cuda"
    plain = fast.FastOps(cfg, True, 0.0, compiled=False)
    ops = fast.FastOps(cfg, True, setting["dropout"], compiled=compiled)
    loss_region = fast.region(_draft_loss) if compiled else _draft_loss
    with torch.no_grad():
        frozen = {k: v.detach() for k, v in model.weights(True).items()}
    begin = time.time()
    with np.load(options.texts) as f:
        store = backbone_rows(model, frozen, plain, dict(f), device)
    size = {k: len(v) for k, v in store.table.items()}
    print(f"rows {store.rows:,}, stretches by kind {size}, {time.time() - begin:.0f} s", flush=True)

    def measure():
        weights = {**frozen, **{k: v.detach() for k, v in model.weights(True, "mtp.").items()}}
        lengths = [accepted(model, weights, plain, store, kind, 64) for kind in (HELD, HELD_WORLD)]
        seen = accepted(model, weights, plain, store, GREEDY, 48)
        return f"accepted: held-out stories {lengths[0]:.3f} world {lengths[1]:.3f} training stories {seen:.3f}"

    print(measure(), flush=True)
    if options.verb == "measure":
        return
    share = round(setting["rows"] * setting["greedy"])
    counts = {GREEDY: share, WORLD: setting["rows"] - share}
    groups = train.groups_of(model, {**train.DEFAULTS, **{k: setting[k] for k in ("muon_lr", "adam_lr", "hc_lr")}}, "mtp.")
    optimiser = Optimiser(groups)
    torch.manual_seed(0)
    begin, steps, mean, said, measured = time.time(), 0, None, 0.0, time.time()
    while (f := (time.time() - begin) / setting["seconds"]) < 1:
        weights, trace = {**frozen, **model.weights(True, "mtp.")}, {}
        loss, hits = loss_of(model, weights, ops, store, counts, setting, loss_region, trace)
        loss.backward()
        grads = [p.grad for p in model.params.values() if p.grad is not None]
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
        torch._foreach_mul_(grads, (1.0 / (norm + 1e-6)).clamp(max=1.0))
        factor = train.rate({**setting, "floor": 0.0}, f)
        optimiser.step(factor)
        optimiser.zero_grad()
        with torch.no_grad():
            load = torch.stack(trace["loads"])
            load = load / load.sum(-1, keepdim=True)
            model.params["mtp.gate_bias"] += setting["bias_rate"] * max(factor, 0.05) * torch.sign(
                load.mean(-1, keepdim=True) - load)
        steps += 1
        mean = hits if mean is None else 0.98 * mean + 0.02 * hits
        if steps % 10 == 0 and compiled:
            torch.cuda.current_stream().synchronize()
        if steps == 20:
            print(f"20 steps after {time.time() - begin:.0f} s", flush=True)
            begin = time.time()
        if time.time() - said > 20:
            said = time.time()
            print(f"f={f:.3f} step {steps} loss {loss.item():.3f} agreement "
                  + " ".join(f"{h:.3f}" for h in mean.tolist()), flush=True)
        if time.time() - measured > options.measure_every:
            print(measure(), flush=True)
            measured = time.time()
            save_drafts(model, options.out, steps)
    with torch.no_grad():
        model.params["mtp.gate_bias_vl"].copy_(model.params["mtp.gate_bias"])
    print("steps", steps, measure(), flush=True)
    save_drafts(model, options.out, steps)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("verb", choices=("prompts", "pack", "train", "export", "measure"))
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--out", help="file or directory to write; all but measure need it")
    parser.add_argument("--count", type=int, default=24000)
    parser.add_argument("--shard", type=int, default=0, help="prompts: which of many files of prompts")
    parser.add_argument("--requests", nargs="+")
    parser.add_argument("--answers", nargs="+")
    parser.add_argument("--model", type=pathlib.Path, help="released directory, or what train.py saved")
    parser.add_argument("--texts", help="what pack wrote")
    parser.add_argument("--drafts", help="what train wrote")
    parser.add_argument("--set", type=json.loads, default={}, help="JSON object over the defaults")
    parser.add_argument("--measure-every", type=float, default=60.0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    if not options.out and options.verb != "measure":
        parser.error(f"{options.verb} needs --out")
    unknown = set(options.set) - set(DEFAULTS)
    if unknown:
        parser.error(f"unknown settings: {sorted(unknown)}")
    if options.verb == "prompts":
        write_prompts(options)
    elif options.verb == "pack":
        pack(options)
    elif options.verb == "export":
        export_drafts(options)
    else:
        train_drafts(options, {**DEFAULTS, **options.set})
    return 0


if __name__ == "__main__":
    sys.exit(main())
