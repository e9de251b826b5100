"""Rows with prompts and completions, and conversations that a chat template writes."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedlm.fl_core.errors import ConfigurationError, DataError
from fedlm.simulations.data.client_text import ClientText
from fedlm.simulations.data.importing import ImportSettings, import_text
from fedlm.simulations.data.sources.chat_templates import load_template
from fedlm.simulations.data.sources.tables.csv_tables import CsvTables
from fedlm.simulations.data.sources.tables.jsonl import JsonLines
from fedlm.simulations.data.sources.tables.parquet import ParquetTables
from fedlm.simulations.data.sources.tables.user_rows import document_id
from fedlm.simulations.data.store.token_store import TokenStore
from tests.simulations.data.sources.source_reading import read

PAIR = {"prompt": "prompt", "completion": "completion"}
# In the manner of Gemma's: turns between marks, the assistant called model, no system messages.
TEMPLATE = """{{ bos_token }}{% for message in messages %}
{% if message['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{% set role = 'model' if message['role'] == 'assistant' else message['role'] %}
{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}
{%- endfor %}
{% if add_generation_prompt %}
{{ '<start_of_turn>model\n' }}
{%- endif %}
"""
CHAT = [
    {"role": "user", "content": " What is red & <round>? "},
    {"role": "assistant", "content": "An apple."},
    {"role": "user", "content": "And green?"},
    {"role": "assistant", "content": "A pear."},
]


def rows(tmp_path, *records, **settings):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return read(JsonLines((path,), **settings))


@pytest.fixture
def published(tmp_path):
    """The folder of a model with a template."""
    folder = tmp_path / "model"
    folder.mkdir()
    config = {"chat_template": TEMPLATE, "bos_token": "<bos>", "eos_token": {"content": "<eos>", "lstrip": False}}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def test_pairs_are_kept_as_they_are(tmp_path):
    row = {"user": "ann", "prompt": " Two  plus\ntwo. is", "completion": " Four. Indeed.", "part": "dev", "when": 3}
    (text,), skipped = rows(tmp_path, row, **PAIR, split="part", order="when")
    assert text == ClientText("ann", [row["prompt"]], "heldout", 3, [row["completion"]])
    assert skipped.as_dict() == {}
    # Without users they are clients of their own.
    found, _ = rows(tmp_path, *({"prompt": "a b", "completion": c} for c in ("c", "d", "c")), user=None, **PAIR)
    assert [text.client_id for text in found] == [document_id(["a b", c], None) for c in ("c", "d", "c")]


def test_what_has_nothing_to_complete_is_counted(tmp_path, published):
    empty = ({"prompt": ""}, {"completion": " \n"}, {"prompt": None})
    found, skipped = rows(tmp_path, *({"user": "a", "prompt": "p", "completion": "c"} | one for one in empty), **PAIR)
    assert not found
    assert skipped.as_dict() == {"empty prompt or completion": 3}
    chats = [{"user": 1, "chat": messages} for messages in (CHAT[:1], CHAT[:3], CHAT[1:2], [], None)]
    found, skipped = rows(tmp_path, *chats, messages="chat", chat_template=published)
    assert not found
    assert skipped.as_dict() == {"conversation that does not end with an answer of the role 'assistant'": 5}


def test_pairs_of_tables_are_those_of_lines(tmp_path):
    table = {"user": ["a", "b"], "prompt": ["one, two", 'a "b"'], "completion": ["three", "c"]}
    pq.write_table(pa.table(table), tmp_path / "rows.parquet")
    (tmp_path / "rows.csv").write_text('user,prompt,completion\na,"one, two",three\nb,"a ""b""",c\n')
    expected, _ = rows(tmp_path, *({name: table[name][row] for name in table} for row in range(2)), **PAIR)
    assert read(ParquetTables((tmp_path / "rows.parquet",), **PAIR))[0] == expected
    assert read(CsvTables((tmp_path / "rows.csv",), **PAIR))[0] == expected


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"prompt": "p"}, "prompt and completion go together"),
        ({"messages": "m"}, "messages and chat_template go together"),
        ({**PAIR, "messages": "m", "chat_template": "t"}, "in place of prompt and completion"),
        ({**PAIR, "text": "body", "examples": "texts"}, "text and examples does nothing"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings, said):
    for source in (JsonLines, CsvTables, ParquetTables):
        with pytest.raises(ConfigurationError, match=said):
            source((), **settings)


