"""Trains models/nano on one CUDA device: backbone, then draft stages on the frozen backbone.

`train.py --data DIR --out DIR --minutes 20` does all of it; schedules follow the clock, not a
step count, so that a lease of known length is used to the full. Checkpoints go to OUT/master.pt
(float32 parameters) every few minutes; export.py turns one into the released format.
"""

import argparse
import json
import math
import os
import sys
import time

import numpy as np
import torch
import torch.nn.functional as F

import dspark
import nano
import quant
from corpus import Corpus
from engram import Hasher
from kl_indexer import IndexProbe
from model import Config, Model, stored_as
from optim import Optimiser

DEFAULTS = {
    "seed": 1, "tokens": 98304, "length": 1024, "long_length": 4096,
    "muon_lr": 0.03, "muon_decay": 0.05, "adam_lr": 0.006, "adam_decay": 0.01, "table_lr": 0.01,
    "hc_lr": 0.001, "index_lr": 0.002,
    "dropout": 0.1, "answer_weight": 2.0, "bias_rate": 0.002,
    "warmup": 0.02, "cooldown_from": 0.5, "sparse_from": 0.25, "long_from": 0.65, "floor": 0.0,
    "index_rows": 16, "clip": 1.0, "shares": {},
    "schedule": [],  # {"from": share of the time, "set": settings from then on}
    "draft_seconds": 200, "draft_anchors": 128, "draft_muon_lr": 0.02,
}

NOT_MUON = ("gate", "hc_attn_fn", "hc_ffn_fn", "markov_embed", "markov_head", "confidence",
            "i_wq_b", "i_wp", "i_wk")


def groups_of(model, setting, prefix):
    """Optimiser groups of the parameters under `prefix` (mtp.) or outside it."""
    cfg = model.cfg
    muon, adam, table, hyper, index = [], [], [], [], []
    for name, p in model.params.items():
        if name.startswith("mtp.") != prefix.startswith("mtp.") or not p.requires_grad:
            continue
        leaf = name.split(".")[-1].split("@")[0]
        matrix = p.dim() - (1 if name.startswith(("layers.", "mtp.")) and "main_proj" not in name else 0) >= 2
        if leaf == "eng_table":
            table.append((name, p, None))
        elif leaf in ("i_wq_b", "i_wp", "i_wk", "k_norm"):
            index.append((name, p, None))
        elif leaf.startswith("hc_"):
            hyper.append((name, p, None))
        elif leaf in ("embed", "head") or leaf in NOT_MUON or not matrix or leaf in ("eng_q", "eng_k"):
            adam.append((name, p, None))
        else:
            rows, columns = p.shape[-2:]
            if leaf == "wo_a":
                rows = cfg.o_lora_rank
            if leaf == "eng_wkv":
                rows = cfg.hidden_size
            muon.append((name, p, (-1, rows, columns)))
    return [
        {"kind": "muon", "params": muon, "lr": setting["muon_lr"], "decay": setting["muon_decay"]},
        {"kind": "adam", "params": adam, "lr": setting["adam_lr"], "decay": setting["adam_decay"]},
        {"kind": "adam", "params": table, "lr": setting["table_lr"], "decay": 0.0},
        {"kind": "adam", "params": hyper, "lr": setting["hc_lr"], "decay": 0.0},
        {"kind": "adam", "params": index, "lr": setting["index_lr"], "decay": 0.0},
    ]


def rate(setting, f):
    """Learning-rate factor at fraction f of the time: warm-up, stable, linear cool-down."""
    if f < setting["warmup"]:
        return max(f / setting["warmup"], 0.02)
    if f < setting["cooldown_from"]:
        return 1.0
    return max((1 - f) / (1 - setting["cooldown_from"]), setting["floor"])


def log(*words):
    print(*words, flush=True)


