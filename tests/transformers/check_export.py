#!/usr/bin/env python3
"""Checks an exported model with Hugging Face transformers.

    python tests/transformers/check_export.py PATH_OF_LAMBERT RUN_OR_CHECKPOINT [TEXT ...]

Needs torch and transformers, which the project itself does not need. CI does not run this script, so run it by hand. It
exports the model to a temporary folder and checks that
- the class that the exported config names loads the model without missing, unexpected or mismatched weights. The decoder must
  be tied to the embeddings if and only if the config says so.
- BertTokenizerFast and AutoTokenizer load the tokenizer and produce the same tokens for each text, and as many [MASK] tokens as
  `lambert fill-mask`.
- the logits of the top tokens at each [MASK] differ from those of `lambert fill-mask` by at most 1e-4.
"""

import json
import subprocess
import sys
import tempfile

import torch
import transformers
from transformers import AutoConfig, AutoTokenizer, BertTokenizerFast

TOLERANCE = 1e-4
TOP = 20
TEXTS = ["the [MASK] visits the star .", "Every [MASK] that the kings see [MASK] the forest, and then she rests."]


def check_weights(folder):
    model_class = getattr(transformers, AutoConfig.from_pretrained(folder).architectures[0])
    model, loading = model_class.from_pretrained(folder, output_loading_info=True)
    for kind in ["missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"]:
        assert not loading[kind], f"{kind}: {loading[kind]}"
    assert type(model).__name__ in model.config.architectures, type(model)
    embeddings = model.get_input_embeddings().weight
    # The head of DeBERTa multiplies by the embeddings and has no decoder. A discriminator predicts no tokens.
    if not isinstance(model, (transformers.DebertaV2ForMaskedLM, transformers.ElectraForPreTraining)):
        tied = model.get_output_embeddings().weight.data_ptr() == embeddings.data_ptr()
        assert tied == model.config.tie_word_embeddings, f"the decoder is tied: {tied}"
    assert embeddings.dtype == torch.float32
    print(f"weights: {type(model).__name__} with {sum(p.numel() for p in model.parameters())} parameters, all of them loaded")
    return model.eval()


def check_tokenizer(folder):
    fast, auto = BertTokenizerFast.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    with open(f"{folder}/vocab.txt", encoding="utf-8") as file:
        pieces = file.read().split("\n")
    for name, piece in [("pad", "[PAD]"), ("unk", "[UNK]"), ("cls", "[CLS]"), ("sep", "[SEP]"), ("mask", "[MASK]")]:
        assert getattr(fast, f"{name}_token_id") == pieces.index(piece), name
    for text in TEXTS:
        assert fast(text)["input_ids"] == auto(text)["input_ids"], text
    print(f"tokenizer: {fast.vocab_size} pieces")
    return fast


def check_logits(model, tokenizer, program, run, text):
    answer = subprocess.run([program, "fill-mask", run, text, "--top", str(TOP), "--json"], check=True, capture_output=True)
    guesses = json.loads(answer.stdout)
    batch = tokenizer(text, return_tensors="pt")
    with torch.no_grad():
        output = model(**batch)
        logits = (output.logits if "logits" in output else output.prediction_logits)[0]
    masks = (batch["input_ids"][0] == tokenizer.mask_token_id).nonzero().flatten().tolist()
    assert len(masks) == len(guesses), f"{len(masks)} masks, {len(guesses)} answers: {text}"
    worst = 0.0
    for position, top in zip(masks, guesses):
        for guess in top:
            assert tokenizer.convert_ids_to_tokens(guess["id"]) == guess["piece"], guess
            worst = max(worst, abs(logits[position, guess["id"]].item() - guess["logit"]))
        best = logits[position].topk(len(top)).values.min().item()
        assert min(guess["logit"] for guess in top) >= best - TOLERANCE, "these are not the top pieces"
    assert worst <= TOLERANCE, f"logits differ by {worst:.2e}: {text}"
    print(f"logits: {len(masks) * TOP} differ by at most {worst:.1e}: {text}")


def main():
    program, run, *texts = sys.argv[1:]
    with tempfile.TemporaryDirectory() as place:
        folder = f"{place}/exported"
        subprocess.run([program, "export", run, "--output", folder], check=True)
        with open(f"{folder}/config.json", encoding="utf-8") as file:
            is_discriminator = json.load(file)["architectures"] == ["ElectraForPreTraining"]
        if is_discriminator:
            check_weights(folder)
            folder = f"{place}/generator"
            subprocess.run([program, "export", run, "--network", "generator", "--output", folder], check=True)
        model, tokenizer = check_weights(folder), check_tokenizer(folder)
    for text in texts or TEXTS:
        check_logits(model, tokenizer, program, run, text)


if __name__ == "__main__":
    main()
