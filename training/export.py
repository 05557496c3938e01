"""Writes a model in the released format: shards, index, config and tokenizer files.

Weights are stored as the forward of model.py saw them: fp8 tiles, fp4 rows and table rows through
quant.py, the rest bf16 or f32. The vision tower's weights are random (a later version trains
them); everything else comes from the model. Ends by checking its own bounds: size of the
directory and number of active parameters.

    python3 training/export.py MASTER.pt TOKENIZER_DIR OUT_DIR
"""

import argparse
import json
import os
import shutil
import struct

import numpy as np
import torch

import quant
from checkpoint import scale_name, tensor_table

SHARD_BYTES_MAX = 15 * 1024 * 1024
DIRECTORY_BYTES_MAX = 24 * 1024 * 1024
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")
ITEM_BYTES = {"F32": 4, "I32": 4, "I64": 8, "I16": 2, "BF16": 2, "U8": 1, "I8": 1, "F8_E4M3": 1,
              "F8_E8M0": 1}


def bf16_bits(x):
    return x.detach().to(torch.bfloat16).contiguous().view(torch.int16).numpy()


def stored(kind, value):
    """(dtype, array) of the weight and, for quantised kinds, of its scale."""
    value = value.detach().float().cpu()
    if kind == "f32":
        return [("F32", value.contiguous().numpy())]
    if kind == "bf16":
        return [("BF16", bf16_bits(value))]
    if kind == "fp8":
        q, field = quant.fp8_tiles(value)
        codes = quant.e4m3_code(q)
    elif kind == "row":
        q, field = quant.fp8_rows_parts(value)
        codes = quant.e4m3_code(q).reshape(value.shape)
    else:
        q, field = quant.fp4_rows_parts(value)
        codes = quant.pack_e2m1(quant.e2m1_code(q).reshape(value.shape))
    dtype = "I8" if kind == "fp4" else "F8_E4M3"
    scale = field.to(torch.uint8).contiguous().numpy()
    return [(dtype, codes.contiguous().numpy()), ("F8_E8M0", scale)]


def vision_tensors(nested, seed):
    """Random tower, aligner and delimiters of the declared sizes; none if the tower has no layers."""
    v, d = nested["vision_config"], nested["text_config"]["hidden_size"]
    if not v["num_hidden_layers"]:
        return
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(shape, generator=generator) * shape[-1] ** -0.5

    width, inner = v["hidden_size"], v["intermediate_size"]
    yield "vision.patch_embed.proj.weight", draw(width, 3 * v["patch_size"] ** 2)
    yield "vision.patch_embed.proj.bias", torch.zeros(width)
    for i in range(v["num_hidden_layers"]):
        at = f"vision.blocks.{i}."
        yield at + "norm1.weight", torch.ones(width)
        yield at + "norm2.weight", torch.ones(width)
        yield at + "attn.wqkv.weight", draw(3 * width, width)
        yield at + "attn.wqkv.bias", torch.zeros(3 * width)
        yield at + "attn.wo.weight", draw(width, width)
        yield at + "attn.wo.bias", torch.zeros(width)
        yield at + "mlp.w1.weight", draw(2 * inner, width)
        yield at + "mlp.w2.weight", draw(width, inner)
    yield "vision.norm.weight", torch.ones(width)
    merged = width * v["downsample_ratio"] ** 2
    yield "aligner.w1.weight", draw(d, merged)
    yield "aligner.w1.bias", torch.zeros(d)
    yield "aligner.w2.weight", draw(d, d)
    yield "aligner.w2.bias", torch.zeros(d)
    for name in ("image_start", "image_end", "image_newline"):
        yield name, draw(d)


def all_tensors(model, vision_seed):
    """(name, dtype, array) in checkpoint order: top level, layers, draft stages, vision."""
    result = []
    for name, kind, parameter, at in tensor_table(model.cfg):
        value = model.params[parameter]
        parts = stored(kind, value[at] if at else value)
        for part_name, (dtype, array) in zip((name, scale_name(name)), parts):
            result.append((part_name, dtype, array))
    for name, value in vision_tensors(model.cfg.nested, vision_seed):
        result.append((name, "BF16", bf16_bits(value)))
    return result


