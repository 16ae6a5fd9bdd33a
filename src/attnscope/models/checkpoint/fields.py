"""Config fields that all model families share: those without effect, and those with one supported value."""

from __future__ import annotations

MAX_LAYERS = 100_000
"""The number of layers is limited before per-layer lists are built."""

CHANGES_NOTHING = (
    # the file itself, and training
    "_name_or_path", "_model_name_or_path", "_commit_hash", "architectures", "transformers_version", "model_type",
    "dtype", "torch_dtype", "initializer_range", "gradient_checkpointing", "use_cache", "output_attentions",
    "output_hidden_states", "return_dict", "torchscript", "use_bfloat16", "chunk_size_feed_forward",
    "attn_implementation", "_attn_implementation_autoset", "tokenizer_class", "transformers.js_config",
    "unsloth_version", "unsloth_fixed",
    # special tokens
    "bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id", "sep_token_id", "cls_token_id",
    "decoder_start_token_id",
    # task heads, which are not loaded
    "id2label", "label2id", "num_labels", "_num_labels", "problem_type", "finetuning_task", "task_specific_params",
    # generation settings of older versions
    "max_length", "min_length", "do_sample", "early_stopping", "num_beams", "num_beam_groups", "diversity_penalty",
    "temperature", "top_k", "top_p", "typical_p", "repetition_penalty", "length_penalty", "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size", "bad_words_ids", "num_return_sequences", "output_scores",
    "return_dict_in_generate", "forced_bos_token_id", "forced_eos_token_id", "remove_invalid_values",
    "exponential_decay_length_penalty", "suppress_tokens", "begin_suppress_tokens", "prefix",
)  # fmt: skip
"""Fields that do not change what a model computes."""

ONE_VALUE: dict[str, object] = {
    "is_decoder": False,
    "is_encoder_decoder": False,
    "add_cross_attention": False,
    "cross_attention_hidden_size": None,
    "pruned_heads": {},
    "tie_encoder_decoder": False,
}
"""Fields of which only one value is supported."""
