#!/usr/bin/env python3
"""Writes tests/data/pieces: small SentencePiece models and Unigram tokenizers, with the ids that the
sentencepiece and tokenizers libraries give.

usage: scripts/make_piece_models.py OUTPUT
needs sentencepiece 0.2 and tokenizers 0.23; trains on tests/data/eval.txt
"""

import io
import json
import os
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

# A character map: sequences of characters and what they become. One key begins another.
RULES = {
    "\ufb01": "fi", "\uff21": "A", "\u00a0": " ", "\u3000": " ", "\u200b": "", "\t": " ",
    "e\u0301": "\u00e9", "o\u0308": "\u00f6", "...": "\u2026", "..": "\u2025", "....": "4.",
    "\u2028": "  ",
}
MAPPED_TEXTS = [
    "\ufb01ne\u00a0\uff21\u200b", "cafe\u0301 coo\u0308perate e", "a. b.. c... d.... e..... f......",
    "\t tab\tbed\t", "\u3000\u3000x \u3000 y\u3000", "\u200b", " \u200b \u200bz", "\u2028a\u2028",
    "o\u0308\u0301\u0302", "\u2581\u2581", "x \u2581 ", "\u00a0", "\u200b ", "..\u200b.",
]


def texts():
    lines = (ROOT / "tests/data/eval.txt").read_text().split("\n")
    return TEXTS + [line for line in lines[::97] if line][:60] + ["\n".join(lines[:40])]


def train(out, name, rules=None, **options):
    options = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False, **options}
    table = pathlib.Path("rules.tsv")  # the model file holds the name
    if rules:
        spell = lambda text: " ".join(f"{ord(c):X}" for c in text)
        table.write_text("".join(f"{spell(a)}\t{spell(b)}\n" for a, b in rules.items()))
        options["normalization_rule_tsv"] = table.name
        del options["normalization_rule_name"]
    model = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter((ROOT / "tests/data/eval.txt").read_text().split("\n")),
        model_writer=model, num_threads=1, minloglevel=2, **options)
    table.unlink(missing_ok=True)
    (out / f"{name}.model").write_bytes(model.getvalue())
    sp = spm.SentencePieceProcessor(model_file=str(out / f"{name}.model"))
    cases = []
    for text in texts() + (MAPPED_TEXTS if rules else []):
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


# Texts around special and other added tokens, whose place decides where Metaspace puts its mark.
ADDED_TEXTS = [
    "<s>", "<s>Hello", "<s> Hello", " <s>Hello", "Hello<s>", "Hello <s> world", "Hello<s>world",
    "[INST] Hi there [/INST] Well", "[INST]Hi there[/INST]Well", "<s>[INST] Hi [/INST]", "[INST]",
    " [INST]", "[INST] ", "  [INST]  ", "a[INST] [/INST]b", "<wide>Hello", "Hello <wide> world",
    " <wide> ", "<norm>Hello", "a<norm>b", "a <norm> b", "<word>", "a<word>b", "a <word> b",
    "\u2581<s>\u2581Hello", "<s><s>", "<s> <s>", "xHello", "xxHello", "x", "x<s>Hello", "<s>xHello",
    "x x", "\u200bHello", "\u00a0 Hello", " \n", "\n Hello", "Hello\n<s>\n Hello", "<s", "INST]",
]


def metaspace_bpe(out):
    """A tokenizer.json in the manner of Mistral's third version, and its ids under every rule."""
    sp = spm.SentencePieceProcessor(model_file=str(out / "bpe.model"))
    pieces = [sp.id_to_piece(i) for i in range(sp.vocab_size())]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    merges = []
    for piece in sorted(pieces, key=lambda p: -sp.get_score(vocab[p])):
        halves = [(piece[:i], piece[i:]) for i in range(1, len(piece))]
        merges += [(a, b) for a, b in halves
                   if a in vocab and b in vocab and not sp.is_byte(vocab[piece])]
    space = "\u2581"
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True,
                                                byte_fallback=True))
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>", "[INST]", "[/INST]"])
    tokenizer.add_tokens([
        tokenizers.AddedToken("<wide>", lstrip=True, rstrip=True, normalized=False),
        tokenizers.AddedToken("<norm>", normalized=True),
        tokenizers.AddedToken("<word>", single_word=True, normalized=False)])
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", 1)])
    tokenizer.decoder = decoders.Sequence([
        decoders.Replace(space, " "), decoders.ByteFallback(), decoders.Fuse(),
        decoders.Strip(" ", 1, 0)])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(space, "first", False)
    tokenizer.save(str(out / "metaspace_bpe.json"), pretty=False)
    rules = []
    settings = [(scheme, split, None) for scheme in ("first", "never", "always")
                for split in (False, True)]
    settings += [("first", False, normalizer) for normalizer in (
        normalizers.Strip(), normalizers.Replace("x", ""), normalizers.Replace("x", "yy"),
        normalizers.NFC(), normalizers.Sequence([normalizers.Replace("x", ""),
                                                 normalizers.Prepend("z")]))]
    for scheme, split, normalizer in settings:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(space, scheme, split)
        if normalizer:
            tokenizer.normalizer = normalizer
        saved = json.loads(tokenizer.to_str())
        cases = []
        for text in TEXTS + ADDED_TEXTS:
            ids = tokenizer.encode(text).ids
            cases.append({"text": text, "ids": ids, "decoded": tokenizer.decode(ids)})
        rules.append({"normalizer": saved["normalizer"], "pre_tokenizer": saved["pre_tokenizer"],
                      "cases": cases})
    return {"file": "metaspace_bpe.json", "tokenizers": tokenizers.__version__, "rules": rules}


def main():
    out = pathlib.Path(sys.argv[1]).resolve()
    out.mkdir(parents=True, exist_ok=True)
    os.chdir(out)
    rows = [
        train(out, "bpe", vocab_size=1000, model_type="bpe", byte_fallback=True,
              character_coverage=0.998),
        train(out, "bpe_unknown", vocab_size=400, model_type="bpe", add_dummy_prefix=False,
              character_coverage=0.98),
        train(out, "unigram", vocab_size=950, model_type="unigram", byte_fallback=True,
              character_coverage=0.998),
        train(out, "unigram_unknown", vocab_size=400, model_type="unigram",
              character_coverage=0.98),
        train(out, "bpe_mapped", RULES, vocab_size=1000, model_type="bpe", byte_fallback=True,
              character_coverage=0.998),
        train(out, "unigram_mapped", RULES, vocab_size=400, model_type="unigram",
              remove_extra_whitespaces=True, character_coverage=0.98),
        train(out, "bpe_trimmed", vocab_size=400, model_type="bpe", add_dummy_prefix=False,
              remove_extra_whitespaces=True, character_coverage=0.98),
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
    (out / "metaspace_bpe_cases.json").write_text(
        json.dumps(metaspace_bpe(out), separators=(",", ":")).replace('{"text"', '\n{"text"') + "\n")


if __name__ == "__main__":
    main()
