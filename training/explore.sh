#!/bin/bash
# First call: kernels, world data, two short runs. $OUT gets logs.
export PYTHONUNBUFFERED=1
nvidia-smi -L; nproc; cp -r .carry/nano-data /tmp/data
( cd training; time timeout 200 python3 data.py world --data /tmp/data --tokens 40000000 --workers 22 ) >$OUT/world.log 2>&1 &
( export CUDA_VISIBLE_DEVICES=1 TORCHINDUCTOR_CACHE_DIR=/tmp/ind1
  timeout 245 python3 training/train.py --data /tmp/data --out /tmp/out1 --minutes 2.6 --log-every 6 --profile-at 100 \
    --set '{"draft_share":0.15}' >$OUT/run1.log 2>&1; cp /tmp/out1/*.json /tmp/out1/profile.txt $OUT/ ) &
( export CUDA_VISIBLE_DEVICES=0 TORCHINDUCTOR_CACHE_DIR=/tmp/ind0
  timeout 100 python3 training/check_kernels.py >$OUT/check.log 2>&1
  timeout 150 python3 training/train.py --data /tmp/data --out /tmp/out0 --minutes 2.1 --log-every 6 --skip draft,measure \
    --set '{"muon_lr":0.03,"adam_lr":0.006,"dropout":0.05}' >$OUT/run0.log 2>&1 ) &
wait
tar -C /tmp -czf $OUT/ind1.tgz ind1; ls -la $OUT
grep -h . $OUT/check.log | cut -c1-300; tail -5 $OUT/world.log; tail -6 $OUT/run0.log | cut -c1-700; tail -12 $OUT/run1.log | cut -c1-900
