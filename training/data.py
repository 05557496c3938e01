"""Prepares the training data of models/nano in one folder (its format: DATA.md).

`data.py natural --corpus DIR --data DIR` trains the tokenizer and encodes the natural texts;
`data.py world --data DIR` generates the world documents, with as many processes as asked for.
Both are deterministic. The second needs nothing but the folder, so it runs on the training
machine and only natural text travels there.
"""

import argparse
import bz2
import functools
import json
import multiprocessing
import pathlib
import random
import sys

import numpy

import chat_format
import heldout
import tokenizer
from tokenizer import BOS, EOS, Tokenizer
from world import documents

CONTEXT_LENGTH = 4096
UNIHAN_VARIANTS = "/usr/share/unicode/Unihan_Variants.txt.bz2"

# Shares of sampled tokens, in per mille: (name, main phase, long-context phase). The world shares
# stand in world/documents.py.
NATURAL_SHARES = {
    "en_stories": (390, 300), "en_novels": (200, 140), "tinystories": (15, 8),
    "tatoeba": (20, 8), "translation": (25, 10), "chatter": (2, 1), "bfcl_tools": (8, 6),
}


@functools.cache
def read_variants():
    """Traditional to simplified characters, from Debian's unicode-data."""
    if not pathlib.Path(UNIHAN_VARIANTS).exists():
        raise SystemExit(f"data: {UNIHAN_VARIANTS} is missing: install Debian's unicode-data")
    table = {}
    with bz2.open(UNIHAN_VARIANTS, "rt", encoding="utf-8") as file:
        for line in file:
            fields = line.split()
            if len(fields) < 3 or fields[1] != "kSimplifiedVariant":
                continue
            old, new = fields[0], fields[2:]
            if old not in new:  # A character that is its own variant stays.
                table[int(old[2:], 16)] = chr(int(new[0][2:], 16))
    return table


def simplified(text):
    """One script is enough to learn for a model this small."""
    return text.translate(read_variants())


def read_pairs(corpus):
    """Tatoeba's (English, Chinese) pairs."""
    with open(corpus / "tatoeba_en_zh.tsv", encoding="utf-8") as file:
        pairs = [simplified(line).rstrip("\n").split("\t") for line in file]
    return sorted({tuple(pair) for pair in pairs if len(pair) == 2})


def paired_lists(pairs, rng):
    """The pairs as plain text, some dozen to a document, both directions."""
    pairs = pairs[:]
    rng.shuffle(pairs)
    texts = []
    while pairs:
        chosen, pairs = pairs[:24], pairs[24:]
        style = rng.randrange(3)
        if style == 0:
            lines = [f"{en} {zh}" for en, zh in chosen]
        elif style == 1:
            lines = [f"{zh} {en}" for en, zh in chosen]
        else:
            lines = [f"English: {en}\n中文：{zh}" for en, zh in chosen]
        texts.append("\n".join(lines))
    return texts


TO_CHINESE = ["Translate into Chinese: {}", "How do you say this in Chinese? {}",
              "翻译成中文：{}", "Please translate this sentence into Chinese.\n\n{}"]
TO_ENGLISH = ["Translate into English: {}", "翻译成英语：{}", "What does this mean in English? {}",
              "Please translate this sentence into English.\n\n{}"]


def translation_chats(pairs, rng):
    pairs = pairs[:]
    rng.shuffle(pairs)
    texts = []
    while pairs:
        turns = rng.randint(1, 6)
        chosen, pairs = pairs[:turns], pairs[turns:]
        messages = []
        for en, zh in chosen:
            source, target, asks = (en, zh, TO_CHINESE) if rng.random() < .5 else (
                zh, en, TO_ENGLISH)
            messages += [{"role": "user", "content": rng.choice(asks).format(source)},
                         {"role": "assistant", "content": target}]
        texts.append(chat_format.render(messages))
    return texts


