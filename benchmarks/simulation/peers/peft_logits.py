"""Logits of Hugging Face's models with adapters of PEFT, for the tests of `models/layers/lora.py`.

Weights are drawn from each parameter's name, so that both sides draw the same ones. To write the committed file anew:

    PYTHON=benchmarks/simulation/peers/.venv/bin/python
    $PYTHON -m benchmarks.simulation.peers.peft_logits tests/models/lora_logits.json
"""

import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.simulation.peers.decoder_logits import INPUTS, MODELS, draw, sizes

RANK, ALPHA = 3, 7.5
ADAPTED = {
    "released": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    "gemma3": ["q_proj", "down_proj"],
}
"""Which modules of which models of `decoder_logits` have adapters."""


def main() -> None:
    """Compute them in float32 and write them, with the names of PEFT, to the file that the command line names."""
    import peft
    import torch
    import transformers

    found: dict[str, Any] = {"peft": peft.__version__, "transformers": transformers.__version__, "models": {}}
    for name, modules in ADAPTED.items():
        model_type, fields = MODELS[name]
        config = transformers.AutoConfig.for_model(model_type, **sizes(model_type) | fields)
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
        wanted = peft.LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=modules, task_type="CAUSAL_LM")
        with torch.no_grad():
            for parameter_name, parameter in model.named_parameters():
                parameter.copy_(torch.from_numpy(draw(parameter_name, tuple(parameter.shape))))
            adapted = peft.get_peft_model(model, wanted).eval()
            saved = peft.get_peft_model_state_dict(adapted)
            drawn = {key: torch.from_numpy(draw(key, tuple(value.shape))) for key, value in saved.items()}
            peft.set_peft_model_state_dict(adapted, drawn)
            logits = adapted(input_ids=torch.from_numpy(INPUTS), use_cache=False).logits
        found["models"][name] = {
            "config": json.loads(config.to_json_string(use_diff=False)),
            "tensors": {key: list(value.shape) for key, value in sorted(saved.items())},
            "logits": [[[float(f"{value:.6g}") for value in row] for row in rows] for rows in logits.tolist()],
        }
    Path(sys.argv[1]).write_text(json.dumps(found) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
