"""Languages by their tags: their names, how they are written, which of them a recogniser knows."""

from __future__ import annotations

NAMES = {
    "ar": "Arabic",
    "bg": "Bulgarian",
    "bn": "Bengali",
    "ca": "Catalan",
    "cs": "Czech",
    "da": "Danish",
    "de": "German",
    "el": "Greek",
    "en": "English",
    "es": "Spanish",
    "et": "Estonian",
    "fa": "Persian",
    "fi": "Finnish",
    "fr": "French",
    "he": "Hebrew",
    "hi": "Hindi",
    "hr": "Croatian",
    "hu": "Hungarian",
    "id": "Indonesian",
    "it": "Italian",
    "ja": "Japanese",
    "ko": "Korean",
    "lt": "Lithuanian",
    "lv": "Latvian",
    "ms": "Malay",
    "nl": "Dutch",
    "no": "Norwegian",
    "pl": "Polish",
    "pt": "Portuguese",
    "ro": "Romanian",
    "ru": "Russian",
    "sk": "Slovak",
    "sl": "Slovenian",
    "sr": "Serbian",
    "sv": "Swedish",
    "sw": "Swahili",
    "ta": "Tamil",
    "th": "Thai",
    "tr": "Turkish",
    "uk": "Ukrainian",
    "ur": "Urdu",
    "vi": "Vietnamese",
    "zh": "Chinese",
}
"""English names by primary subtag."""

WITHOUT_SPACES = frozenset({"ja", "th", "zh"})
"""Languages that put no space between sentences."""


_WHISPER = """
    af am ar as az ba be bg bn bo br bs ca cs cy da de el en es et eu fa fi fo fr gl gu ha haw he hi hr
    ht hu hy id is it ja jw ka kk km kn ko la lb ln lo lt lv mg mi mk ml mn mr ms mt my ne nl nn no oc
    pa pl ps pt ro ru sa sd si sk sl sn so sq sr su sv sw ta te tg th tk tl tr tt uk ur uz vi yi yo zh
"""
WHISPER: frozenset[str] = frozenset(_WHISPER.split())
"""Languages that Whisper's multilingual models know, by the codes that they have for them."""


def primary(tag: str) -> str:
    """The language of a tag without its region or script."""
    return tag.partition("-")[0].lower()


def described(tag: str) -> str:
    """A tag in words: ``Portuguese (pt-BR)``; as it stands where its language has no name here."""
    name = NAMES.get(primary(tag))
    if name is None:
        return f"the language '{tag}'"
    return name if primary(tag) == tag.lower() else f"{name} ({tag})"