def write_safetensors(path, tensors):
    """tensors: (name, dtype, array). Widest items first, so that every tensor is aligned."""
    tensors = sorted(tensors, key=lambda t: (-ITEM_BYTES[t[1]], t[0]))
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, dtype, array in tensors:
        header[name] = {"dtype": dtype, "shape": list(array.shape),
                        "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)))
        f.write(text)
        for _, _, array in tensors:
            f.write(np.ascontiguousarray(array).tobytes())


def shards(tensors):
    """Consecutive groups whose data stays under the limit, header included."""
    group, size = [], 0
    for tensor in tensors:
        cost = tensor[2].nbytes + len(tensor[0]) + 120
        if group and size + cost > SHARD_BYTES_MAX - 4096:
            yield group
            group, size = [], 0
        group.append(tensor)
        size += cost
    yield group


def active_parameters(cfg):
    """Weights multiplied per decoded token: head included, tables and embedding not."""
    total = 0
    for name, kind, parameter, at in tensor_table(cfg):
        del kind, at
        leaf = parameter.split(".")[-1].split("@")[0]
        if parameter.startswith("mtp.") or leaf in ("embed", "eng_table"):
            continue
        if ".experts." in name and "shared" not in name:
            continue
        total += shape_of(cfg, parameter, name)
    expert = 3 * cfg.hidden_size * cfg.moe_intermediate_size
    return total + cfg.num_hidden_layers * cfg.num_experts_per_tok * expert


def shape_of(cfg, parameter, name):
    """Values of one stored tensor."""
    from model import parameter_shapes

    shape = parameter_shapes(cfg)[parameter]
    stacked = name.startswith(("layers.", "mtp.")) and parameter.startswith(("layers.", "mtp."))
    skip = 0
    if stacked and parameter not in ("mtp.main_proj", "mtp.main_norm", "mtp.norm",
                                     "mtp.markov_embed", "mtp.markov_head", "mtp.confidence"):
        skip = 2 if ".experts." in name and "shared" not in name else 1
    return int(np.prod(shape[skip:]))


def write(model, tokenizer_dir, out_dir, vision_seed=41):
    """Writes the directory; returns a summary dict. Raises ValueError past a bound."""
    os.makedirs(out_dir, exist_ok=True)
    for old in os.listdir(out_dir):
        if old.endswith(".safetensors") or old == "model.safetensors.index.json":
            os.remove(os.path.join(out_dir, old))
    tensors = all_tensors(model, vision_seed)
    groups = list(shards(tensors))
    weight_map = {}
    for number, group in enumerate(groups, 1):
        file = f"model-{number:05d}-of-{len(groups):05d}.safetensors"
        write_safetensors(os.path.join(out_dir, file), group)
        weight_map.update({name: file for name, _, _ in group})
    total = sum(array.nbytes for _, _, array in tensors)
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    with open(os.path.join(out_dir, "model.safetensors.index.json"), "w", encoding="utf-8") as f:
        json.dump(index, f, separators=(",", ":"))
    with open(os.path.join(out_dir, "config.json"), "w", encoding="utf-8") as f:
        json.dump(model.cfg.nested, f, indent=1)
        f.write("\n")
    for file in TOKENIZER_FILES:
        source, target = os.path.join(tokenizer_dir, file), os.path.join(out_dir, file)
        if os.path.exists(source) and os.path.abspath(source) != os.path.abspath(target):
            shutil.copyfile(source, target)
    size = sum(e.stat().st_size for e in os.scandir(out_dir) if e.is_file())
    if size > DIRECTORY_BYTES_MAX:
        raise ValueError(f"{out_dir} has {size} bytes, the bound is {DIRECTORY_BYTES_MAX}")
    return {"directory_bytes": size, "tensor_bytes": total, "tensors": len(tensors),
            "shards": len(groups), "active_parameters": active_parameters(model.cfg)}


def read_training(path):
    """A model on the CPU with the parameters that a training run saved."""
    from model import Config, Model

    state = torch.load(path, map_location="cpu")
    model = Model(Config(state["config"]))
    with torch.no_grad():
        for name, value in model.params.items():
            value.copy_(state["params"][name].float())
    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("master", help="what train.py saved")
    parser.add_argument("tokenizer", help="folder with tokenizer.json and its companions")
    parser.add_argument("out", help="directory to write")
    arguments = parser.parse_args()
    model = read_training(arguments.master)
    print(json.dumps(write(model, arguments.tokenizer, arguments.out)))


if __name__ == "__main__":
    main()
