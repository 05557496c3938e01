"""What Engram derives from a tokenizer and a config: class ids, primes, multipliers, row ids.

Pure functions of token ids; the tables' contents live in model.py.
"""

import json
import unicodedata

import numpy as np
import torch


def _byte_decoder():
    """The byte-level alphabet of BPE vocabularies: printable stand-ins back to bytes."""
    keep = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {chr(b): b for b in keep}
    spare = (b for b in range(256) if b not in keep)
    for n, b in enumerate(spare):
        table[chr(256 + n)] = b
    return table


def class_key(text, raw):
    if "\ufffd" in text:
        return raw
    s = unicodedata.normalize("NFD", unicodedata.normalize("NFKC", text))
    s = "".join(c for c in s if not unicodedata.category(c).startswith("M"))
    s = "".join(c.lower() for c in s)
    out = []
    for c in s:
        c = " " if c in " \t\r\n" else c
        if c == " " and out and out[-1] == " ":
            continue
        out.append(c)
    s = "".join(out)
    s = "\ue000" if s == " " else s
    s = s.strip().replace("\ue000", " ")
    return s if s else text


def compressed_ids(tokenizer_json, vocab_size):
    """Class id of every token id, int64 [vocab_size]; ids without a token are classes alone."""
    with open(tokenizer_json, encoding="utf-8") as f:
        spec = json.load(f)
    raw = {i: t for t, i in spec["model"]["vocab"].items()}
    added = {t["id"]: t["content"] for t in spec.get("added_tokens", [])}
    decoder = _byte_decoder()
    classes, ids = {}, []
    for i in range(vocab_size):
        if i in added:
            text = name = added[i]
        elif i in raw:
            name = raw[i]
            text = bytes(decoder[c] for c in name).decode("utf-8", errors="replace")
        else:
            raise ValueError(f"token id {i} has no entry in {tokenizer_json}")
        ids.append(classes.setdefault(class_key(text, name), len(classes)))
    return torch.tensor(ids, dtype=torch.int64)


def _is_prime(n):
    if n < 2 or n % 2 == 0:
        return n == 2
    return all(n % f for f in range(3, int(n**0.5) + 1, 2))


def primes(layer_count, max_ngram, heads, search_start):
    """[layer][column] primes, columns ordered by n-gram size, then head."""
    used, result = set(), []
    for _ in range(layer_count):
        columns = []
        for _ in range(2, max_ngram + 1):
            at = search_start - 1
            for _ in range(heads):
                at += 1
                while not _is_prime(at) or at in used:
                    at += 1
                used.add(at)
                columns.append(at)
        result.append(columns)
    return result


def multipliers(layer_id, max_ngram, class_count):
    bound = max(1, ((2**63 - 1) // class_count) // 2)
    draws = np.random.default_rng(10007 * layer_id).integers(0, bound, size=max_ngram)
    return [int(2 * u + 1) for u in draws]


class Hasher:
    """Row ids of every Engram layer, [B, T, layers, columns] int64."""

    def __init__(self, cfg, cid):
        self.cfg, self.cid = cfg, cid
        self.pad = int(cid[cfg.engram_pad_token_id])
        classes = int(cid.max()) + 1
        if classes != cfg.engram_compressed_vocab_size:
            raise ValueError(
                f"engram_compressed_vocab_size {cfg.engram_compressed_vocab_size}, "
                f"tokenizer gives {classes} classes"
            )
        n, h = cfg.engram_max_ngram_size, cfg.engram_n_heads
        self.primes = primes(len(cfg.engram_layer_ids), n, h, cfg.engram_vocab_size)
        self.offsets = [[sum(p[:i]) for i in range(len(p))] for p in self.primes]
        self.multipliers = [multipliers(l, n, classes) for l in cfg.engram_layer_ids]
        self._device = {}

    def _on(self, device):
        if device not in self._device:
            self._device[device] = tuple(
                torch.tensor(t, dtype=torch.int64, device=device)
                for t in (self.cid.tolist(), self.primes, self.offsets, self.multipliers)
            )
        return self._device[device]

    def rows(self, tokens, dead=None):
        cid, prime, offset, mult = self._on(tokens.device)
        heads, sizes = self.cfg.engram_n_heads, self.cfg.engram_max_ngram_size
        tau0 = cid[tokens]
        ok = torch.ones_like(tokens, dtype=torch.bool) if dead is None else ~dead
        taus, alive = [], ok
        for i in range(sizes):
            if i == 0:
                shifted = tau0
            else:
                shifted = torch.full_like(tau0, self.pad)
                shifted[:, i:] = tau0[:, : tau0.shape[1] - i]
                ok_i = torch.zeros_like(ok)
                ok_i[:, i:] = ok[:, : ok.shape[1] - i]
                alive = alive & ok_i
            taus.append(torch.where(alive, shifted, torch.full_like(tau0, self.pad)))
        result = []
        for k in range(len(self.primes)):
            xi, columns = taus[0] * mult[k, 0], []
            for g in range(2, sizes + 1):
                xi = xi ^ (taus[g - 1] * mult[k, g - 1])
                at = slice((g - 2) * heads, (g - 1) * heads)
                columns.append(xi.unsqueeze(-1) % prime[k, at] + offset[k, at])
            result.append(torch.cat(columns, -1))
        return torch.stack(result, 2)
