"""A model's card: what its folder says about templates, tokens and media. Loaded once, then only read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.kv.reason import Reason
from services.layout.families.family import Family
from services.layout.families.registry import UnusableFamily, find_family
from services.layout.folder import CardError, ModelFolder, read_folder
from services.layout.tokenise import Tokeniser

__all__ = ["CardError", "ModelCard"]

TEXT_VARIANT = "text"
"""Layout variant of a model without a known family: text only."""


@dataclass(frozen=True, slots=True)
class ModelCard:
    """One model's layout, from its folder.

    ``family`` lays out media; it is None when the family is unknown or the folder contradicts itself, and
    ``media_reason`` and ``media_detail`` say which. ``text_reason`` is set when even text can't be proven.
    """

    name: str
    folder: Path
    model_type: str
    tokenizer_file: Path
    template: str | None
    tool_template: str | None
    special_tokens: dict[str, str]
    max_model_len: int | None
    family: Family | None = None
    media_reason: Reason | None = None
    media_detail: str | None = None
    text_reason: Reason | None = None
    text_detail: str | None = None

    @property
    def variant(self) -> str:
        """Name of the layout, such as ``qwen3_vl``: what the workers' probes have to prove."""
        return TEXT_VARIANT if self.family is None else self.family.variant

    @classmethod
    def load(cls, folder: Path | str, name: str | None = None) -> ModelCard:
        """Read a checkpoint folder or a Hugging Face cache folder; ``name`` defaults to the folder's name.

        Raises CardError saying which file is missing or wrong.
        """
        given = Path(folder)
        found = read_folder(given)
        try:
            tokeniser = Tokeniser.load(found.tokenizer_file)
        except (ValueError, OSError) as error:
            raise CardError(str(error)) from None
        family, reason, detail = _family(found, tokeniser)
        text_detail = _added_tokens_disagree(found.tokenizer_config, tokeniser)
        text_reason = None if text_detail is None else Reason.TEMPLATE_MISMATCH
        if found.processor_template is None and found.tokenizer_template is None:
            text_reason, text_detail = Reason.TEMPLATE_MISSING, f"{found.path} has no chat template"
        return cls(
            name=name or given.name,
            folder=found.path,
            model_type=str(found.config.get("model_type", "")),
            tokenizer_file=found.tokenizer_file,
            template=found.processor_template or found.tokenizer_template,
            tool_template=found.tool_template or found.tokenizer_template or found.processor_template,
            special_tokens=_special_tokens(found.tokenizer_config),
            max_model_len=_max_model_len(found.config),
            family=family,
            media_reason=reason,
            media_detail=detail,
            text_reason=text_reason,
            text_detail=text_detail,
        )


def _family(folder: ModelFolder, tokeniser: Tokeniser) -> tuple[Family | None, Reason | None, str | None]:
    try:
        family = find_family(folder, tokeniser.token_id)
    except UnusableFamily as error:
        return None, Reason.UNSUPPORTED_MODEL, str(error)
    if family is None:
        kind = folder.config.get("model_type")
        return None, Reason.UNSUPPORTED_MODEL, f"no media layout is known for model_type {kind!r}"
    return family, None, None


def _special_tokens(tokenizer_config: dict[str, Any]) -> dict[str, str]:
    """The named special tokens a template may use, such as ``bos_token``."""
    names = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
    found: dict[str, str] = {}
    for name in names:
        value = tokenizer_config.get(name)
        if isinstance(value, dict):
            value = value.get("content")
        if isinstance(value, str):
            found[name] = value
    return found


def _added_tokens_disagree(tokenizer_config: dict[str, Any], tokeniser: Tokeniser) -> str | None:
    """An engine adds these tokens to the vocabulary: where they differ, text is tokenised in another way."""
    for token_id, token in (tokenizer_config.get("added_tokens_decoder") or {}).items():
        content = token.get("content") if isinstance(token, dict) else None
        if not isinstance(content, str) or str(tokeniser.token_id(content)) != str(token_id):
            return f"tokenizer_config.json adds {content!r} as {token_id}, tokenizer.json does not"
    for name in ("additional_special_tokens", "extra_special_tokens"):
        listed = tokenizer_config.get(name) or []
        for token in listed.values() if isinstance(listed, dict) else listed:
            content = token.get("content") if isinstance(token, dict) else token
            if not isinstance(content, str) or tokeniser.token_id(content) is None:
                return f"tokenizer_config.json names {content!r} in {name}, tokenizer.json does not know it"
    return None


def _max_model_len(config: dict[str, Any]) -> int | None:
    text = config.get("text_config") or config.get("llm_config") or {}
    value = config.get("max_position_embeddings", text.get("max_position_embeddings"))
    return value if isinstance(value, int) else None
