"""Splits the storybooks: every eleventh of en_stories.sources.jsonl is held out for evaluation.

`heldout.py --corpus DIR --out DIR` writes the held-out books as text files for `galley eval`;
`--check` also looks for their sentences in the training books and says what it finds. Neither
tokenizer nor model ever sees these books.
"""

import argparse
import json
import lzma
import pathlib
import re
import sys

SEPARATOR = "<|endoftext|>"
EVERY = 11
SHINGLE_WORDS = 12


def read_books(corpus, name):
    """(id, text) of each book of `name`.txt.xz, in the order of `name`.sources.jsonl."""
    with open(corpus / f"{name}.sources.jsonl", encoding="utf-8") as file:
        ids = [json.loads(line)["id"] for line in file]
    with lzma.open(corpus / f"{name}.txt.xz", "rt", encoding="utf-8") as file:
        texts = [text.strip("\n") for text in file.read().split(SEPARATOR)]
    texts = [text for text in texts if text]
    if len(texts) != len(ids):
        raise SystemExit(f"{name}: {len(ids)} sources but {len(texts)} books")
    return list(zip(ids, texts))


def split_stories(corpus):
    """(training books, held-out books)."""
    books = read_books(corpus, "en_stories")
    return ([book for i, book in enumerate(books, 1) if i % EVERY],
            [book for i, book in enumerate(books, 1) if i % EVERY == 0])


def shingles(text):
    words = re.findall(r"[a-z]+", text.lower())
    return {" ".join(words[i:i + SHINGLE_WORDS])
            for i in range(0, len(words) - SHINGLE_WORDS)}


def shared_share(held_text, others):
    """Share of held-out 12-word runs found in each other text, largest first."""
    wanted = shingles(held_text)
    found = [(len(wanted & shingles(text)) / max(1, len(wanted)), id_) for id_, text in others]
    return sorted(found, reverse=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--corpus", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    training, held = split_stories(options.corpus)
    options.out.mkdir(parents=True, exist_ok=True)
    for id_, text in held:
        path = options.out / f"{id_}.txt"
        path.write_text(text + "\n", encoding="utf-8")
        print(f"{path} {path.stat().st_size} bytes")
    if not options.check:
        return 0
    others = training + read_books(options.corpus, "en_novels")
    for id_, text in held:
        share, other = shared_share(text, others)[0]
        print(f"{id_}: {share:.2%} of its {SHINGLE_WORDS}-word runs occur in {other}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
