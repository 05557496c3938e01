"""Byte-level BPE of models/nano: training, encoding, decoding, tokenizer.json.

The file has the shape of the released tokenizer.json (three isolated splits, byte symbols, string
merges) and the released special-token strings, so the engine reads it with the code that reads the
real one. Knows nothing of the corpus: it is given texts. Debian's python3-regex is the only
dependency, for the Unicode classes of the splits.
"""

import heapq
import json
from collections import Counter, defaultdict

import regex

VOCAB_SIZE = 8192

# Ids 0..2, as released. Only these are `special`: dropping special tokens keeps the role tokens.
BOS, EOS, PAD = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"
BASE_SPECIAL = [BOS, EOS, PAD]

# The released strings that the conversation codec writes or reads, in released order, at the top
# of the id range. Fill-in-the-middle comes along for completion requests.
CODEC_TOKENS = [
    "<｜System｜>", "<｜fim▁hole｜>", "<｜fim▁begin｜>", "<｜fim▁end｜>", "<｜User｜>",
    "<｜Assistant｜>", "<think>", "</think>", "｜DSML｜", "<｜latest_reminder｜>", "<｜action｜>",
    "<｜query｜>", "<｜authority｜>", "<｜domain｜>", "<｜task｜>", "<｜title｜>", "<｜read_url｜>",
    "<｜deepseek_image｜>",
]

NUMBERS = r"\p{N}{1,3}"
CJK = "[一-龥\u3040-ゟ゠-ヿ]+"
WORDS = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
    "|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*"
    "|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
)

# The first two splits meet on disjoint characters, so one pass makes both. The last alternative
# collects what WORDS leaves over: an isolated split keeps gaps as pieces.
_NUMBER_OR_CJK = regex.compile(f"({NUMBERS}|{CJK})")
_WORD_OR_GAP = regex.compile(rf"{WORDS}|(?:(?!{WORDS})[\s\S])+")


def _byte_symbols():
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    symbols = {byte: chr(byte) for byte in printable}
    for byte in range(256):
        if byte not in symbols:
            symbols[byte] = chr(256 + len(symbols) - len(printable))
    return [symbols[byte] for byte in range(256)]


BYTE_SYMBOL = _byte_symbols()
SYMBOL_BYTE = {symbol: byte for byte, symbol in enumerate(BYTE_SYMBOL)}


def split_words(text):
    """The pieces of `text` that merges never cross."""
    words = []
    for index, piece in enumerate(_NUMBER_OR_CJK.split(text)):
        if index % 2:
            words.append(piece)
        elif piece:
            words += _WORD_OR_GAP.findall(piece)
    return words


def count_words(texts):
    counts = Counter()
    for text in texts:
        # By paragraph: the list of all pieces of a book would not fit a small machine's memory.
        for start in range(0, len(text), 1 << 20):
            counts.update(split_words(text[start:start + (1 << 20)]))
    return counts


def train_merges(counts, merge_count, first_id):
    """The merges, most frequent pair first, as (left id, right id). Ties go to the lower ids, so
    that the result depends on the counts alone."""
    words, weights = [], []
    for word, weight in sorted(counts.items()):
        ids = [byte + first_id - 256 for byte in word.encode()]
        if len(ids) > 1:
            words.append(ids)
            weights.append(weight)
    pair_count, pair_words = defaultdict(int), defaultdict(set)
    for index, ids in enumerate(words):
        for pair in zip(ids, ids[1:]):
            pair_count[pair] += weights[index]
            pair_words[pair].add(index)
    heap = [(-count, pair) for pair, count in pair_count.items()]
    heapq.heapify(heap)
    merges = []
    while len(merges) < merge_count and heap:
        negative, pair = heapq.heappop(heap)
        if pair_count.get(pair, 0) != -negative:
            continue  # Stale: the current count has its own entry.
        new_id = first_id + len(merges)
        merges.append(pair)
        left, right = pair
        changed = set()
        for index in pair_words.pop(pair):
            ids, weight = words[index], weights[index]
            for old in zip(ids, ids[1:]):
                pair_count[old] -= weight
                changed.add(old)
            merged, at = [], 0
            while at < len(ids):
                if at + 1 < len(ids) and ids[at] == left and ids[at + 1] == right:
                    merged.append(new_id)
                    at += 2
                else:
                    merged.append(ids[at])
                    at += 1
            words[index] = merged
            for new in zip(merged, merged[1:]):
                pair_count[new] += weight
                pair_words[new].add(index)
                changed.add(new)
        pair_count.pop(pair, None)
        changed.discard(pair)
        for other in changed:
            if pair_count[other] > 0:
                heapq.heappush(heap, (-pair_count[other], other))
            else:
                del pair_count[other]
                pair_words.pop(other, None)
    return merges


