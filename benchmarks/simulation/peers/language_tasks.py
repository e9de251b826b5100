"""What lm-evaluation-harness finds of Hugging Face's VaultGemma on small tasks, for the tests of `fedlm evaluate`.

The model's weights are drawn from each parameter's name and the tasks are written below, so that both sides have the
same ones. To write the committed file anew, in an environment with the versions that it names:

    python -m pip install 'lm_eval[hf]' transformers==5.23.0
    python -m benchmarks.simulation.peers.language_tasks \
        tests/simulations/evaluation/language_tasks/harness_scores.json
"""

import json
import string
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.simulation.peers.decoder_logits import draw

_MERGES = [("t", "h"), ("th", "e"), ("\u2581", "the"), ("\u2581", "a"), ("\u2581", "s"), ("e", "n")]
_TOKENS = ["<pad>", "<eos>", "<bos>", "<unk>", "\u2581", *string.ascii_letters, *":?.,\n", *map("".join, _MERGES)]
_SIZES: dict[str, Any] = {
    "model_type": "vaultgemma",
    "vocab_size": len(_TOKENS),
    "hidden_size": 12,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "max_position_embeddings": 64,
    "query_pre_attn_scalar": 6,
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "layer_types": ["full_attention", "full_attention"],
    "sliding_window": 32,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
    "tie_word_embeddings": True,
    "bos_token_id": 2,
    "eos_token_id": 1,
    "pad_token_id": 0,
}

_SOLVED = [
    {"question": "what do cats chase", "choices": ["mice", "the moon"], "label": 0, "answers": ["mice"]},
    {"question": "where does the sun set", "choices": ["east", "west"], "label": 1, "answers": ["west", "the west"]},
    {"question": "who bakes bread", "choices": ["a baker", "a sailor", "a tree"], "label": 0, "answers": ["a baker"]},
]
_QUESTIONS = [
    {"question": "what do sheep eat", "choices": ["grass", "the sea"], "label": 0, "answers": ["grass"]},
    {"question": "what is the then", "choices": ["a then", "then", "the hen"], "label": 2, "answers": [":::::HOO,www"]},
    {"question": "Is snow white", "choices": ["no", "yes"], "label": 1, "answers": ["yes", "it is"]},
    {"question": "how many legs has an ant", "choices": ["six", "seven"], "label": 0, "answers": ["six"]},
    {"question": "a\u00df", "choices": ["\u00df", "the \u00df", "s"], "label": 1, "answers": ["\u00df"]},
]
_ENDINGS = [
    {"question": "they saw t", "choices": ["hens sat", "he sea", "wo"], "label": 0, "answers": ["the sea"]},
    {"question": "this and t", "choices": ["hat", "hem so", "o"], "label": 0, "answers": ["that"]},
    # The first is what greedy decoding gives.
    {"question": "the hen", "choices": ["enen", "s", " sat"], "label": 0, "answers": ["hens"]},
]
_TEXTS = [
    {"text": "the hen sat."},
    {"text": "Then the seven sheep ate the grass, and the ants ate all that was left of it."},
]

_SPLITS = {"training_split": "train", "test_split": "test"}
_ACCURACY = [{"metric": name, "aggregation": "mean", "higher_is_better": True} for name in ("acc", "acc_norm")]
_CHOICE: dict[str, Any] = {
    "output_type": "multiple_choice",
    "doc_to_text": "Question: {{question}}?\nAnswer:",
    "doc_to_choice": "{{choices}}",
    "doc_to_target": "label",
    "metric_list": _ACCURACY,
    **_SPLITS,
}
_STRIPPED = [{"function": "remove_whitespace"}, {"function": "take_first"}]
_EXACT = {"metric": "exact_match", "aggregation": "mean", "higher_is_better": True, "ignore_case": True}
TASKS: dict[str, dict[str, Any]] = {
    "tiny_choice": _CHOICE | {"test": _QUESTIONS},
    # Longer than the model takes.
    "tiny_few_shot": _CHOICE | {"test": _QUESTIONS, "num_fewshot": 2},
    # The context ends with a space, which is the continuation's.
    "tiny_spaces": _CHOICE | {"test": _QUESTIONS, "doc_to_text": "{{question}}: ", "target_delimiter": ""},
    # Tokens go across the end of the context.
    "tiny_endings": _CHOICE | {"test": _ENDINGS, "doc_to_text": "{{question}}", "target_delimiter": ""},
    # No context at all.
    "tiny_alone": _CHOICE | {"test": _QUESTIONS, "doc_to_text": ""},
    "tiny_answers": {
        "output_type": "generate_until",
        "doc_to_text": "{{question}}?\n",
        "doc_to_target": "{{answers}}",
        "generation_kwargs": {"until": ["\n", "s"], "max_gen_toks": 12, "do_sample": False},
        "filter_list": [
            {"name": "stripped", "filter": [{"function": "remove_whitespace"}, {"function": "take_first"}]}
        ],
        "metric_list": [_EXACT],
        "num_fewshot": 2,
        "test": _QUESTIONS,
        **_SPLITS,
    },
    "tiny_text": {
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "{{text}}",
        "metric_list": [{"metric": "bits_per_byte", "aggregation": "bits_per_byte", "higher_is_better": False}],
        "test": _TEXTS,
        "test_split": "test",
    },
}
"""By name: what its YAML has, apart from where its data lie, and its documents."""


