"""What configurations of Hugging Face's `transformers` call things, and what their model types imply."""

from __future__ import annotations

NESTED = ("text_config", "language_config", "llm_config", "thinker_config", "decoder_config")
"""Sections of multimodal models that hold the language model."""
NAMES: dict[str, tuple[str, ...]] = {
    "num_layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model", "n_embed", "dim"),
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "kv_heads": (
        "num_key_value_heads",
        "num_kv_heads",
        "n_head_kv",
        "n_kv_heads",
        "kv_n_heads",
        "multi_query_group_num",
    ),
    "ffn": ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "hidden_dim", "d_ff"),
    "experts": ("num_local_experts", "n_routed_experts", "num_experts", "moe_num_experts"),
    "expert_ffn": ("moe_intermediate_size", "moe_ffn_hidden_size", "expert_ffn_hidden_size"),
    "shared": ("n_shared_experts", "num_shared_experts", "num_shared_expert", "moe_num_shared_experts"),
    "chosen": ("num_experts_per_tok", "experts_per_token", "num_experts_per_token", "moe_top_k", "moe_topk", "moe_k"),
    "groups": ("n_group",),
    "chosen_groups": ("topk_group",),
    "expert_step": ("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_freq", "moe_layer_interval"),
    "length": ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length", "max_sequence_length"),
    "activation": ("hidden_act", "hidden_activation", "activation_function", "ffn_act_fn", "activation"),
}
DROPOUTS = (
    "resid_pdrop", "attn_pdrop", "hidden_dropout_prob", "hidden_dropout", "attention_dropout", "resid_dropout",
    "attention_probs_dropout_prob", "dropout",
)  # fmt: skip
"""Rates of dropout; a model that states none has none."""
GATED = frozenset({"silu", "swish", "swiglu", "geglu", "gelu_pytorch_tanh", "gelu_new", "gelu", "relu"})
"""Activations that gated MLPs have; `PLAIN_KINDS` have two matrices with every activation."""
PLAIN_KINDS = frozenset(
    {
        "gpt2", "gpt_neo", "gpt_neox", "gpt_neox_japanese", "gptj", "codegen", "gpt_bigcode", "starcoder2", "bloom",
        "opt", "xglm", "falcon", "refinedweb", "refinedwebmodel", "mpt", "phi", "persimmon", "nemotron", "bert",
        "roberta", "xlm-roberta", "albert", "distilbert", "electra", "camembert", "deberta", "deberta-v2", "openai-gpt",
        "biogpt", "ernie", "esm", "megatron-bert", "arcee", "fuyu", "mpnet",
    }
)  # fmt: skip
LEARNED_KINDS = frozenset(
    {
        "gpt2", "gpt_neo", "gpt_bigcode", "opt", "bert", "roberta", "xlm-roberta", "albert", "distilbert", "electra",
        "camembert", "openai-gpt", "biogpt", "ernie", "megatron-bert", "mpnet",
    }
)  # fmt: skip
BIDIRECTIONAL_KINDS = frozenset(
    {
        "bert", "roberta", "xlm-roberta", "albert", "distilbert", "electra", "camembert", "deberta", "deberta-v2",
        "ernie", "esm", "megatron-bert", "modernbert", "nomic_bert", "mpnet",
    }
)  # fmt: skip
TIED_KINDS = frozenset(
    {
        "", "gpt2", "gpt_neo", "gpt_bigcode", "starcoder2", "bloom", "opt", "xglm", "falcon", "mpt", "bert", "roberta",
        "xlm-roberta", "albert", "distilbert", "electra", "camembert", "deberta", "deberta-v2", "modernbert", "gemma",
        "gemma2", "gemma3", "gemma3_text", "cohere", "cohere2", "openai-gpt", "ernie", "esm", "megatron-bert", "mpnet",
    }
)  # fmt: skip
"""Kinds whose output layer is the token embedding unless the configuration states otherwise."""
_TWO_STACKS = "it has an encoder and a decoder"
_NO_ATTENTION = "most of its layers have no attention"
UNSUPPORTED_KINDS = {
    "t5": _TWO_STACKS, "mt5": _TWO_STACKS, "umt5": _TWO_STACKS, "bart": _TWO_STACKS, "mbart": _TWO_STACKS,
    "pegasus": _TWO_STACKS, "whisper": _TWO_STACKS, "m2m_100": _TWO_STACKS, "switch_transformers": _TWO_STACKS,
    "mamba": _NO_ATTENTION, "mamba2": _NO_ATTENTION, "falcon_mamba": _NO_ATTENTION, "rwkv": _NO_ATTENTION,
    "rwkv7": _NO_ATTENTION, "jamba": _NO_ATTENTION, "bamba": _NO_ATTENTION, "zamba": _NO_ATTENTION,
    "zamba2": _NO_ATTENTION, "nemotron_h": _NO_ATTENTION, "recurrent_gemma": _NO_ATTENTION, "lfm2": _NO_ATTENTION,
}  # fmt: skip
WITHOUT_EFFECT = frozenset(
    {
        "_name_or_path", "architectures", "auto_map", "attention_bias", "bias", "mlp_bias", "attn_bias", "no_bias",
        "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "cls_token_id", "unk_token_id", "id2label",
        "label2id", "torch_dtype", "dtype", "transformers_version", "initializer_range", "initializer_factor",
        "initializer_cutoff_factor", "layer_norm_eps", "layer_norm_epsilon", "rms_norm_eps", "norm_eps", "norm_epsilon",
        "use_cache", "use_return_dict", "return_dict", "rope_theta", "rope_scaling", "rope_parameters", "rotary_pct",
        "rotary_emb_base", "rotary_dim", "partial_rotary_factor", "rope_local_base_freq", "rope_interleave",
        "rope_interleaved", "rope_type", "alibi", "task_specific_params", "summary_activation",
        "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj", "scale_attn_weights",
        "scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn", "router_aux_loss_coef", "router_jitter_noise",
        "router_z_loss_coef", "output_router_logits", "norm_topk_prob", "topk_method",
        "scoring_func", "scoring_function", "routed_scaling_factor", "aux_loss_alpha", "seq_aux", "ep_size",
        "pretraining_tp", "quantization_config", "final_logit_softcapping", "attn_logit_softcapping",
        "query_pre_attn_scalar", "swiglu_limit", "use_qk_norm", "qk_layernorm", "use_parallel_residual",
        "parallel_attn", "type_vocab_size", "position_embedding_type", "classifier_dropout", "gradient_checkpointing",
        "use_bfloat16", "embd_pdrop", "embedding_dropout", "do_layer_norm_before", "word_embed_proj_dim",
        "enable_bias", "layer_norm_elementwise_affine", "init_std", "emb_pdrop", "init_device", "learned_pos_emb",
        "logit_scale", "verbose", "prefix", "tokenizer_class", "problem_type", "_attn_implementation_autoset",
        "initial_context_length", "use_mrope", "vision_start_token_id", "vision_end_token_id", "image_token_id",
        "video_token_id", "vision_token_id", "cache_implementation", "apply_residual_connection_post_layernorm",
        "masked_softmax_fusion", "slow_but_exact", "offset_alibi", "directionality",
        "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers", "pooler_size_per_head", "pooler_type",
        "max_window_layers", "sliding_window", "sliding_window_pattern", "original_max_position_embeddings",
        "residual_multiplier", "logits_scaling", "embedding_multiplier", "attention_multiplier", "clip_qkv",
        "vision_config", "audio_config",
        "add_cross_attention", "chunk_size_feed_forward", "attn_pdrop", "attn_impl", "softmax_scale", "qk_ln",
        "moe_loss_weight", "moe_jitter_eps", "moe_normalize_expert_weights", "uniform_expert_assignment",
        "intermediate_size", "head_dim", "qk_head_dim", "activation_function", "layer_types", "num_key_value_heads",
        "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "max_position_embeddings", "n_positions", "n_ctx",
    }
)  # fmt: skip
"""Fields that change neither sizes nor work, or that other fields restate."""
