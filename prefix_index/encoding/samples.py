"""Texts on which a fast tokenizer has to agree with the reference before it is used: where implementations are known
to differ."""

from __future__ import annotations

from typing import Final

SAMPLES: Final = (
    "",
    " ",
    "Hello, world!",
    "  two leading, two trailing  ",
    "tabs\tand\t\tmore\r\nlines\n\n\n   \n\t\n end",
    "\u00a0no-break\u2003em\u3000ideographic\u200bzero width\ufeff",
    "I'm, you'RE, they'Ll; don't 'quoted' \u2019typographic\u2019",
    "1 12 123 1234 12345 3.14159 1e-9 0x1F \u0661\u0662\u0663 \u00bd \u2167",
    "def f(x: int) -> int:\n    return x ** 2  # comment\n\n\nclass A:\n\tpass\n",
    '{"name": "value", "list": [1, 2.5, null, true], "nested": {"a": "\\u00e9\\n"}}',
    "<div class='a'>&amp;</div> <!-- c --> https://example.org/?q=1&r=%20#x",
    "SELECT * FROM t WHERE a<>b AND c!=d;--\n$HOME/.x && rm -rf ./*|grep -E '^[a-z]+$'",
    "你好，世界。東京は日本の首都です。한국어 문장",
    "Привет мир Ελληνικά שלום مرحبا สวัสดี नमस्ते",
    "🙂👍🏽 👨\u200d👩\u200d👧\u200d👦 🇩🇪 ❤\ufe0f",
    "e\u0301 vs \u00e9; A\u030a vs \u00c5 vs \u212b; \ufb01 \u0132 \u1e9b\u0323",
    "\u0130stanbul \u0131 \u00df \u1e9e \u03a3\u03c2 \u01c5",
    "\u202eright to left\u202c a\u0300\u0316\u0301\u0327\u0302 \u0489\u0488",
    "\0\x01\x1b[31mred\x1b[0m\x7f\x80\x9f\ufffd\ufffe\uffff\U0010ffff",
    "\U00020000\U0001d54f\U0001f0a1\U000e0041\ue000",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "TWFuIGlzIGRpc3Rpbmd1aXNoZWQsIG5vdCBvbmx5IGJ5IGhpcyByZWFzb24=",
    "================================\n--------------------------------\n" + " " * 97 + "\n" * 33,
    "CamelCaseIdentifier snake_case_identifier SCREAMING_CASE kebab-case x1y2z3",
)


def with_specials(specials: list[str]) -> list[str]:
    """The samples, and the special tokens of a vocabulary in the neighbourhoods where splitting them goes wrong."""
    texts = list(SAMPLES)
    for special in specials[:64]:
        texts += [special, f"a{special}b", f"a {special} b", f"\n{special}\n", f"{special}{special}", special[:-1]]
    if specials:
        texts.append(specials[0].join(SAMPLES))
    return texts
