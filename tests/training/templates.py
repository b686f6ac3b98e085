"""Small tokenizers with chat templates of the shapes that published models use.

Written for the tests, after the public description of each format: role header, content, end of
turn. The vocabulary is the built-in tokenizer's plus the format's own special tokens.
"""

from __future__ import annotations

from transformers import PreTrainedTokenizerFast

from steps.training.tiny_model import build_tokenizer

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
QWEN = (
    "{% if messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}{% endif %}" + CHATML
)
LLAMA = (
    "{{ '<|begin_of_text|>' }}{% for m in messages %}"
    "{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n' + m['content'] | trim"
    " + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
SHAPES = {
    "chatml": (CHATML, ("<|im_start|>", "<|im_end|>"), "<|im_end|>"),
    "qwen": (QWEN, ("<|im_start|>", "<|im_end|>", "<|endoftext|>"), "<|im_end|>"),
    "llama": (
        LLAMA,
        ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
        "<|eot_id|>",
    ),
    "tiny": ("", (), "<|end|>"),
}


def make_tokenizer(shape: str) -> tuple[PreTrainedTokenizerFast, str]:
    """The tokenizer of one shape, and its end-of-turn token."""
    template, special, end = SHAPES[shape]
    tokenizer = build_tokenizer()
    if template:
        tokenizer.add_special_tokens({"additional_special_tokens": list(special)})
        tokenizer.chat_template = template
        tokenizer.eos_token = "<|endoftext|>" if shape == "qwen" else end
    return tokenizer, end
