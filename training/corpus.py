"""Batches from the encoded data (DATA.md): all sources on the device, rows drawn by weight.

A row is T + 1 tokens that begin with BOS: at a document's start where the source asks for it,
else anywhere in a book with the first token replaced. Rows may run into the next documents.
"""

import json
import os

import numpy as np
import torch


class Corpus:
    def __init__(self, folder, device):
        self.folder, self.device, self.shares = folder, device, {}
        self.read()

    def changed(self):
        """Whether the folder got more sources since: world documents may come during training."""
        return os.path.getmtime(os.path.join(self.folder, "mix.json")) != self.time

    def read(self):
        folder, device = self.folder, self.device
        self.time = os.path.getmtime(os.path.join(folder, "mix.json"))
        with open(os.path.join(folder, "mix.json"), encoding="utf-8") as f:
            self.mix = json.load(f)
        self.sources = self.mix["sources"]
        streams, base = [], 0
        self.base, self.size, self.starts = [], [], []
        for source in self.sources:
            ids = np.fromfile(os.path.join(folder, source["file"]), dtype=np.uint16)
            streams.append(torch.from_numpy(ids.astype(np.int16)))
            self.base.append(base)
            self.size.append(len(ids))
            self.starts.append(np.flatnonzero(ids == 0) if source["start_at_document"] else None)
            base += len(ids)
        self.all = torch.cat(streams).to(device)
        with open(os.path.join(folder, "tokenizer.json"), encoding="utf-8") as f:
            added = {t["content"]: t["id"] for t in json.load(f)["added_tokens"]}
        self.assistant = added["<｜Assistant｜>"]
        self.stops = [0, 1, added["<｜User｜>"]]

    def weights(self, long):
        """Shares of the sources; `shares` overrides those of mix.json by name."""
        key = "weight_long" if long else "weight"
        w = np.array([self.shares.get(s["name"], {}).get(key, s[key]) for s in self.sources], dtype=float)
        return w / w.sum()

    def batch(self, rng, rows, length, long=False):
        """tokens int64 [rows, length + 1] and the source index of each row."""
        which = rng.choice(len(self.sources), size=rows, p=self.weights(long))
        offsets = []
        for s in which:
            last = max(self.size[s] - length - 1, 0)
            if self.starts[s] is None:
                offset = rng.integers(0, last + 1)
            else:
                count = np.searchsorted(self.starts[s], last, side="right")
                offset = self.starts[s][rng.integers(0, max(count, 1))]
            offsets.append(self.base[s] + offset)
        at = torch.tensor(offsets).to(self.device, non_blocking=True)
        index = at.unsqueeze(1) + torch.arange(length + 1, device=self.device)
        tokens = self.all[index.clamp(max=len(self.all) - 1)].long() & 0xFFFF
        tokens[:, 0] = 0
        return tokens, torch.from_numpy(which).to(self.device, non_blocking=True)

    def answer_weights(self, tokens, factor):
        """Loss weights [rows, length]: `factor` for targets inside an assistant's turn."""
        at = torch.arange(tokens.shape[1], device=tokens.device)
        stop = torch.zeros_like(tokens, dtype=torch.bool)
        for s in self.stops:
            stop |= tokens == s
        last = lambda mask: torch.where(mask, at, -1).cummax(1).values
        inside = (last(tokens == self.assistant) > last(stop))[:, :-1]
        return torch.where(inside, factor, 1.0)

    def heldout_windows(self, length):
        """Windows of `length` tokens that begin with BOS: inputs, targets, 1/0 weights; bytes."""
        inputs, targets, weights, size = [], [], [], 0
        for book in self.mix["heldout"]:
            ids = np.fromfile(os.path.join(self.folder, book["file"]), dtype=np.uint16).astype(np.int64)
            size += book["bytes"]
            for start in range(0, len(ids), length - 1):
                part = ids[start : start + length - 1]
                row = np.full(length + 1, 1, dtype=np.int64)
                row[0] = 0
                row[1 : 1 + len(part)] = part
                inputs.append(row[:length])
                targets.append(row[1:])
                weights.append((np.arange(length) < len(part)).astype(np.float32))
        stack = lambda rows: torch.from_numpy(np.stack(rows))
        return stack(inputs), stack(targets), stack(weights), size
