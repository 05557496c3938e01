"""The configuration of models/nano, and what it weighs in the released format.

`nano.py --data DIR` prints the sizes for the tokenizer in DIR.
"""

import argparse
import json
import os

import engram
from model import Config, parameter_shapes, stored_as


def nano_config(vocab_size, class_count, ids):
    """Nested config as released. ids: token ids of bos, eos, pad, image and noise."""
    columns_start, layers, ngram, heads = 1900, [1, 4], 4, 4
    rows = [sum(p) for p in engram.primes(len(layers), ngram, heads, columns_start)]
    return {
        "architectures": ["DeepseekV41ForCausalLM"],
        "model_type": "deepseek_v41",
        "torch_dtype": "bfloat16",
        "bos_token_id": ids["bos"], "eos_token_id": ids["eos"], "pad_token_id": ids["pad"],
        "image_token_id": ids["image"],
        "text_config": {
            "model_type": "deepseek_v41_text", "hidden_act": "silu", "attention_bias": False,
            "attention_dropout": 0.0, "tie_word_embeddings": False, "num_key_value_heads": 1,
            "n_shared_experts": 1, "scoring_func": "sqrtsoftplus", "topk_method": "noaux_tc",
            "norm_topk_prob": True, "routed_scaling_factor": 1.5, "swiglu_limit": 10.0,
            "rms_norm_eps": 1e-20, "rope_theta": 10000, "compress_rope_theta": 160000,
            "rope_scaling": {"rope_type": "yarn", "factor": 16,
                             "original_max_position_embeddings": 512, "beta_fast": 32,
                             "beta_slow": 1},
            "max_position_embeddings": 8192,
            "hc_mult": 4, "hc_sinkhorn_iters": 20, "hc_eps": 1e-6,
            "bos_token_id": ids["bos"], "eos_token_id": ids["eos"], "pad_token_id": ids["pad"],
            "vocab_size": vocab_size, "hidden_size": 256, "num_hidden_layers": 12,
            "moe_intermediate_size": 96, "num_attention_heads": 8, "head_dim": 64,
            "qk_rope_head_dim": 32, "q_lora_rank": 128, "o_lora_rank": 64, "o_groups": 4,
            "n_routed_experts": 8, "num_experts_per_tok": 3, "sliding_window": 64,
            "compress_ratios": [0, 0, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 0, 0],
            "kv_source_layer_ids": [2, 4, 6], "index_source_layer_ids": [2, 4, 6, 8, 10],
            "candidate_source_layer_id": 6, "candidate_topk_blocks": 32, "candidate_block_size": 8,
            "index_n_heads": 4, "index_head_dim": 64, "index_topk": 64,
            "engram_layer_ids": layers, "engram_max_ngram_size": ngram, "engram_n_heads": heads,
            "engram_head_dim": 32, "engram_vocab_size": columns_start,
            "engram_pad_token_id": ids["pad"], "engram_compressed_vocab_size": class_count,
            "engram_num_embeddings": rows,
            "num_nextn_predict_layers": 3, "dspark_block_size": 5,
            "dspark_noise_token_id": ids["noise"], "dspark_target_layer_ids": [3, 7, 11],
            "dspark_markov_rank": 32, "dspark_n_routed_experts": 3,
            "dspark_num_experts_per_tok": 2,
        },
        "vision_config": {
            "model_type": "deepseek_v41_vision", "num_hidden_layers": 2, "hidden_size": 64,
            "num_attention_heads": 2, "intermediate_size": 96, "patch_size": 14,
            "rope_theta": 10000, "downsample_ratio": 3, "max_image_tokens": 1024,
            "min_pixels": 295936, "max_wh_ratio": None,
        },
        "quantization_config": {
            "quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3",
            "scale_fmt": "ue8m0", "weight_block_size": [32, 32], "expert_dtype": "fp4",
        },
    }


def for_tokenizer(folder):
    """(nested config, class ids) for the tokenizer.json in `folder`."""
    path = os.path.join(folder, "tokenizer.json")
    with open(path, encoding="utf-8") as f:
        spec = json.load(f)
    added = {t["content"]: t["id"] for t in spec["added_tokens"]}
    vocab = 1 + max(max(spec["model"]["vocab"].values()), max(added.values()))
    cid = engram.compressed_ids(path, vocab)
    ids = {"bos": 0, "eos": 1, "pad": 2, "image": added["<｜deepseek_image｜>"],
           "noise": added["<｜System｜>"]}
    return nano_config(vocab, int(cid.max()) + 1, ids), cid


def sizes(cfg):
    """Bytes by part, and weights multiplied per decoded token."""
    width = {"fp8": 1 + 1 / 1024, "fp4": 0.5 + 1 / 32, "row": 1 + 1 / 32, "bf16": 2, "f32": 4}
    parts, active = {}, 0
    for name, shape in parameter_shapes(cfg).items():
        values = 1
        for s in shape:
            values *= s
        part = name.split(".")[0]
        parts[part] = parts.get(part, 0) + values * width[stored_as(name)]
        leaf = name.split(".")[-1].split("@")[0]
        if part == "mtp" or leaf in ("embed", "eng_table") or "norm" in leaf:
            continue
        if leaf.startswith("e_w"):
            values = values * cfg.num_experts_per_tok // cfg.n_routed_experts
        active += values
    return {k: round(v) for k, v in parts.items()}, active


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    config, _ = for_tokenizer(parser.parse_args().data)
    parts, active = sizes(Config(config))
    print(parts, "total", sum(parts.values()), "active", active)