def train(texts, vocab_size=VOCAB_SIZE):
    """tokenizer.json, as a dict, of a BPE trained on `texts`."""
    symbols = BASE_SPECIAL + BYTE_SYMBOL
    merge_count = vocab_size - len(symbols) - len(CODEC_TOKENS)
    merges = train_merges(count_words(texts), merge_count, len(symbols))
    if len(merges) < merge_count:
        raise SystemExit(f"too little text: only {len(merges)} of {merge_count} merges found")
    lines = []
    for left, right in merges:
        lines.append(f"{symbols[left]} {symbols[right]}")
        symbols.append(symbols[left] + symbols[right])
    return describe(symbols, lines)


def describe(symbols, merges):
    def added(id_, content, special):
        return {"id": id_, "content": content, "single_word": False, "lstrip": False,
                "rstrip": False, "normalized": not special, "special": special}

    def split(pattern):
        return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated",
                "invert": False}

    byte_level = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True,
                  "use_regex": True}
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [added(i, s, True) for i, s in enumerate(BASE_SPECIAL)]
        + [added(len(symbols) + i, s, False) for i, s in enumerate(CODEC_TOKENS)],
        "normalizer": {"type": "Sequence", "normalizers": []},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            split(NUMBERS), split(CJK), split(WORDS),
            {**byte_level, "add_prefix_space": False, "use_regex": False}]},
        "post_processor": {**byte_level, "trim_offsets": False},
        "decoder": dict(byte_level),
        "model": {"type": "BPE", "dropout": None, "unk_token": None,
                  "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False,
                  "vocab": {symbol: i for i, symbol in enumerate(symbols)}, "merges": merges},
    }


class Tokenizer:
    """Encodes and decodes with any tokenizer.json of this shape."""

    def __init__(self, description):
        model = description["model"]
        self.vocab = model["vocab"]
        self.added = {t["content"]: t["id"] for t in description["added_tokens"]}
        self.rank = {}
        for rank, merge in enumerate(model["merges"]):
            left, right = merge.split(" ") if isinstance(merge, str) else merge
            ids = self.vocab[left], self.vocab[right]
            self.rank.setdefault(ids, (rank, self.vocab[left + right]))
        self.vocab_size = 1 + max(*self.vocab.values(), *self.added.values())
        self._byte_id = [self.vocab[symbol] for symbol in BYTE_SYMBOL]
        self._bytes = [b""] * self.vocab_size
        for symbol, id_ in self.vocab.items():
            if symbol not in self.added:
                self._bytes[id_] = bytes(SYMBOL_BYTE[c] for c in symbol)
        for content, id_ in self.added.items():
            self._bytes[id_] = content.encode()
        # Longest first makes the alternation leftmost-longest.
        longest_first = sorted(self.added, key=lambda s: (-len(s), s))
        self._added = regex.compile("(" + "|".join(map(regex.escape, longest_first)) + ")")
        self._cache = {}

    @classmethod
    def load(cls, path):
        with open(path, encoding="utf-8") as file:
            return cls(json.load(file))

    def _encode_word(self, word):
        ids = [self._byte_id[byte] for byte in word.encode()]
        while len(ids) > 1:
            best = min((self.rank[pair] + (at,) for at, pair in enumerate(zip(ids, ids[1:]))
                        if pair in self.rank), default=None)
            if best is None:
                break
            _, new_id, at = best
            ids[at:at + 2] = [new_id]
        if len(self._cache) < 2_000_000:
            self._cache[word] = ids
        return ids

    def encode(self, text, added_tokens=True):
        ids, cache = [], self._cache
        pieces = self._added.split(text) if added_tokens else [text]
        for index, piece in enumerate(pieces):
            if index % 2:
                ids.append(self.added[piece])
                continue
            for word in split_words(piece):
                found = cache.get(word)
                ids += self._encode_word(word) if found is None else found
        return ids

    def decode(self, ids):
        return b"".join(self._bytes[i] for i in ids).decode("utf-8", errors="replace")


def write_folder(description, folder, context_length):
    """tokenizer.json and the two small files beside it."""
    with open(folder / "tokenizer.json", "w", encoding="utf-8") as file:
        json.dump(description, file, ensure_ascii=False, separators=(",", ":"))
    config = {"add_bos_token": False, "add_eos_token": False, "bos_token": BOS, "eos_token": EOS,
              "pad_token": PAD, "model_max_length": context_length,
              "tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    generation = {"_from_model_config": True, "bos_token_id": 0, "eos_token_id": 1,
                  "do_sample": True, "temperature": 0.7, "top_p": 0.95}
    for name, value in (("tokenizer_config", config), ("generation_config", generation)):
        with open(folder / f"{name}.json", "w", encoding="utf-8") as file:
            json.dump(value, file, ensure_ascii=False, indent=1)
            file.write("\n")
