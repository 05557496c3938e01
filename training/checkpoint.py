"""The released checkpoint's tensor names against model.py's parameters, and a reader.

`tensor_table(cfg)` is the one place that knows both namings; the exporter writes from it. Reads
safetensors itself: two struct fields and a JSON header need no library.
"""

import json
import os
import struct

import numpy as np
import torch

import quant
from model import stored_as

BLOCK = {
    "attn_norm": "attn_norm.weight", "ffn_norm": "ffn_norm.weight",
    "hc_attn_fn": "hc_attn_fn", "hc_attn_base": "hc_attn_base", "hc_attn_scale": "hc_attn_scale",
    "hc_ffn_fn": "hc_ffn_fn", "hc_ffn_base": "hc_ffn_base", "hc_ffn_scale": "hc_ffn_scale",
    "attn_sink": "attn.attn_sink", "wq_a": "attn.wq_a.weight", "q_norm": "attn.q_norm.weight",
    "wq_b": "attn.wq_b.weight", "wkv": "attn.wkv.weight", "kv_norm": "attn.kv_norm.weight",
    "wo_a": "attn.wo_a.weight", "wo_b": "attn.wo_b.weight",
    "gate": "ffn.gate.weight", "gate_bias": "ffn.gate.bias", "gate_bias_vl": "ffn.gate.bias_vl",
    "s_w1": "ffn.shared_experts.w1.weight", "s_w2": "ffn.shared_experts.w2.weight",
    "s_w3": "ffn.shared_experts.w3.weight",
}
AT_LAYER = {
    "source.c_wkv": "attn.compressor.wkv.weight", "source.c_wgate": "attn.compressor.wgate.weight",
    "source.c_norm": "attn.compressor.norm.weight", "source.i_wk": "attn.indexer.wk.weight",
    "source.k_norm": "attn.indexer.k_norm.weight", "index.i_wq_b": "attn.indexer.wq_b.weight",
    "index.i_wp": "attn.indexer.weights_proj.weight", "engram.eng_table": "engram.embed.weight",
    "engram.eng_wkv": "engram.wkv.weight", "engram.eng_q": "engram.q_weight",
    "engram.eng_k": "engram.k_weight",
}
DRAFT = {
    "mtp.main_proj": (0, "main_proj.weight"), "mtp.main_norm": (0, "main_norm.weight"),
    "mtp.norm": (-1, "norm.weight"), "mtp.markov_embed": (-1, "markov_head.embed.weight"),
    "mtp.markov_head": (-1, "markov_head.head.weight"),
    "mtp.confidence": (-1, "confidence_head.proj.weight"),
}


def tensor_table(cfg):
    """(released name, storage kind, parameter name, index into the parameter) of every tensor.
    kind is fp8, fp4, row, bf16 or f32; the first three come with a scale tensor."""
    from model import parameter_shapes

    table = []
    for name, shape in parameter_shapes(cfg).items():
        kind = stored_as(name)
        base, _, layer = name.partition("@")
        if base in ("embed", "head", "norm"):
            table.append((f"{base}.weight", kind, name, ()))
        elif base in AT_LAYER:
            table.append((f"layers.{layer}.{AT_LAYER[base]}", kind, name, ()))
        elif base in DRAFT:
            stage, leaf = DRAFT[base]
            table.append((f"mtp.{stage % cfg.num_nextn_predict_layers}.{leaf}", kind, name, ()))
        else:
            where, leaf = base.split(".")
            for i in range(shape[0]):
                if leaf in BLOCK:
                    table.append((f"{where}.{i}.{BLOCK[leaf]}", kind, name, (i,)))
                else:
                    for j in range(shape[1]):
                        to = f"{where}.{i}.ffn.experts.{j}.{leaf[2:]}.weight"
                        table.append((to, kind, name, (i, j)))
    return table


def scale_name(name):
    return name[: -len("weight")] + "scale"


NUMPY = {"F32": np.float32, "I64": np.int64, "I32": np.int32, "I16": np.int16, "U8": np.uint8,
         "I8": np.uint8, "F8_E4M3": np.uint8, "F8_E8M0": np.uint8, "BF16": np.uint16}


def read_safetensors(path):
    """name -> torch tensor. BF16 as bfloat16; one-byte floats and I8 as raw uint8 codes."""
    data = np.memmap(path, dtype=np.uint8, mode="r")
    (size,) = struct.unpack("<Q", data[:8].tobytes())
    header = json.loads(data[8 : 8 + size].tobytes())
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        begin, end = (8 + size + o for o in entry["data_offsets"])
        a = np.frombuffer(data[begin:end].tobytes(), dtype=NUMPY[entry["dtype"]])
        a = a.reshape(entry["shape"])
        if entry["dtype"] == "BF16":
            f = torch.from_numpy((a.astype(np.uint32) << 16).view(np.int32))
            tensors[name] = f.view(torch.float32).to(torch.bfloat16)
        else:
            tensors[name] = torch.from_numpy(a.copy())
    return tensors


def read_directory(path):
    tensors = {}
    index = os.path.join(path, "model.safetensors.index.json")
    if os.path.exists(index):
        with open(index, encoding="utf-8") as f:
            shards = sorted(set(json.load(f)["weight_map"].values()))
    else:
        shards = ["model.safetensors"]
    for shard in shards:
        tensors.update(read_safetensors(os.path.join(path, shard)))
    return tensors


def dequantise(kind, weight, scale):
    """float32 values of a stored tensor."""
    if kind in ("bf16", "f32"):
        return weight.float()
    factor = quant.power_of_two(scale.to(torch.int32))
    if kind == "fp8":
        q = quant.e4m3_value(weight)
        factor = factor.repeat_interleave(32, -2).repeat_interleave(32, -1)
        return q * factor[: q.shape[-2], : q.shape[-1]]
    q = quant.e4m3_value(weight) if kind == "row" else quant.e2m1_value(quant.unpack_e2m1(weight))
    return q * factor.repeat_interleave(32, -1)[..., : q.shape[-1]]


def load(model, path):
    """Fills the model's parameters from a released directory; returns tensors it did not use."""
    tensors = read_directory(path)
    with torch.no_grad():
        for name, kind, parameter, at in tensor_table(model.cfg):
            weight = tensors.pop(name)
            scale = tensors.pop(scale_name(name)) if kind in ("fp8", "fp4", "row") else None
            value = dequantise(kind, weight, scale)
            target = model.params[parameter]
            target = target[at] if at else target
            if target.shape != value.shape:
                raise ValueError(f"{name}: stored {tuple(value.shape)}, config {tuple(target.shape)}")
            target.copy_(value)
    return tensors
