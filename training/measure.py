"""What a trained model can do, measured on its training machine by whole forward passes.

Bits per byte of master and quantised model, the task sets by greedy decoding, accepted drafts,
and sampled text for the model card. `galley eval` measures the exported files; this is for
choosing between runs. Writes OUT/results.json and OUT/samples.json.
"""

import json
import os
import time

import torch
import torch.nn.functional as F

import dspark


def log(*words):
    print(*words, flush=True)


@torch.no_grad()
def pick(logits, temperature, generator):
    if temperature == 0:
        return logits.argmax(-1)
    p = torch.softmax(logits / temperature, -1)
    return torch.multinomial(p, 1, generator=generator).squeeze(-1)


def generate(trainer, prompts, limits, temperature=0.0, seed=0, stop=(1,)):
    """Continuations of token lists. No cache: one padded pass a token, many prompts at once."""
    setting, device = trainer.setting, trainer.device
    results = [None] * len(prompts)
    generator = torch.Generator(device=device).manual_seed(seed)
    by_length = {}
    for i, p in enumerate(prompts):
        need = len(p) + limits[i] + 8
        length = setting["length"] if need <= setting["length"] else setting["long_length"]
        by_length.setdefault(length, []).append(i)
    for length, members in by_length.items():
        rows = setting["tokens"] // length
        for at in range(0, len(members), rows):
            chosen = members[at : at + rows]
            tokens = torch.full((rows, length), 2, dtype=torch.int64, device=device)
            for r, i in enumerate(chosen):
                p = prompts[i][-(length - limits[i] - 8):]
                tokens[r, : len(p)] = torch.tensor(p, device=device)
            ends = torch.tensor([min(len(prompts[i]), length - limits[i] - 8) for i in chosen]
                                + [8] * (rows - len(chosen)), device=device)
            first, done = ends.clone(), torch.zeros(rows, dtype=torch.bool, device=device)
            limit = torch.tensor([limits[i] for i in chosen] + [0] * (rows - len(chosen)), device=device)
            for step in range(max(limits[i] for i in chosen)):
                run, weights = trainer.pass_over(trainer.eval_ops, tokens)
                last = run.hidden.detach()[torch.arange(rows, device=device), ends - 1]
                logits = F.linear(last, weights["head"].detach()).float()
                done = done | (ends - first >= limit)
                new = pick(logits, temperature, generator)
                spot = ends.clone()
                keep = tokens[torch.arange(rows, device=device), spot]
                tokens[torch.arange(rows, device=device), spot] = torch.where(done, keep, new)
                ends = torch.where(done, ends, ends + 1)
                for s in stop:
                    done = done | (new == s)
                if step % 8 == 7 and bool(done.all()):
                    break
            table, ends, first = tokens.tolist(), ends.tolist(), first.tolist()
            for r, i in enumerate(chosen):
                results[i] = table[r][first[r] : ends[r]]
    return results


def accepted(trainer, prompts, answers):
    """Mean accepted length over all verify rounds, drafting greedily along given greedy texts."""
    cfg, setting, device = trainer.cfg, trainer.setting, trainer.device
    length = setting["length"]
    rows, rounds = setting["tokens"] // length, []
    block = cfg.dspark_block_size
    anchors = max(len(a) for a in answers)
    for at in range(0, len(prompts), rows):
        chosen = range(at, min(at + rows, len(prompts)))
        tokens = torch.full((rows, length), 2, dtype=torch.int64, device=device)
        start = []
        for r, i in enumerate(chosen):
            full = prompts[i] + answers[i]
            tokens[r, : len(full)] = torch.tensor(full, device=device)
            start.append(len(prompts[i]) - 1)
        start += [8] * (rows - len(start))
        run, weights = trainer.pass_over(trainer.eval_ops, tokens, capture=cfg.dspark_target_layer_ids)
        with torch.no_grad():
            context = dspark.main_hidden(cfg, run.captured).detach()
            positions = torch.tensor(start, device=device).unsqueeze(1) + torch.arange(anchors, device=device)
            positions = positions.clamp(max=length - block - 2)
            first = tokens.gather(1, positions + 1)
            hidden = dspark.draft_hidden(trainer.model, weights, trainer.draft_plain, context, positions, first)
            base, before, drafts = dspark.base_logits(cfg, weights, hidden), first, []
            for k in range(block):
                before = (base[:, :, k] + dspark.markov(weights, before)[0]).argmax(-1)
                drafts.append(before)
            drafts = torch.stack(drafts, 2).tolist()
        for r, i in enumerate(chosen):
            full = prompts[i] + answers[i]
            rounds += dspark.accepted_lengths(drafts[r], full, start[r], len(full))
    return sum(rounds) / max(len(rounds), 1), len(rounds)


def load_cases():
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tasks")
    cases = []
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        if name.endswith(".jsonl"):
            with open(os.path.join(folder, name), encoding="utf-8") as f:
                cases += [json.loads(line) for line in f if line.strip()]
    return cases