def test_a_conversation_is_what_leads_to_its_last_answer(tmp_path, published):
    (text,), _ = rows(tmp_path, {"user": 1, "chat": CHAT}, messages="chat", chat_template=published)
    assert text.sentences == [
        "<start_of_turn>user\nWhat is red & <round>?<end_of_turn>\n"
        "<start_of_turn>model\nAn apple.<end_of_turn>\n"
        "<start_of_turn>user\nAnd green?<end_of_turn>\n"
        "<start_of_turn>model\n"
    ]
    assert text.completions == ["A pear.<end_of_turn>\n"]


@pytest.mark.parametrize("nested", [False, True], ids=["in a model's folder", "in that of an imported one"])
def test_a_template_is_found_where_models_have_it(tmp_path, published, nested):
    (published / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<bos>", "eos_token": "</s>"}))
    template = "{{ bos_token }}{% for m in messages %}{{ m.role }}:{{ m.content | tojson }}{{ eos_token }}{% endfor %}"
    (published / "chat_template.jinja").write_text(template + "{{ 'assistant:' if add_generation_prompt }}")
    folder = published
    if nested:
        (tmp_path / "run").mkdir()
        folder = tmp_path / "run"
        published.rename(folder / "original")
    found = load_template(folder).pair([{"role": "user", "content": "é <"}, {"role": "assistant", "content": "y"}], "")
    assert found == ('user:"é <"</s>assistant:', '"y"')


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ("hello", "expected a list of objects with a role and a content"),
        ([{"role": "user", "content": [{"type": "text"}]}], "expected a list of objects with a role and a content"),
        ([{"role": "system", "content": "x"}, CHAT[1]], r"line 1: .*refuses it: System role not supported"),
    ],
)
def test_conversations_that_are_none_are_refused(tmp_path, published, messages, said):
    with pytest.raises(DataError, match=said):
        rows(tmp_path, {"user": 1, "chat": messages}, messages="chat", chat_template=published)


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{% for m in messages %}", "is not a chat template"),
        ("{% for m in [1] %}" * 30 + "{% endfor %}" * 30, "is not a chat template"),
        ("{{ " + "(" * 2000 + "1" + ")" * 2000 + " }}", "is not a chat template"),
        ("{{ 10 ** 5000 }}", "is not a chat template"),
        ("{{ raise_exception('one\nline\x1b[31m') }}", r"refuses it: one line\[31m\. Mend the row"),
        ("{{ messages[-1].content }}", "does not write the last message after the earlier ones"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "refuses it"),
        ("{% for i in range(10 ** 9) %}{% endfor %}", "refuses it"),
        ("{{ messages.append(1) }}", "refuses it"),
        ("{{ 1 / 0 }}", "refuses it"),
        ("{{ strftime_now('%d') }}", "refuses it"),
    ],
)
def test_templates_that_do_what_they_should_not_are_refused(tmp_path, template, said):
    (tmp_path / "chat_template.jinja").write_text(template)
    with pytest.raises(DataError, match=said):
        load_template(tmp_path / "chat_template.jinja").pair(CHAT, "row 1")


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (None, "found no chat template"),
        ("{}", "found no chat template"),
        ('{"chat_template": [{"name": "tool_use", "template": "x"}]}', "found no chat template"),
        ("[", "found no JSON"),
        ('{"chat_template": "x", "eos_token": {"text": "</s>"}}', "eos_token is {'text': '</s>'}, expected a text"),
        (100_000 * "[", "found no JSON"),
    ],
)
def test_a_missing_template_is_named(tmp_path, config, said):
    if config is not None:
        (tmp_path / "tokenizer_config.json").write_text(config)
    with pytest.raises(DataError, match=said):
        load_template(tmp_path)


def test_conversations_are_imported(tmp_path, published):
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"user": n, "chat": CHAT}) + "\n" for n in range(9)))
    source = JsonLines((tmp_path / "rows.jsonl",), messages="chat", chat_template=published)
    # So that an import that was interrupted does not go on with another template.
    assert source.files() == [tmp_path / "rows.jsonl", published / "tokenizer_config.json"]
    settings = ImportSettings(vocabulary_size=80, lowercase=False)
    import_text("jsonl", source, tmp_path / "store", settings, workers=1)
    store = TokenStore.open(tmp_path / "store")
    client = store.split("train").client(0)
    assert store.tokenizer.decode(client.example(0)[client.prompt_lengths[0] :]).startswith("A pear.")
