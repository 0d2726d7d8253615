"""Writes data/golden/chat_templates.json: the templates of data/templates rendered by transformers.

    pip install transformers
    python tests/golden/chat_template_goldens.py

Not a part of the suite; run it again when a template or a case is added.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import transformers
from transformers.utils.chat_template_utils import _compile_jinja_template

DATA = Path(__file__).resolve().parents[1] / "data"
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string", "description": '<b>Ort</b> & "Land" (z. B. Köln)'}}}
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "it's", "parameters": PARAMETERS}}]
CALL = {"function": {"name": "weather", "arguments": {"city": "Köln", "days": 2}}}

CASES: list[dict[str, Any]] = [
    {"messages": ["user:Hello"]},
    {"messages": ["system:Be kind.", "user:Hello"]},
    {"messages": ["user:  Hi \n", "assistant: Yes?\n", "user:1 < 2 & 'x' > \"y\""]},
    {"messages": ["user:a", "assistant:b"], "add_generation_prompt": False},
    {"messages": ["user:a", "assistant:<think>\nhm\n</think>\n\nb", "comment:no", "user:c"]},
    {"messages": ["user:w?", {"role": "assistant", "content": None, "tool_calls": [CALL]}, "tool:20°"], "tools": TOOLS},
    {"messages": ["user:a"], "enable_thinking": False},
    {"messages": ["user:a", {"role": "user", "name": "Bob", "content": "b"}], "show_date": True, "count_turns": True},
    {"messages": ["user:a", "user:b"]},
    {"messages": []},
]


def main() -> None:
    golden = []
    for path in sorted((DATA / "templates").glob("*.jinja")):
        template = _compile_jinja_template(path.read_text(encoding="utf-8"))
        for case in CASES:
            messages = [
                m if isinstance(m, dict) else dict(zip(("role", "content"), m.split(":", 1), strict=True)) for m in case["messages"]
            ]
            variables = {"add_generation_prompt": True, **{key: value for key, value in case.items() if key != "messages"}}
            entry: dict[str, Any] = {"template": path.stem, "messages": messages, "variables": variables}
            try:
                more = {"tools": None, "documents": None, "bos_token": "<s>", "eos_token": "</s>", **variables}
                entry["text"] = template.render(messages=copy.deepcopy(messages), **more)
            except Exception as error:
                entry["error"] = str(error)
            golden.append(entry)
    text = json.dumps({"source": f"transformers {transformers.__version__}", "golden": golden}, indent=1, ensure_ascii=False)
    (DATA / "golden" / "chat_templates.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