def chatter(corpus):
    texts = []
    for name in ("chat_english", "chat_chinese"):
        with open(corpus / f"{name}.jsonl", encoding="utf-8") as file:
            for line in file:
                turns = json.loads(line)["turns"]
                turns = turns[:len(turns) // 2 * 2]
                if turns:
                    texts.append(chat_format.render(
                        [{"role": "assistant" if i % 2 else "user", "content": turn}
                         for i, turn in enumerate(turns)]))
    return texts


def _plain_schema(value):
    """BFCL writes Python's type names where JSON Schema has its own."""
    names = {"dict": "object", "float": "number", "tuple": "array", "any": "string"}
    if isinstance(value, dict):
        return {k: names.get(v, v) if k == "type" and isinstance(v, str) else _plain_schema(v)
                for k, v in value.items()}
    return [_plain_schema(v) for v in value] if isinstance(value, list) else value


def bfcl_tools(path):
    """Berkeley function-calling cases as conversations that end with the first accepted call."""
    texts = []
    with open(path, encoding="utf-8") as file:
        for line in file:
            case = json.loads(line)
            calls = []
            for call in case["answer"]:
                for name, accepted in call.items():
                    chosen = {k: v[0] for k, v in accepted.items() if v and v[0] != ""}
                    calls.append({"name": name, "arguments": chosen})
            tools = [{"type": "function", "function": _plain_schema(f)}
                     for f in case["functions"]]
            messages = [{"role": "system", "content": "", "tools": tools}] + case["messages"]
            if calls and all(m["role"] in ("system", "user", "assistant") for m in messages):
                messages.append({"role": "assistant", "content": "", "tool_calls": calls})
                texts.append(chat_format.render(messages))
    return texts


def natural_texts(corpus):
    """{source: documents}. A document that is not a rendered chat still lacks BOS and EOS."""
    rng = random.Random("natural")
    stories, _ = heldout.split_stories(corpus)
    pairs = read_pairs(corpus)
    tiny = (corpus / "tinystories_sample.txt").read_text(encoding="utf-8")
    return {
        "en_stories": [text for _, text in stories],
        "en_novels": [text for _, text in heldout.read_books(corpus, "en_novels")],
        "tinystories": [text.strip("\n") for text in tiny.split(heldout.SEPARATOR)
                        if text.strip()],
        "tatoeba": paired_lists(pairs, rng),
        "translation": translation_chats(pairs, rng),
        "chatter": chatter(corpus),
        "bfcl_tools": bfcl_tools(corpus.parent / "codec" / "bfcl_tool_calls.jsonl"),
    }


def encode_documents(encoder, texts):
    """uint16 ids of all documents, each from BOS to EOS."""
    parts = []
    for text in texts:
        whole = text if text.startswith(BOS) else BOS + text + EOS
        parts.append(numpy.array(encoder.encode(whole), dtype=numpy.uint16))
    return numpy.concatenate(parts)


def write_source(folder, name, ids):
    ids.tofile(folder / f"{name}.u16")
    return {"name": name, "file": f"{name}.u16", "tokens": int(ids.size),
            "documents": int((ids == 0).sum())}


def update_mix(folder, kind, sources, **more):
    """Replaces the sources of one kind in mix.json."""
    path = folder / "mix.json"
    mix = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"sources": []}
    mix.update(more)
    mix["sources"] = [s for s in mix["sources"] if s["kind"] != kind] + sources
    path.write_text(json.dumps(mix, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    for source in sources:
        print(f"{source['name']:14} {source['tokens']:>11,} tokens {source['documents']:>8,} "
              f"documents  weight {source['weight']}/{source['weight_long']}")


def prepare_natural(corpus, folder):
    folder.mkdir(parents=True, exist_ok=True)
    texts = natural_texts(corpus)
    # One copy of each text: translation chats repeat tatoeba. World documents give the tokenizer
    # the names and formats that most questions are made of.
    sample = documents.tokenizer_sample()
    learned = [text for name, source in texts.items() if name != "translation" for text in source]
    for token in tokenizer.BASE_SPECIAL + tokenizer.CODEC_TOKENS:
        learned = [text.replace(token, "\n") for text in learned]
        sample = [text.replace(token, "\n") for text in sample]
    description = tokenizer.train(learned + sample)
    tokenizer.write_folder(description, folder, CONTEXT_LENGTH)
    encoder = Tokenizer(description)
    sources = []
    for name, source in texts.items():
        ids = encode_documents(encoder, source)
        main, long = NATURAL_SHARES[name]
        sources.append({**write_source(folder, name, ids), "kind": "natural",
                        "bytes": sum(len(text.encode()) for text in source),
                        "weight": main, "weight_long": long,
                        "start_at_document": name not in ("en_stories", "en_novels")})
    held = []
    (folder / "heldout").mkdir(exist_ok=True)
    for id_, text in heldout.split_stories(corpus)[1]:
        ids = numpy.array(encoder.encode(text + "\n", added_tokens=False), dtype=numpy.uint16)
        ids.tofile(folder / "heldout" / f"{id_}.u16")
        held.append({"name": id_, "file": f"heldout/{id_}.u16", "tokens": int(ids.size),
                     "bytes": len((text + "\n").encode())})
    update_mix(folder, "natural", sources, vocab_size=encoder.vocab_size,
               context_length=CONTEXT_LENGTH, heldout=held)


_worker = {}


def _start_worker(folder):
    encoder = Tokenizer.load(folder / "tokenizer.json")
    stories = numpy.fromfile(folder / "en_stories.u16", dtype=numpy.uint16)
    _worker.update(encoder=encoder, world=documents.World(
        encoder.encode, documents.passages(encoder.decode(stories.tolist()))))


def _generate(job):
    """Ids of about `tokens` tokens of one source, from its own seed."""
    name, shard, tokens = job
    rng = random.Random(f"train {name} {shard}")
    parts, size = [], 0
    while size < tokens:
        text = _worker["world"].document(name, rng)
        parts.append(numpy.array(_worker["encoder"].encode(text), dtype=numpy.uint16))
        size += parts[-1].size
    return name, shard, numpy.concatenate(parts)


def prepare_world(folder, tokens, workers):
    shard_tokens = 250_000
    total = sum(main + long for main, long in documents.SHARES.values())
    jobs = []
    for name, (main, long) in documents.SHARES.items():
        shards = max(1, round(tokens * (main + long) / total / shard_tokens))
        jobs += [(name, shard, shard_tokens) for shard in range(shards)]
    jobs.sort(key=lambda job: (job[1], job[0]))  # Slow and fast sources mixed.
    parts = {}
    with multiprocessing.Pool(workers, _start_worker, (folder,)) as pool:
        for name, shard, ids in pool.imap_unordered(_generate, jobs):
            parts[name, shard] = ids
    sources = []
    for name, (main, long) in documents.SHARES.items():
        ids = numpy.concatenate([parts[key] for key in sorted(parts) if key[0] == name])
        sources.append({**write_source(folder, name, ids), "kind": "world", "weight": main,
                        "weight_long": long, "start_at_document": True})
    update_mix(folder, "world", sources)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    natural = verbs.add_parser("natural", help="train the tokenizer, encode the natural texts")
    natural.add_argument("--corpus", type=pathlib.Path, required=True)
    world = verbs.add_parser("world", help="generate the world documents")
    world.add_argument("--tokens", type=int, default=80_000_000)
    world.add_argument("--workers", type=int, default=multiprocessing.cpu_count())
    for verb in (natural, world):
        verb.add_argument("--data", type=pathlib.Path, required=True)
    options = parser.parse_args()
    if options.verb == "natural":
        prepare_natural(options.corpus, options.data)
    else:
        prepare_world(options.data, options.tokens, options.workers)
    return 0


if __name__ == "__main__":
    sys.exit(main())