def stored(name, p):
    """What the released format will hold, in a smaller tensor: quantised values are exact bf16."""
    kind = stored_as(name)
    form = {"fp8": quant.fp8_weight, "fp4": quant.fp4_rows, "row": quant.fp8_rows}.get(kind)
    p = form(p) if form else p
    return p if kind == "f32" else p.to(torch.bfloat16)


def save(model, path, exact=True, prefix="", **more):
    """exact: float32 masters; else only what an export needs. Of the parameters under `prefix`."""
    with torch.no_grad():
        state = {name: (p.detach().clone() if exact else stored(name, p.detach())).cpu()
                 for name, p in model.params.items() if name.startswith(prefix)}
    torch.save({"params": state, "config": model.cfg.nested, **more}, path + ".part")
    os.replace(path + ".part", path)


class Trainer:
    def __init__(self, options, setting):
        import fast

        self.options, self.setting, self.fast = options, setting, fast
        self.device = torch.device(options.device)
        torch.manual_seed(setting["seed"])
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.backends.cudnn.allow_tf32 = True
        if options.compile:
            torch._dynamo.config.cache_size_limit = 64
        config, cid = nano.for_tokenizer(options.data)
        config["text_config"].update(setting.get("config", {}))
        self.cfg = Config(config)
        self.model = Model(self.cfg, Hasher(self.cfg, cid), seed=setting["seed"]).to(self.device)
        self.model.params = {n.replace("/", "."): p for n, p in self.model.named_parameters()}
        self.model.half = True
        self.corpus = Corpus(options.data, self.device)
        self.ops = fast.FastOps(self.cfg, True, setting["dropout"], compiled=options.compile)
        self.eval_ops = fast.FastOps(self.cfg, True, 0.0, compiled=options.compile)
        self.plain_ops = fast.FastOps(self.cfg, False, 0.0, compiled=False)
        self.loss_of = fast.region(fast._loss) if options.compile else fast._loss
        self.rng = np.random.default_rng(setting["seed"])
        self.probe_rng = torch.Generator().manual_seed(setting["seed"])
        self.start = time.time()
        self.control(0.0)
        if options.resume:
            self.load(options.resume)

    def load(self, path):
        state = torch.load(path, map_location="cpu")["params"]
        with torch.no_grad():
            for name, p in self.model.params.items():
                if name in state:
                    p.copy_(state[name])

    def backward(self, opt, tokens, sparse, everything, factor):
        """One step of the backbone; returns nll [rows, T], answer mask, KL, caught, on device."""
        setting, cfg = self.setting, self.cfg
        length = tokens.shape[1] - 1
        probe = IndexProbe(cfg, length, setting["index_rows"], self.device, self.probe_rng, everything)
        weights = self.model.weights(True)
        run = self.fast.FastBackbone(self.model, weights, self.ops, tokens[:, :-1].contiguous(),
                                     sparse=sparse, probe=probe).run()
        w = self.corpus.answer_weights(tokens, setting["answer_weight"])
        total, nll = self.loss_of(run.hidden.reshape(-1, cfg.hidden_size), weights["head"],
                                  tokens[:, 1:].reshape(-1), w.reshape(-1))
        kl, caught = probe.loss()
        (total / w.sum() + kl).backward()
        self.clip(opt)
        opt.step(factor)
        opt.zero_grad()
        self.balance(torch.stack(run.loads), self.model.params["layers.gate_bias"], factor)
        return nll.view(tokens.shape[0], -1), w > 1, kl.detach(), caught

    def profile(self, opt, tokens, f):
        """Where three steps spend the device's time."""
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as p:
            for _ in range(3):
                self.backward(opt, tokens, f >= self.setting["sparse_from"], False, rate(self.setting, f))
            torch.cuda.synchronize()
        table = p.key_averages().table(sort_by="self_device_time_total", row_limit=45,
                                       max_name_column_width=70)
        with open(os.path.join(self.options.out, "profile.txt"), "w") as file:
            file.write(table)

    def control(self, f):
        """Settings that change at fraction f of the time: those of the schedule, and those of
        OUT/control.json, read while training, so that a long run can be steered."""
        for change in self.setting["schedule"]:
            if change["from"] <= f:
                self.setting.update(change["set"])
        path = os.path.join(self.options.out, "control.json")
        if os.path.exists(path):
            with open(path, encoding="utf-8") as f:
                wanted = json.load(f)
            fresh = {k: v for k, v in wanted.items() if k in DEFAULTS and self.setting[k] != v}
            self.setting.update(fresh)
            if fresh:
                log("control:", json.dumps(fresh))
        self.corpus.shares = self.setting["shares"]

    def clip(self, opt):
        grads = [p.grad for g in opt.groups if g["kind"] == "adam" for _, p, _ in g["params"]
                 if p.grad is not None]
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
        scale = (self.setting["clip"] / (norm + 1e-6)).clamp(max=1.0)
        for g in grads:
            g.mul_(scale)

    @torch.no_grad()
    def balance(self, load, bias, factor):
        """Moves the router's bias towards equal loads; load [layers, experts] counts."""
        share = load / load.sum(-1, keepdim=True)
        bias += self.setting["bias_rate"] * max(factor, 0.05) * torch.sign(share.mean(-1, keepdim=True) - share)
        self.worst_share = share.max()

    def train_backbone(self, seconds):
        setting = self.setting
        opt = Optimiser(groups_of(self.model, setting, ""))
        begin = last_log = last_save = time.time()
        steps = seen = 0
        names = [s["name"] for s in self.corpus.sources]
        stats = torch.zeros(4, len(names), device=self.device)
        log_tokens, log_steps = 0, 0
        while True:
            now = time.time()
            f = (now - begin) / seconds
            if f >= 1:
                break
            if steps == 20:  # compilation is over; let the schedule start here
                torch.cuda.synchronize() if self.device.type == "cuda" else None
                log(f"20 steps after {time.time() - begin:.1f} s")
                seconds -= time.time() - begin
                begin = last_log = now = time.time()
                f, log_tokens = 0.0, 0
            long = f >= setting["long_from"]
            length = setting["long_length"] if long else setting["length"]
            rows = setting["tokens"] // length
            tokens, which = self.corpus.batch(self.rng, rows, length, long)
            factor = rate(setting, f)
            if steps == self.options.profile_at:
                try:
                    self.profile(opt, tokens, f)
                except (AttributeError, KeyError, RuntimeError) as error:
                    log(f"no profile: {error}")
            nll, inside, kl, caught = self.backward(opt, tokens, f >= setting["sparse_from"], steps % 2 == 0, factor)
            for i, value in enumerate((nll.mean(1), torch.ones_like(nll[:, 0]), (nll * inside).sum(1),
                                       inside.sum(1).float())):
                stats[i].index_add_(0, which, value)
            steps += 1
            seen += rows * length
            log_tokens += rows * length
            if steps % 10 == 0 and self.device.type == "cuda":
                torch.cuda.current_stream().synchronize()
            if now - last_log > self.options.log_every:
                mean = (stats[0] / stats[1].clamp(min=1)).tolist()
                answers = (stats[2] / stats[3].clamp(min=1)).tolist()
                caught = " ".join(f"{c:.2f}" for c in caught.tolist())
                text = " ".join(f"{n}:{m:.3f}" + (f"/{a:.3f}" if a > 0 else "") for n, m, a in zip(names, mean, answers) if m > 0)
                log(f"f={f:.3f} step {steps} lr {factor:.3f} tok/s {log_tokens / (now - last_log):,.0f} "
                    f"seen {seen / 1e6:.1f}M worst {self.worst_share.item():.2f} kl {kl.item():.3f} caught {caught} | {text}")
                if not math.isfinite(mean[0]):
                    log("loss is not finite: stopping")
                    return seen
                stats.zero_()
                last_log, log_tokens = now, 0
                self.control(f)
            if now == last_log and self.corpus.changed():
                self.corpus.read()
                names = [s["name"] for s in self.corpus.sources]
                stats = torch.zeros(4, len(names), device=self.device)
                log("sources", names)
            if now - last_save > self.options.save_every:
                save(self.model, os.path.join(self.options.out, "stored.pt"), exact=False, steps=steps)
                self.report(4)
                last_save = time.time()
        log(f"backbone: {steps} steps, {seen:,} tokens, {time.time() - begin:.0f} s")
        with torch.no_grad():
            self.model.params["layers.gate_bias_vl"].copy_(self.model.params["layers.gate_bias"])
        save(self.model, os.path.join(self.options.out, "stored.pt"), exact=False, steps=steps)
        return seen

    # Measuring.

    def pass_over(self, ops, tokens, sparse=True, capture=()):
        """One forward without keeping a graph; with gradients on, so that compiled regions are
        the training ones."""
        weights = self.model.weights(ops.quantise)
        if not ops.quantise:
            with torch.no_grad():
                weights = {k: v.detach() for k, v in weights.items()}
                return self.fast.FastBackbone(self.model, weights, ops, tokens, sparse=sparse,
                                              capture=capture).run(), weights
        weights = {k: v.detach().requires_grad_(v.requires_grad) for k, v in weights.items()}
        return self.fast.FastBackbone(self.model, weights, ops, tokens, sparse=sparse,
                                      capture=capture).run(), weights

    def bits_per_byte(self, ops, batches=None, sparse=True):
        """Held-out nats and bytes; on the first `batches` batches only the token mean is exact."""
        length = self.setting["long_length"]
        inputs, targets, weights, size = self.corpus.heldout_windows(length)
        rows = max(1, self.setting["tokens"] // length)
        order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(0))
        nats, count = 0.0, 0.0
        for at in range(0, len(order), rows):
            if batches is not None and at >= batches * rows:
                break
            take = order[at : at + rows]
            short = rows - len(take)
            pad = lambda t: F.pad(t[take], (0, 0, 0, short)).to(self.device)
            run, w = self.pass_over(ops, pad(inputs), sparse)
            logits = F.linear(run.hidden.detach().reshape(-1, self.cfg.hidden_size), w["head"].detach()).float()
            nll = torch.logsumexp(logits, -1) - logits.gather(1, pad(targets).reshape(-1, 1)).squeeze(1)
            keep = pad(weights).reshape(-1)
            nats += (nll * keep).sum().item()
            count += keep.sum().item()
        everything = weights.sum().item()
        return nats / count * everything / math.log(2) / size

    def report(self, batches=None):
        begin = time.time()
        quantised = self.bits_per_byte(self.eval_ops, batches)
        dense = self.bits_per_byte(self.eval_ops, min(batches or 4, 4), sparse=False)
        log(f"held-out bits per byte: quantised {quantised:.4f} ({'all' if batches is None else batches} batches), "
            f"dense selection {dense:.4f}, took {time.time() - begin:.1f} s")
        return quantised

    # Drafts.

    def train_draft(self, seconds):
        setting, cfg = self.setting, self.cfg
        opt = Optimiser(groups_of(self.model, {**setting, "muon_lr": setting["draft_muon_lr"]}, "mtp."))
        with torch.no_grad():
            frozen = {k: v.detach() for k, v in self.model.weights(True).items() if not k.startswith("mtp.")}
        graph_frozen = {k: v.requires_grad_(True) for k, v in frozen.items()}
        begin = last_log = time.time()
        steps, mean_loss, mean_hit = 0, 0.0, None
        while True:
            now = time.time()
            f = (now - begin) / seconds
            if f >= 1:
                break
            length = setting["length"]
            rows = setting["tokens"] // length
            tokens, _ = self.corpus.batch(self.rng, rows, length)
            run = self.fast.FastBackbone(self.model, graph_frozen, self.eval_ops, tokens[:, :-1].contiguous(),
                                         capture=cfg.dspark_target_layer_ids).run()
            hidden = run.hidden.detach()
            context = dspark.main_hidden(cfg, {k: v.detach() for k, v in run.captured.items()})
            del run
            anchors = setting["draft_anchors"]
            positions = torch.randint(1, length - cfg.dspark_block_size - 1, (rows, anchors), device=self.device)
            at = (positions.unsqueeze(-1) + 1 + torch.arange(cfg.dspark_block_size, device=self.device)).flatten(1)
            weights = {**{k: v.detach() for k, v in frozen.items()}, **self.model.weights(True, "mtp.")}
            trace = {}
            h = dspark.draft_hidden(self.model, weights, self.draft_ops, context, positions,
                                    tokens.gather(1, positions + 1), trace)
            with torch.no_grad():
                rows_at = hidden.gather(1, at.unsqueeze(-1).expand(-1, -1, hidden.shape[-1]))
                target = F.linear(rows_at, weights["head"]).view(rows, anchors, cfg.dspark_block_size, -1)
            total, hit = dspark.loss(cfg, weights, h, tokens, positions, target)
            total.backward()
            self.clip(opt)
            factor = rate({**setting, "cooldown_from": 0.4}, f)
            opt.step(factor)
            opt.zero_grad()
            self.balance(torch.stack(trace["loads"]), self.model.params["mtp.gate_bias"], factor)
            steps += 1
            mean_loss = 0.98 * mean_loss + 0.02 * total.detach()
            mean_hit = hit if mean_hit is None else 0.98 * mean_hit + 0.02 * hit
            if now - last_log > self.options.log_every:
                hits = " ".join(f"{x:.3f}" for x in mean_hit.tolist())
                log(f"draft f={f:.3f} step {steps} loss {float(mean_loss) / (1 - 0.98**steps):.4f} top-1 agreement {hits}")
                last_log = now
        with torch.no_grad():
            self.model.params["mtp.gate_bias_vl"].copy_(self.model.params["mtp.gate_bias"])
        log(f"drafts: {steps} steps, {time.time() - begin:.0f} s")
        save(self.model, os.path.join(self.options.out, "stored.pt"), exact=False, steps=steps)
        save(self.model, os.path.join(self.options.out, "master.pt"), steps=steps)

    @property
    def draft_plain(self):
        """Draft operations for odd shapes: nothing compiled."""
        return self.fast.FastOps(self.cfg, True, 0.0, compiled=False)

    @property
    def draft_ops(self):
        if not hasattr(self, "_draft_ops"):
            self._draft_ops = self.fast.FastOps(self.cfg, True, 0.0, compiled=self.options.compile)
        return self._draft_ops


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--set", default="{}", help="JSON object over the defaults")
    parser.add_argument("--resume", default="")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--log-every", type=float, default=10.0)
    parser.add_argument("--save-every", type=float, default=180.0)
    parser.add_argument("--profile-at", type=int, default=-1, help="profile three steps at this one")
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    parser.add_argument("--skip", default="", help="comma list of: backbone, draft, measure")
    options = parser.parse_args()
    unknown = set(json.loads(options.set)) - set(DEFAULTS) - {"config"}
    if unknown:
        parser.error(f"unknown settings: {sorted(unknown)}")
    setting = {**DEFAULTS, **json.loads(options.set)}
    os.makedirs(options.out, exist_ok=True)
    log("setting", json.dumps(setting))
    trainer = Trainer(options, setting)
    parts, active = nano.sizes(trainer.cfg)
    log("bytes", parts, "sum", sum(parts.values()), "active parameters", active)
    skip = options.skip.split(",")
    seconds = options.minutes * 60 - (time.time() - trainer.start)
    draft_seconds = 0 if "draft" in skip else setting["draft_seconds"]
    if "backbone" not in skip:
        trainer.train_backbone(seconds - draft_seconds)
    if "measure" not in skip:
        trainer.report()
    if "draft" not in skip:
        trainer.train_draft(draft_seconds)
    if "measure" not in skip:
        import measure

        measure.everything(trainer)
    return 0


if __name__ == "__main__":
    sys.exit(main())
