#!/usr/bin/env python3
"""Writes the tiny random models of tests/data/families, and what transformers makes of them.

usage: make_family_models.py OUTPUT_FOLDER [NAME ...]     (needs torch, transformers, safetensors)

Each folder gets config.json and model.safetensors (bf16) as transformers saves them, and
<folder>.expected.safetensors: token_ids (n) and logits (n, vocab) of one prefill in fp32, attention eager.
Weights are random and mean nothing; every tensor, norms and biases too, differs from its default, so
that a tensor left out or a wrong formula shows.
"""
import os
import sys

import torch
import transformers
from safetensors.torch import save_file

COMMON = dict(vocab_size=256, hidden_size=64, intermediate_size=96, max_position_embeddings=256,
              rms_norm_eps=1e-6, bos_token_id=1, eos_token_id=2, pad_token_id=0)

GEMMA4_ROPE = {
    "full_attention": {"rope_type": "proportional", "rope_theta": 1e6,
                       "partial_rotary_factor": 0.25},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}

GEMMA3_ROPE = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}

CONFIGS = {
    "qwen2": dict(model_type="qwen2", num_hidden_layers=2, num_attention_heads=4,
                  num_key_value_heads=2, tie_word_embeddings=True, rope_theta=1e6),
    "qwen3": dict(model_type="qwen3", num_hidden_layers=2, num_attention_heads=4,
                  num_key_value_heads=2, head_dim=32, tie_word_embeddings=False, rope_theta=1e6),
    "qwen3_moe": dict(model_type="qwen3_moe", num_hidden_layers=2, num_attention_heads=4,
                      num_key_value_heads=2, head_dim=32, num_experts=6, num_experts_per_tok=2,
                      moe_intermediate_size=64, norm_topk_prob=True, decoder_sparse_step=1,
                      tie_word_embeddings=False, rope_theta=1e6),
    "gemma3": dict(model_type="gemma3_text", num_hidden_layers=3, num_attention_heads=4,
                   num_key_value_heads=2, head_dim=16, query_pre_attn_scalar=16, sliding_window=16,
                   layer_types=["sliding_attention", "sliding_attention", "full_attention"],
                   rope_parameters=GEMMA3_ROPE, tie_word_embeddings=True),
    "gemma4": dict(model_type="gemma4_text", num_hidden_layers=3, num_attention_heads=4,
                   num_key_value_heads=2, head_dim=16, global_head_dim=32,
                   num_global_key_value_heads=1, attention_k_eq_v=True, sliding_window=16,
                   layer_types=["sliding_attention", "sliding_attention", "full_attention"],
                   hidden_size_per_layer_input=0, num_kv_shared_layers=0,
                   vocab_size_per_layer_input=256, final_logit_softcapping=30.0,
                   rope_parameters=GEMMA4_ROPE, tie_word_embeddings=True),
    "gemma4_e": dict(model_type="gemma4_text", num_hidden_layers=5, num_attention_heads=4,
                     num_key_value_heads=2, head_dim=16, global_head_dim=32,
                     attention_k_eq_v=False, sliding_window=16,
                     # llama.cpp takes the keys and values of shared layers from the last two that
                     # have their own, and expects a sliding one before a full one there.
                     layer_types=["sliding_attention", "sliding_attention", "full_attention",
                                  "sliding_attention", "full_attention"],
                     hidden_size_per_layer_input=16, num_kv_shared_layers=2,
                     use_double_wide_mlp=True, vocab_size_per_layer_input=256,
                     final_logit_softcapping=30.0, rope_parameters=GEMMA4_ROPE,
                     tie_word_embeddings=True),
    "gemma4_moe": dict(model_type="gemma4_text", num_hidden_layers=3, num_attention_heads=4,
                       num_key_value_heads=2, head_dim=16, global_head_dim=32,
                       num_global_key_value_heads=1, attention_k_eq_v=True, sliding_window=16,
                       layer_types=["sliding_attention", "sliding_attention", "full_attention"],
                       hidden_size_per_layer_input=0, num_kv_shared_layers=0,
                       enable_moe_block=True, num_experts=6, top_k_experts=2,
                       moe_intermediate_size=64, vocab_size_per_layer_input=256,
                       final_logit_softcapping=30.0, rope_parameters=GEMMA4_ROPE,
                       tie_word_embeddings=True),
    "qwen3_5": dict(model_type="qwen3_5_text", num_hidden_layers=4, num_attention_heads=2,
                    num_key_value_heads=1, head_dim=32, linear_num_key_heads=2,
                    linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=16,
                    linear_conv_kernel_dim=4, tie_word_embeddings=False,
                    layer_types=["linear_attention"] * 3 + ["full_attention"],
                    rope_parameters={"rope_type": "default", "rope_theta": 1e6,
                                     "partial_rotary_factor": 0.25,
                                     "mrope_section": [2, 1, 1], "mrope_interleaved": True}),
}


def make(name, members, folder):
    members = dict(COMMON, **members)
    config = transformers.AutoConfig.for_model(members.pop("model_type"), **members)
    config._attn_implementation = "eager"
    torch.manual_seed(len(name) + 7)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for key, tensor in list(model.named_parameters()) + list(model.named_buffers()):
            if "rotary" in key or "inv_freq" in key or "embed_scale" in key:
                continue
            spread = 0.3 if tensor.ndim == 1 else 1.5 / tensor.shape[-1] ** 0.5
            centre = 1.0 if key.endswith("layer_scalar") or (
                tensor.ndim == 1 and tensor.mean() == 1.0) else 0.0
            tensor.copy_((centre + spread * torch.randn(tensor.shape)).to(torch.bfloat16))
        path = os.path.join(folder, name)
        model.to(torch.bfloat16).save_pretrained(path)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            path, dtype=torch.float32, attn_implementation="eager").eval()
        ids = torch.randint(3, 256, (1, 48))
        logits = model(ids).logits[0].float()
    save_file({"token_ids": ids[0].to(torch.int32), "logits": logits.contiguous()},
              path + ".expected.safetensors")
    extra = os.path.join(path, "generation_config.json")
    if os.path.exists(extra):
        os.remove(extra)
    print(name, sum(p.numel() for p in model.parameters()), "parameters, logits rms",
          float(logits.pow(2).mean().sqrt()))


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    torch.set_num_threads(1)
    for model_name in sys.argv[2:] or CONFIGS:
        make(model_name, CONFIGS[model_name], sys.argv[1])
