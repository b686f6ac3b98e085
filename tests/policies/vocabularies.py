"""Small tokenizers with the traits of published ones, trained on the spot.

`qwen` and `llama3` split text as their families do and join bytes to pieces; `<think>` is an
ordinary added token of the first and a special one of the second. `smollm` takes digits one by
one. `llama2` has pieces of characters with `▁` for a blank, and a token for each byte besides.
Each also has `[INST]`, a special token that doesn't look like a tag.
"""

from __future__ import annotations

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from tokenizers.normalizers import Prepend, Replace, Sequence
from transformers import PreTrainedTokenizerFast

from steps.training.tiny_model import build_tokenizer
from steps.training.tiny_tokenizer import ACTIONS, COLUMN_PARTS, ROW_PARTS, TAGS

TEXTS = [
    "I see the player at (1,2), so I go up and then left.</observation> It is in a hole.",
    "<think><observation>Player (P) is at (0,3); goal (G) is at (3,3).</observation>",
    "Right || Down</answer> <answer>Left || Up</answer> where the separator is ||",
    "a √ b → c, 12345 67 and → √ √ once more",
] * 4
SPLIT = r"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+"
END = "<|im_end|>"
CHAT = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIAL = ("<unk>", "<|endoftext|>", "<|im_start|>", END, "[INST]")
KINDS = ("tiny", "qwen", "llama3", "smollm", "llama2")


def make_vocabulary(kind: str) -> PreTrainedTokenizerFast:
    """A tokenizer of this kind with ChatML turns (the built-in one with its own).

    The built-in one lacks the words of single games, lest random weights change with them.
    """
    if kind == "tiny":
        return build_tokenizer((*TAGS, *ACTIONS, *ROW_PARTS, *COLUMN_PARTS, " || "))
    inner = _characters() if kind == "llama2" else _bytes(by_digit=kind == "smollm")
    inner.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    if kind in ("qwen", "llama3"):
        thought = [AddedToken(tag, special=kind == "llama3") for tag in ("<think>", "</think>")]
        (inner.add_special_tokens if kind == "llama3" else inner.add_tokens)(thought)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token="<|endoftext|>",
        eos_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )
    fast.chat_template = CHAT
    return fast


def _bytes(*, by_digit: bool) -> Tokenizer:
    inner = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(SPLIT), behavior="isolated")
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    digits = [pre_tokenizers.Digits(individual_digits=True)] if by_digit else []
    inner.pre_tokenizer = pre_tokenizers.Sequence([split, *digits, level])
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(TEXTS, trainer)
    return inner


def _characters() -> Tokenizer:
    codes = [f"<0x{byte:02X}>" for byte in range(256)]
    letters = sorted(set("".join(TEXTS).replace(" ", "▁")))
    pieces = {token: i for i, token in enumerate([*SPECIAL[:1], *codes, *letters, "▁i", "▁is"])}
    merges = [("▁", "i"), ("▁i", "s")]
    inner = Tokenizer(models.BPE(pieces, merges, unk_token="<unk>", byte_fallback=True))
    inner.normalizer = Sequence([Prepend("▁"), Replace(" ", "▁")])
    inner.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return inner