def tasks(trainer, coder, results):
    import tasks_check

    cases = sorted(load_cases(), key=lambda c: c["max_tokens"])
    prompts = [coder.encode(c["prompt"]) for c in cases]
    answers = generate(trainer, prompts, [c["max_tokens"] for c in cases])
    score, failures = {}, []
    for c, a in zip(cases, answers):
        text = coder.decode([t for t in a if t != 1])
        if "check" not in c:
            continue
        outcome = tasks_check.check(c, text)
        good = outcome["passed"]
        key = f"{c['task']}-{c['bucket']}"
        score.setdefault(key, []).append(good)
        if "well_formed" in outcome:
            score.setdefault(key + "-well-formed", []).append(outcome["well_formed"])
        if not good and sum(f["key"] == key for f in failures) < 12:
            failures.append({"key": key, "prompt": c["prompt"][-300:], "check": c["check"], "got": text})
    results["tasks"] = {k: {"share": sum(v) / len(v), "cases": len(v)} for k, v in score.items()}
    results["failures"] = failures
    log("tasks", json.dumps(results["tasks"]))
    short = [i for i, c in enumerate(cases) if "check" not in c and len(prompts[i]) + len(answers[i]) < 900]
    return [prompts[i] for i in short], [answers[i] for i in short]


STORIES = ["Once upon a time", "Once upon a time there was a little girl who", "The king had three sons.",
           "One morning the fox", "There was once an old woman", "Long ago, in a small house by the sea,",
           "Tom looked out of the window.", "\"Where are you going?\" asked the rabbit.",
           "It was snowing, and", "The boy opened the box and"]
CHATS = ["Hello! Who are you?", "Tell me a short story.", "What is 7 plus 5?", "你好！", "What colour is the sky?",
         "Translate into Chinese: I like apples.", "How are you today?", "翻译成英语：我很高兴。",
         "Give me a JSON object with a name and an age.", "Can you help me?"]


def samples(trainer, coder):
    made = {"stories": [], "chats": []}
    prompts = [[0] + coder.encode(s, added_tokens=False) for s in STORIES]
    for s, a in zip(STORIES, generate(trainer, prompts, [160] * len(prompts), 0.8, seed=1)):
        made["stories"].append({"prompt": s, "text": coder.decode([t for t in a if t != 1])})
    import chat_format

    try:
        from world import chats
        render = lambda q: chats.render_prompt([{"role": "user", "content": q}], False)
    except Exception:
        render = lambda q: "<｜begin▁of▁sentence｜><｜User｜>" + q + "<｜Assistant｜></think>"
    prompts = [coder.encode(render(q)) for q in CHATS]
    for q, a in zip(CHATS, generate(trainer, prompts, [80] * len(prompts), 0.6, seed=2)):
        made["chats"].append({"prompt": q, "text": coder.decode([t for t in a if t != 1])})
    return made


def everything(trainer, drafts=True):
    from tokenizer import Tokenizer
    import pathlib

    results, out = {}, trainer.options.out
    begin = time.time()

    def step(name, f):
        try:
            value = f()
            log(f"[{time.time() - begin:.0f} s] {name} {value if isinstance(value, (int, float, tuple)) else ''}")
            return value
        except Exception as error:
            import traceback
            log(f"{name} failed: {error}\n{traceback.format_exc()[-1200:]}")
        finally:
            with open(os.path.join(out, "results.json"), "w") as f:
                json.dump(results, f, indent=1, ensure_ascii=False)

    coder = Tokenizer.load(pathlib.Path(trainer.options.data) / "tokenizer.json")
    results["bpb_quantised"] = step("bpb quantised", lambda: trainer.bits_per_byte(trainer.eval_ops))
    results["bpb_master"] = step("bpb master", lambda: trainer.bits_per_byte(trainer.plain_ops))
    world = step("tasks", lambda: tasks(trainer, coder, results))
    if drafts:
        inputs, _, _, _ = trainer.corpus.heldout_windows(512)
        order = torch.randperm(len(inputs) - 8, generator=torch.Generator().manual_seed(5))[:64]
        prompts = [inputs[i][:256].tolist() for i in order]
        answers = generate(trainer, prompts, [128] * len(prompts))
        results["accepted_stories"] = step("accepted, stories", lambda: accepted(trainer, prompts, answers))
        if world and world[0]:
            results["accepted_world"] = step("accepted, world chat", lambda: accepted(trainer, *world))
    made = step("samples", lambda: samples(trainer, coder))
    with open(os.path.join(out, "samples.json"), "w") as f:
        json.dump(made, f, indent=1, ensure_ascii=False)
    step("end", lambda: 0)
    log(json.dumps({k: v for k, v in results.items() if k != "failures"}))
    for s in (made or {}).get("stories", [])[:3] + (made or {}).get("chats", [])[:3]:
        log(repr(s["prompt"]), "->", repr(s["text"][:300]))
    return results
