#!/usr/bin/env bash
# Makes models/nano again, from corpus to released format, on a machine with one H200 (about 45 minutes of it).
#
#   training/run.sh --corpus ../shared/data/corpus --out models/nano [--minutes 21]
#
# Texts and exports need a CPU only (python3-numpy, python3-regex, unicode-data, any PyTorch); the two trainings need a
# current PyTorch with CUDA and Triton. Each step's output stays in build/, so a run that stops goes on where it was.
set -euo pipefail
cd "$(dirname "$0")/.."
corpus=../shared/data/corpus out=models/nano minutes=21
while [ $# -gt 0 ]; do
  case $1 in
    --corpus) corpus=$2 ;;
    --out) out=$2 ;;
    --minutes) minutes=$2 ;;
    *) echo "training/run.sh: no option $1; known: --corpus DIR --out DIR --minutes N" >&2; exit 64 ;;
  esac
  shift 2
done
[ -d "$corpus" ] || { echo "training/run.sh: no corpus at $corpus; name it with --corpus DIR" >&2; exit 1; }
data=build/nano-data
[ -s $data/mix.json ] || python3 training/data.py natural --corpus "$corpus" --data $data
[ -s $data/recall_long.u16 ] || python3 training/data.py world --data $data --tokens 80000000 --workers "$(nproc)"
# The recipe of the shipped model (training/nano_recipe.json): settings, and when they changed.
[ -s build/nano-train/master.pt ] || python3 training/train.py --data $data --out build/nano-train \
  --minutes "$minutes" --set "$(cat training/nano_recipe.json)"
python3 training/export.py build/nano-train/master.pt $data "$out"
# The drafts then learn the text that this model writes by itself.
galley=build/release/bin/galley
[ -x $galley ] || ./dev build
drafts="python3 training/draft_on_policy.py"
[ -s build/requests.jsonl ] || $drafts prompts --data $data --out build/requests.jsonl --count 26800
$galley batch build/requests.jsonl -o build/answers.jsonl --model "$out" --replay off
[ -s build/texts.npz ] ||
  $drafts pack --data $data --requests build/requests.jsonl --answers build/answers.jsonl --out build/texts.npz
$drafts train --data $data --model "$out" --texts build/texts.npz --out build/drafts.pt \
  --set "$(cat training/nano_drafts.json)"
$drafts export --data $data --model "$out" --drafts build/drafts.pt --out "$out"