def write_tasks(folder: Path) -> None:
    """Write the tasks as the harness reads them: a file of YAML each, and their data as JSON Lines."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, fields in TASKS.items():
        splits = ({"train": _SOLVED} if "training_split" in fields else {}) | {"test": fields["test"]}
        files = {split: str(folder / f"{name}_{split}.jsonl") for split in splits}
        for split, documents in splits.items():
            Path(files[split]).write_text("".join(json.dumps(document) + "\n" for document in documents))
        yaml = {key: value for key, value in fields.items() if key != "test"}
        data = {"dataset_path": "json", "dataset_kwargs": {"data_files": files}}
        # JSON is YAML too.
        yaml |= {"task": name, **data, "metadata": {"version": 1.0}}
        (folder / f"{name}.yaml").write_text(json.dumps(yaml, indent=1))


def write_tokenizer(folder: Path) -> None:
    """Write a tokenizer.json of Gemma's kind: BPE over characters, spaces as U+2581, BOS in front."""
    import tokenizers
    from tokenizers import decoders, models, normalizers, processors

    ids = {token: id_ for id_, token in enumerate(_TOKENS)}
    made = tokenizers.Tokenizer(models.BPE(ids, _MERGES, unk_token="<unk>", fuse_unk=True))
    made.normalizer = normalizers.Replace(" ", "\u2581")
    made.decoder = decoders.Replace("\u2581", " ")
    made.post_processor = processors.TemplateProcessing("<bos> $A", "<bos> $A <bos> $B", [("<bos>", ids["<bos>"])])
    made.add_special_tokens(_TOKENS[:4])
    made.save(str(folder / "tokenizer.json"))


def main() -> None:
    """Score them with the harness's own model and write what it finds to the file that the command line names."""
    import lm_eval
    import torch
    import transformers
    from lm_eval.tasks import TaskManager

    with tempfile.TemporaryDirectory() as place:
        folder, tasks = Path(place) / "model", Path(place) / "tasks"
        config = transformers.AutoConfig.for_model(**_SIZES)
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(torch.from_numpy(draw(name, tuple(parameter.shape))))
        model.save_pretrained(folder)
        write_tokenizer(folder)
        record = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<bos>", "eos_token": "<eos>"}
        record |= {"pad_token": "<pad>", "unk_token": "<unk>"}
        (folder / "tokenizer_config.json").write_text(json.dumps(record))
        write_tasks(tasks)
        manager = TaskManager(include_path=str(tasks), include_defaults=False)
        found: dict[str, Any] = {
            "lm_eval": lm_eval.__version__,
            "transformers": transformers.__version__,
            "config": json.loads(config.to_json_string(use_diff=False)),
            "tasks": {},
        }
        # The harness would score BOS as the first token of a text that it scores as a whole.
        for names, settings in (([*TASKS][:-1], {}), ([*TASKS][-1:], {"add_bos_token": False})):
            arguments = {"pretrained": str(folder), "dtype": "float32", "device": "cpu", "batch_size": 3} | settings
            scored = lm_eval.simple_evaluate("hf", arguments, tasks=names, task_manager=manager)
            for name in names:
                found["tasks"][name] = {
                    "metrics": {key: value for key, value in scored["results"][name].items() if "," in key},
                    "responses": [sample["resps"] for sample in scored["samples"][name]],
                }
    Path(sys.argv[1]).write_text(json.dumps(found) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
