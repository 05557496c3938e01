"""Writes a golden directory for a model: what model.py's reference forward computes on it.

The layout is that of tests/golden (its README explains every field): checkpoint/ is a link to the
model, expected/ holds cases.json, expected.safetensors and trace.safetensors. Beside the
directory, tolerances.json gets limits measured here: the same forward with other sums (f64 in
every product) bounds `reference_rounding`, and with f32 scores and probabilities `production`.

    python3 training/golden.py models/nano build/golden/nano

Runs on Debian's torch 1.13 as well as on current ones; CPU only.
"""

import argparse
import hashlib
import json
import os
import time

import numpy as np
import torch

import checkpoint
import engram
import export
import model as reference

LENGTHS = (1, 2, 17, 66, 130, 401)
ALL_ROWS = (66, 130)
GREEDY = {17: 12, 130: 3}
TRACED = (71, 301)
LAST = 32


class Prompts:
    """Token lists of given lengths, cut from text so that a trained model is at home in them."""

    def __init__(self, tokens):
        self.tokens, self.at = tokens, 0

    def take(self, length):
        if self.at + length > len(self.tokens):
            self.at = 0
        part = self.tokens[self.at : self.at + length]
        self.at += length
        return ([0] + part)[:length] if length % 2 else part


def random_tokens(cfg, count, seed=7):
    """Random ids with repeated five-token phrases, for models that know no text."""
    rng = np.random.default_rng(seed)
    result = []
    phrases = [list(rng.integers(3, cfg.vocab_size, 5)) for _ in range(12)]
    while len(result) < count:
        if rng.random() < 0.3:
            result += phrases[rng.integers(len(phrases))]
        else:
            result.append(rng.integers(3, cfg.vocab_size))
    return [int(t) for t in result[:count]]


def forward(m, tokens, ops=None, **options):
    with torch.no_grad():
        if not hasattr(m, "stored"):  # the stored weights' values, made once
            m.stored = m.weights(True)
        return m(torch.tensor([tokens]), m.stored, ops, **options)


def greedy(m, tokens, count):
    """Chosen tokens and the logits they were chosen from, by whole-sequence forwards."""
    tokens, rows = list(tokens), []
    for _ in range(count):
        rows.append(forward(m, tokens).logits(slice(-1, None))[0, 0])
        tokens.append(int(rows[-1].argmax()))
    return tokens[-count:], torch.stack(rows)


def put(out, name, dtype, value):
    """Adds one tensor; torch bf16 goes in by its bits."""
    if dtype == "BF16":
        array = export.bf16_bits(value).view(np.uint16)
    else:
        kinds = {"F32": np.float32, "I32": np.int32, "I16": np.int16, "I64": np.int64,
                 "U8": np.uint8}
        array = np.asarray(value.detach().numpy() if torch.is_tensor(value) else value)
        array = array.astype(kinds[dtype])
    out.append((name, dtype, np.ascontiguousarray(array)))


def selection(mask, width):
    """Ascending entry numbers of each row, -1 in empty slots."""
    rows = np.full((mask.shape[0], width), -1, dtype=np.int16)
    for r, row in enumerate(mask.numpy()):
        chosen = np.nonzero(row)[0]
        rows[r, : len(chosen)] = chosen
    return rows


