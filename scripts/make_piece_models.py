#!/usr/bin/env python3
"""Writes tests/data/pieces: small SentencePiece models and Unigram tokenizers, with the ids that the
sentencepiece and tokenizers libraries give.

usage: scripts/make_piece_models.py OUTPUT
needs sentencepiece 0.2 and tokenizers 0.23; trains on tests/data/eval.txt
"""

import json
import pathlib
import sys

import sentencepiece as spm
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

ROOT = pathlib.Path(__file__).resolve().parent.parent
TEXTS = [
    "", " ", "Hello", " Hello", "  Hello", "   Hello", "    Hello", "Hello world", "Hello  world ",
    "trail ", "The quick brown fox jumps over the lazy dog.", "a\nb\n\nc\td", "\n", "\n\n\n",
    "Gr\u00fc\u00dfe \u4f60\u597d \U0001f999.cpp", "\u56ee", "\u2581a\u2581 b", "12345 67.8e9",
    "x" * 70, "ab" * 40, " " * 40, "e\u0301\u00e9", "\u0000\u0001", "def f(x):\n    return x+1\n",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466", "don't can't I'll", "NumPy/SciPy",
]


def texts():
    lines = (ROOT / "tests/data/eval.txt").read_text().split("\n")
    return TEXTS + [line for line in lines[::97] if line][:60] + ["\n".join(lines[:40])]


def train(out, name, **options):
    spm.SentencePieceTrainer.train(
        input=str(ROOT / "tests/data/eval.txt"), model_prefix=str(out / name),
        normalization_rule_name="identity", remove_extra_whitespaces=False, num_threads=1,
        minloglevel=2, **options)
    (out / f"{name}.vocab").unlink()
    sp = spm.SentencePieceProcessor(model_file=str(out / f"{name}.model"))
    cases = []
    for text in texts():
        # The library stops at a zero byte of the normalized text in no version; it is plain text.
        ids = sp.encode(text)
        cases.append({"text": text, "ids": ids, "decoded": sp.decode(ids)})
    return {"file": f"{name}.model", "bos": sp.bos_id(), "cases": cases}


def unigram(out, name, model, pre_tokenizer, decoder, normalizer=None):
    tokenizer = tokenizers.Tokenizer(model)
    if pre_tokenizer:
        tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.decoder = decoder
    tokenizer.save(str(out / f"{name}.json"), pretty=False)
    cases = []
    for text in texts():
        ids = tokenizer.encode(text).ids
        cases.append({"text": text, "ids": ids, "decoded": tokenizer.decode(ids)})
    return {"file": f"{name}.json", "cases": cases}


def main():
    out = pathlib.Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    rows = [
        train(out, "bpe", vocab_size=1000, model_type="bpe", byte_fallback=True,
              character_coverage=0.998),
        train(out, "bpe_unknown", vocab_size=400, model_type="bpe", add_dummy_prefix=False,
              character_coverage=0.98),
        train(out, "unigram", vocab_size=950, model_type="unigram", byte_fallback=True,
              character_coverage=0.998),
        train(out, "unigram_unknown", vocab_size=400, model_type="unigram",
              character_coverage=0.98),
    ]
    sp = spm.SentencePieceProcessor(model_file=str(out / "unigram_unknown.model"))
    vocab = [(sp.id_to_piece(i), sp.get_score(i)) for i in range(sp.vocab_size())]
    space = "\u2581"
    rows += [
        unigram(out, "metaspace", models.Unigram(vocab, 0, False),
                pre_tokenizers.Metaspace(space, "always", True), decoders.Metaspace(space, "always")),
        unigram(out, "metaspace_first", models.Unigram(vocab, 0, False),
                pre_tokenizers.Metaspace(space, "first", False), decoders.Metaspace(space, "first")),
        unigram(out, "metaspace_never", models.Unigram(vocab, 0, False),
                pre_tokenizers.Metaspace(space, "never", True), decoders.Metaspace(space, "never"),
                normalizers.NFC()),
    ]
    bytes_vocab = vocab + [(f"<0x{b:02X}>", 0.0) for b in range(256)]
    rows.append(unigram(out, "unigram_bytes", models.Unigram(bytes_vocab, 0, True), None,
                        decoders.Sequence([decoders.Replace(space, " "), decoders.ByteFallback(),
                                           decoders.Fuse()]), normalizers.Replace(" ", space)))
    result = {"sentencepiece": spm.__version__, "tokenizers": tokenizers.__version__,
              "models": rows}
    (out / "cases.json").write_text(json.dumps(result, indent=0) + "\n")


if __name__ == "__main__":
    main()
