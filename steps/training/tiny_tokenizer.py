"""The words of the built-in model's tokenizer, and what a chat is in them; loads no torch.

Byte-level, hence reversible for every text, plus whole tokens for what the games write often: tags,
actions, coordinates' halves (`(1,` and `2)`), the phrases between them. Grid symbols are single
bytes already, `√` gets a token.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from steps.agent.records import Message

PAD, SYSTEM, USER, ASSISTANT, END = "<|pad|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"
SPECIAL_TOKENS = (PAD, SYSTEM, USER, ASSISTANT, END)

TAGS = tuple(
    f"<{slash}{name}>"
    for name in ("think", "observation", "prediction", "answer")
    for slash in ("", "/")
)
ACTIONS = ("Up", "Down", "Left", "Right")
ROW_PARTS = tuple(f"({row}," for row in range(10))
COLUMN_PARTS = tuple(f"{column})" for column in range(10))
PHRASES = (
    " || ",
    "√",
    "Player (P) is at ",
    "Player (X) is at ",
    "Player (√) is at ",
    "Player (S) is at ",
    ", in a hole",
    ", on the goal",
    ", on a target",
    "; goal (G) is at ",
    "; hole (O) is at ",
    "; holes (O) are at ",
    "; box (X) is at ",
    "; boxes (X) are at ",
    "; box on target (√) is at ",
    "; boxes on targets (√) are at ",
    "; target (O) is at ",
    "; targets (O) are at ",
    "Empty position to be filled is at ",
    "Empty positions to be filled are at ",
    ", ",
)
WORDS = TAGS + ACTIONS + ROW_PARTS + COLUMN_PARTS + PHRASES


def bare_tokenizer(words: Iterable[str] = WORDS) -> Tokenizer:
    """Bytes, the special tokens and `words`."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: index for index, character in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS]
    )
    tokenizer.add_tokens([AddedToken(word, normalized=False) for word in words])
    return tokenizer


def prompt_text(chat: Sequence[Message]) -> str:
    """A chat as the model's template writes it, with the generation prompt."""
    written = (f"<|{message.role}|>{message.content}{END}" for message in chat)
    return "".join(written) + ASSISTANT