def trace_tensors(cfg, tag, length, t, out, whole):
    """One traced prompt under the golden names. whole=False keeps state and the last rows."""
    put(out, f"{tag}.engram_rows", "I32", t["engram_rows"])
    put(out, f"{tag}.logits_last", "F32", t["logits_last"])
    if whole:
        put(out, f"{tag}.embed_in", "BF16", t["embed_in"])
        put(out, f"{tag}.main_hidden", "BF16", t["main_hidden"])
    for l in range(cfg.num_hidden_layers):
        at = f"{tag}.layer{l}."
        source = f"layer{l}."
        if whole:
            put(out, at + "streams_out", "BF16", t[source + "streams_out"])
            put(out, at + "pre_in", "F32", t[source + "pre_in"])
            put(out, at + "window_ring", "BF16", t[source + "window_ring"])
            for x in ("attn_in", "attn_out", "ffn_in", "ffn_out"):
                value = t[source + x].float()
                put(out, at + x + ".first", "BF16", t[source + x][:, :8])
                put(out, at + x + ".absmean", "F32", value.abs().mean(-1))
                put(out, at + x + ".mean", "F32", value.mean(-1))
            chosen = t[source + "router_mask"]
            k = cfg.num_experts_per_tok
            experts = torch.from_numpy(selection(chosen, k).astype(np.int64))
            score = t[source + "router_score"]
            worst = score.masked_fill(~chosen, float("inf")).amin(-1)
            margin = worst - score.masked_fill(chosen, float("-inf")).amax(-1)
            put(out, at + "router_experts", "I16", experts)
            weights = t[source + "router_weight_of"].gather(-1, experts)
            put(out, at + "router_weights", "F32", weights)
            put(out, at + "router_margin", "F32", margin)
        if l in cfg.engram_layer_ids:
            put(out, at + "engram_gate", "F32", t[source + "engram_gate"])
            if whole:
                put(out, at + "engram_out", "BF16", t[source + "engram_out"])
        if l in cfg.kv_source_layer_ids:
            put(out, at + "compress_kv", "BF16", t[source + "compress_kv"])
            put(out, at + "index_key", "BF16", t[source + "index_key"])
            if source + "pending_kv" in t and t[source + "pending_kv"].shape[0]:
                put(out, at + "pending_kv", "F32", t[source + "pending_kv"])
                put(out, at + "pending_gate", "F32", t[source + "pending_gate"])
        if l in cfg.index_source_layer_ids:
            suffix, rows = ("", slice(None)) if whole else ("_last32", slice(-LAST, None))
            width = min(cfg.index_topk, length // cfg.ratio(l))
            put(out, at + "index_score" + suffix, "BF16", t[source + "index_score"][rows])
            mask = t[source + "selected_mask"][rows]
            put(out, at + "selected" + suffix, "I16", selection(mask, width))
            if l == cfg.candidate_source_layer_id:
                put(out, at + "candidates" + suffix, "U8", t[source + "candidates"][rows])


def run_trace(m, tokens):
    trace = {}
    targets = getattr(m.cfg, "dspark_target_layer_ids", []) if m.cfg.num_nextn_predict_layers else []
    backbone = forward(m, tokens, trace=trace, capture=tuple(targets))
    trace["logits_last"] = backbone.logits(slice(-1, None))[0, 0]
    captured = [backbone.captured[l][0] for l in targets]
    trace["main_hidden"] = torch.cat(captured, -1) if captured else torch.zeros(len(tokens), 0)
    return trace


def relative_rms(a, b):
    return float((a - b).square().mean().sqrt() / b.std())


def kl(a, b):
    """Per row, of the reference b against a."""
    p = torch.log_softmax(b.double(), -1)
    return (p.exp() * (p - torch.log_softmax(a.double(), -1))).sum(-1)


def measure_noise(m, cases, ops):
    """Largest deviations of another arithmetic from the reference, for the limits."""
    noise = {"short": [], "long": [], "sets": [], "layers": {}}
    cfg = m.cfg
    for case in cases:
        rows = forward(m, case["tokens"], ops=ops).logits()[0]
        error = relative_rms(rows[-1], case["rows"][-1])
        noise["short" if case["length"] <= cfg.sliding_window + 2 else "long"].append(error)
        top = case["rows"].topk(2).values
        flips = rows.argmax(-1) != case["rows"].argmax(-1)
        gap = (top[:, 0] - top[:, 1])[flips]
        divergence = kl(rows, case["rows"])
        noise["sets"].append((relative_rms(rows, case["rows"]), float(divergence.mean()),
                              float(divergence.max()), float(flips.float().mean()),
                              float(gap.max()) if len(gap) else 0.0))
    return noise


def isolated_noise(m, trace, tokens, ops):
    """Median over tokens of each layer's error when fed the reference's inputs and choices."""
    cfg, medians, tails = m.cfg, {}, []

    def feed(l, streams, mix):
        del streams, mix
        before = trace[f"layer{l - 1}.streams_out"] if l else trace["embed_in"].unsqueeze(1).expand(
            -1, cfg.hc_mult, -1)
        return before.unsqueeze(0).contiguous(), trace[f"layer{l}.pre_in"].unsqueeze(0)

    got = {}
    forward(m, tokens, ops=ops, layer_hook=feed, trace=got)
    for l in range(cfg.num_hidden_layers):
        want = trace[f"layer{l}.streams_out"].float()
        error = (got[f"layer{l}.streams_out"].float() - want).norm(dim=-1) / want.norm(dim=-1)
        worst = error.amax(-1)
        medians[f"layer{l}"] = float(worst.median())
        tails.append(float(worst.quantile(0.99)))
    return medians, max(tails)


# What a few flipped quantiser codes can do, however small the measured noise: no limit is lower.
FLOORS = {
    "reference_rounding": {"mean": 0.05, "each": 0.1, "rms": 0.08, "kl": 0.02, "row_kl": 0.3,
                           "flips": 0.12, "gap": 0.5, "median": 0.001, "p99": 0.01,
                           "row": 0.04, "share": 0.01},
    "production": {"mean": 0.08, "each": 0.16, "rms": 0.16, "kl": 0.04, "row_kl": 0.5,
                   "flips": 0.25, "gap": 1.0, "median": 0.004, "p99": 0.04, "row": 0.06,
                   "share": 0.03},
}


def limits(noise, medians, tail, floor):
    """Twice the largest measured value, but never below `floor`."""

    def twice(values, least):
        return round(max([2 * v for v in values] + [floor[least]]), 4)

    sets = list(zip(*noise["sets"]))
    return {
        "last_logits_short": {"up_to_length": noise["window"] + 2,
                              "mean_rel_rms": twice(noise["short"], "mean"),
                              "each_rel_rms": twice(noise["short"], "each")},
        "last_logits_long": {"mean_rel_rms": twice(noise["long"], "mean"),
                             "each_rel_rms": twice(noise["long"], "each")},
        "row_sets": {"rel_rms": twice(sets[0], "rms"), "mean_kl": twice(sets[1], "kl"),
                     "each_row_kl": twice(sets[2], "row_kl"),
                     "argmax_flip_fraction": twice(sets[3], "flips"),
                     "no_flip_above_gap": twice(sets[4], "gap")},
        "isolated_layer": {"median": {n: twice([v], "median") for n, v in medians.items()},
                           "p99": twice([tail], "p99"),
                           "row_max_when_margin_over_0p005": floor["row"],
                           "rows_over_0p06": floor["share"]},
    }


def with_f64_products(run):
    """Runs with every product summed in f64: the same rounding points, another order."""
    kept = reference.mm
    reference.mm = lambda x, w: torch.nn.functional.linear(x.double(), w.double()).to(torch.bfloat16)
    try:
        return run()
    finally:
        reference.mm = kept


def tolerances(m, cases, trace, tokens):
    result = {}
    same, production = reference.Ops(m.cfg), reference.Ops(m.cfg, True, False, False)

    def of(ops):
        noise = measure_noise(m, cases, ops)
        noise["window"] = m.cfg.sliding_window
        return noise, isolated_noise(m, trace, tokens, ops)

    for name, ops in (("reference_rounding", same), ("production", production)):
        noise, (medians, tail) = with_f64_products(lambda o=ops: of(o))
        result[name] = limits(noise, medians, tail, FLOORS[name])
    return result


def constants(m, out):
    h = m.hasher
    put(out, "compressed_ids", "I32", h.cid)
    put(out, "engram.primes", "I64", np.array(h.primes))
    put(out, "engram.offsets", "I64", np.array(h.offsets))
    put(out, "engram.multipliers", "I64", np.array(h.multipliers))


def write(model_dir, out_dir, tokens=None, lengths=LENGTHS, traced=TRACED, say=print):
    begin = time.time()
    cfg = reference.Config.load(os.path.join(model_dir, "config.json"))
    cid = engram.compressed_ids(os.path.join(model_dir, "tokenizer.json"), cfg.vocab_size)
    m = reference.Model(cfg, engram.Hasher(cfg, cid))
    checkpoint.load(m, model_dir)
    prompts = Prompts(tokens or random_tokens(cfg, 4096))
    name = os.path.basename(os.path.normpath(out_dir))
    expected, cases, listed = [], [], []
    constants(m, expected)
    for length in lengths:
        case = {"name": f"len{length}", "length": length, "tokens": prompts.take(length)}
        case["rows"] = forward(m, case["tokens"]).logits()[0]
        fields = ["logits_last"]
        put(expected, f"{case['name']}.logits_last", "F32", case["rows"][-1])
        if length in ALL_ROWS:
            fields.append("logits_all")
            put(expected, f"{case['name']}.logits_all", "F32", case["rows"])
        if length in GREEDY:
            chosen, rows = greedy(m, case["tokens"], GREEDY[length])
            fields += ["decode_tokens", "decode_logits", "reprefill_logits"]
            put(expected, f"{case['name']}.decode_tokens", "I32", np.array(chosen))
            put(expected, f"{case['name']}.decode_logits", "F32", rows)
            put(expected, f"{case['name']}.reprefill_logits", "F32", rows)
        cases.append(case)
        listed.append({"name": case["name"], "kind": "text", "tokens": case["tokens"],
                       "length": length, "fields": fields})
        say(f"golden: {case['name']} done, {time.time() - begin:.0f} s")
    traces, first = [], None
    for number, length in enumerate(traced):
        prompt = prompts.take(length)
        t = run_trace(m, prompt)
        first = first or (t, prompt)
        trace_tensors(cfg, f"trace{length}", length, t, traces, whole=number == 0)
        # A traced prompt is a case too, so that its tokens are known.
        listed.append({"name": f"len{length}", "kind": "text", "tokens": prompt, "length": length,
                       "fields": ["logits_last"]})
        put(expected, f"len{length}.logits_last", "F32", t["logits_last"])
    finish(model_dir, out_dir, name, listed, traced, expected, traces)
    path = os.path.join(os.path.dirname(os.path.normpath(out_dir)), "tolerances.json")
    known = json.load(open(path, encoding="utf-8")) if os.path.exists(path) else {}
    known[name] = tolerances(m, cases, *first)
    with open(path, "w", encoding="utf-8") as f:
        json.dump(known, f, indent=1)
    say(f"golden: {out_dir} written, {time.time() - begin:.0f} s")


def finish(model_dir, out_dir, name, listed, traced, expected, traces):
    os.makedirs(os.path.join(out_dir, "expected"), exist_ok=True)
    link = os.path.join(out_dir, "checkpoint")
    if not os.path.lexists(link):
        os.symlink(os.path.abspath(model_dir), link)
    sums = {}
    for entry in sorted(os.scandir(model_dir), key=lambda e: e.name):
        if entry.is_file() and entry.name.endswith((".json", ".safetensors")):
            with open(entry.path, "rb") as f:
                sums[entry.name] = hashlib.sha256(f.read()).hexdigest()
    case_file = {"model": name, "trace_cases": list(traced), "cases": listed,
                 "checkpoint": {"sha256": sums}, "torch": torch.__version__}
    with open(os.path.join(out_dir, "expected", "cases.json"), "w", encoding="utf-8") as f:
        json.dump(case_file, f)
    for file, tensors in (("expected", expected), ("trace", traces)):
        export.write_safetensors(os.path.join(out_dir, "expected", f"{file}.safetensors"), tensors)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("model", help="released-format directory, e.g. models/nano")
    parser.add_argument("out", help="golden directory to write")
    parser.add_argument("--tokens", help="JSON file with token ids to cut prompts from")
    arguments = parser.parse_args()
    tokens = json.load(open(arguments.tokens, encoding="utf-8")) if arguments.tokens else None
    torch.set_num_threads(1)  # small matrices: more threads only wait for each other
    write(arguments.model, arguments.out, tokens)


if __name__ == "__main__":
    main()
