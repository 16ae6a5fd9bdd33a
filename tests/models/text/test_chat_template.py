"""Chat templates: rendered as transformers renders them, and confined where they mean harm."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
from transformers import AutoTokenizer
from transformers.utils.chat_template_utils import render_jinja_template

from attnscope.errors import CheckpointError
from attnscope.models.text import chat_template
from attnscope.models.text.chat_template import render_chat
from attnscope.models.text.tokenizer import Tokenizer

SMOLLM2 = Path(__file__).resolve().parents[3] / ".cache" / "models" / "smollm2-135m"
DEADLINE = (
    chat_template.MAX_SECONDS + 5.0
)  # seconds: on a busy machine, two of computing are as many as it is patient for

USER = {"role": "user", "content": "What is 2 < 3 & é🦜?\n"}
CHATS = [
    [USER],
    [{"role": "system", "content": "Be brief."}, USER, {"role": "assistant", "content": "True."}, USER],
    [],
]
TOOLS = [{"type": "function", "function": {"name": "add", "description": "<sum> of 'a' & b", "parameters": {}}}]

CHATML = """
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content | trim + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""
LLAMA3 = """{{- bos_token }}
{%- if messages and messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" + system }}
{%- if tools is not none %}
    {%- for tool in tools %}
        {{- tool | tojson(indent=4) }}
    {%- endfor %}
{%- endif %}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
    {%- if message['role'] == 'assistant' %}
        {%- generation %}
            {{- message['content'] }}
        {%- endgeneration %}
    {%- else %}
        {{- message['content'] }}
    {%- endif %}
    {{- '<|eot_id|>' }}
{%- endfor %}
"""
MISTRAL = """{{ bos_token }}
{%- set state = namespace(turn=0) %}
{% for message in messages %}
    {% if message.role == 'system' %}{% continue %}{% endif %}
    {% if (message.role == 'user') != (state.turn % 2 == 0) %}
        {{ raise_exception('user and assistant take turns, but number ' ~ loop.index ~ ' is ' ~ message.role) }}
    {% endif %}
    {% set state.turn = state.turn + 1 %}
    {% if message.role == 'user' %}[INST] {{ message.content }} [/INST]{% else %} {{ message.content }}{{ eos_token }}
    {% endif %}
    {% if loop.index > 50 %}{% break %}{% endif %}
{% endfor %}
{% if tools %}{{ tools | tojson }}{% endif %}"""


def by_transformers(template: str, messages: list, **variables) -> str:
    return render_jinja_template([messages], chat_template=template, **variables)[0][0]


@pytest.mark.parametrize("messages", CHATS[:2])
@pytest.mark.parametrize("prompt", [True, False])
def test_the_template_of_a_trained_model_gives_what_transformers_gives(messages, prompt):
    ours, theirs = Tokenizer.load(SMOLLM2), AutoTokenizer.from_pretrained(SMOLLM2, local_files_only=True)
    assert ours.chat_template is not None
    text = render_chat(ours.chat_template, messages, add_generation_prompt=prompt, **ours.special_tokens)
    assert text == theirs.apply_chat_template(messages, add_generation_prompt=prompt, tokenize=False)


@pytest.mark.parametrize("template", [CHATML, LLAMA3, MISTRAL], ids=["chatml", "llama3", "mistral"])
@pytest.mark.parametrize("messages", CHATS)
@pytest.mark.parametrize("tools", [None, TOOLS], ids=["", "tools"])
def test_templates_as_they_are_common_give_what_transformers_gives(template, messages, tools):
    variables = {"tools": tools, "add_generation_prompt": True, "bos_token": "<s>", "eos_token": "</s>"}
    assert render_chat(template, messages, **variables) == by_transformers(template, messages, **variables)


def test_templates_know_the_date_and_write_json_as_it_is():
    assert render_chat("{{ strftime_now('%Y') }}", []) == time.strftime("%Y")
    assert render_chat("{{ tools | tojson }}", [], tools=TOOLS) == by_transformers(
        "{{ tools | tojson }}", [], tools=TOOLS
    )
    assert render_chat("{{ x | tojson }}", [], x="<é> & '\"") == '"<é> & \'\\""'


def test_what_is_set_inside_a_generation_block_stays_inside():
    template = "{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}"
    assert render_chat(template, []) == by_transformers(template, []) == "21"


def test_a_refusal_by_the_template_reaches_the_user():
    with pytest.raises(
        CheckpointError, match="refuses these messages: user and assistant take turns, but number 2 is user"
    ):
        render_chat(MISTRAL, [USER, USER], bos_token="")
    with pytest.raises(CheckpointError, match=r"refuses these messages:  \[31mx{900,}$"):
        render_chat("{{ raise_exception('\x1b[31m' + 'x' * 5000) }}", [])


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{% if %}", "TemplateSyntaxError: Expected an expression"),
        ("{{ messages[0].content.nothing.more }}", "UndefinedError"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{% include 'other' %}", "no loader"),
    ],
)
def test_a_template_that_fails_says_why(template, reason):
    with pytest.raises(CheckpointError, match=f"the chat template fails: .*{reason}"):
        render_chat(template, [USER])


LOOP = "{% for i in range(99999) %}"
DOUBLING = LOOP + "{% set n.s = n.s + n.s %}{% endfor %}"
MEMORY, COMPUTING, LENGTH = "bytes of memory", "computed for more than 2 seconds", "more than 16,777,216 characters"
HOSTILE = {
    "a huge string": ("{{ 'a' * 10 ** 10 }}", MEMORY),
    "doubling": ("{% set n = namespace(s='aaaa') %}" + DOUBLING, MEMORY),
    "doubling lists": ("{% set n = namespace(s=[1]) %}" + DOUBLING, MEMORY),
    "loops in loops": (LOOP * 3 + "{% endfor %}" * 3, COMPUTING),
    "loops that write": (LOOP * 3 + "word" * 99 + "{% endfor %}" * 3, LENGTH),
    "percent": ("{{ '%1000000000d' % 1 }}", MEMORY),
    "percent, less": ("{{ '%50000000d' % 1 }}", LENGTH),
    "format": ("{{ '{:1000000000d}'.format(1) }}", MEMORY),
    "center": ("{{ 'a' | center(10 ** 9) }}", MEMORY),
    "replace": ("{{ ('a' * 10 ** 5) | replace('a', 'a' * 10 ** 5) }}", MEMORY),
    "join": ("{{ range(99999) | join('a' * 10 ** 6) }}", MEMORY),
    "powers": ("{{ (7 ** (10 ** 7)) ** 9 }}", COMPUTING),
    "blind text": ("{{ lipsum(10 ** 9) }}", COMPUTING),
    "recursion": ("{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
    "deep": ("{{ " + "(" * 50_000 + "1" + ")" * 50_000 + " }}", "RecursionError"),
    "subclasses": ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "SecurityError"),
    "globals": ("{{ cycler.__init__.__globals__.os.system('touch FILE') }}", "SecurityError"),
    "attr": ("{{ (cycler | attr('__init__')).__globals__.os.popen('touch FILE') }}", "Error"),
    "format string": ("{{ '{0.__init__.__globals__[os]}'.format(joiner) }}", "Error"),
    "map": ("{{ [cycler] | map(attribute='__init__.__globals__.os') | list }}", "Error"),
    "file": ("{{ lipsum.__globals__.__builtins__.open('FILE', 'w').write('x') }}", "Error"),
    "include": ("{% include 'FILE' %}", "no loader"),
    "append": ("{{ messages.append(messages) }}", "SecurityError"),
}  # fmt: skip


@pytest.mark.skipif(sys.platform != "linux", reason="memory and computing time are limited only where the system can")
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_template_ends_within_its_limits_and_leaves_nothing(name, tmp_path):
    template, reason = HOSTILE[name]
    target = tmp_path / "made"
    start = time.monotonic()
    with pytest.raises(CheckpointError, match=reason):
        render_chat(template.replace("FILE", str(target)), [USER])
    assert time.monotonic() - start < DEADLINE
    assert list(tmp_path.iterdir()) == []


def test_waiting_is_limited_too(monkeypatch):
    monkeypatch.setattr(chat_template, "MAX_SECONDS", 0.5)
    with pytest.raises(CheckpointError, match=r"it took more than 0\.5 seconds"):
        render_chat(LOOP * 3 + "{% endfor %}" * 3, [])


@pytest.mark.skipif(sys.platform == "win32", reason="limits of the system")
@pytest.mark.parametrize(
    "harm", ["open('made', 'w')", "__import__('os').system('touch made') and 1/0", "__import__('socket').socket()"]
)
def test_even_code_outside_the_sandbox_opens_nothing(harm, tmp_path):
    program = "import socket, attnscope.models.text.template_sandbox as process\nprocess.confine(2**30, 2)\n" + harm
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, check=False, timeout=60)
    assert done.returncode != 0
    assert list(tmp_path.iterdir()) == []


def test_the_process_sees_nothing_of_the_environment(monkeypatch, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("raise SystemExit('ran')")
    (tmp_path / "jinja2.py").write_text("raise SystemExit('ran')")
    for name, value in {"PYTHONPATH": str(tmp_path), "PYTHONSTARTUP": str(tmp_path / "jinja2.py")}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    assert render_chat("{{ messages | length }}", [USER]) == "1"


def test_a_process_without_an_answer_is_reported(monkeypatch):
    monkeypatch.setattr(chat_template, "_command", lambda: [sys.executable, "-c", "raise SystemExit(3)"])
    with pytest.raises(CheckpointError, match="with status 3 and without an answer"):
        render_chat("x", [])
    monkeypatch.setattr(chat_template, "_command", lambda: ["/nonexistent/python"])
    with pytest.raises(CheckpointError, match="no process could be started"):
        render_chat("x", [])


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({"messages": [{"role": "user", "content": b"x"}]}, r"messages\[0\]\['content'\] is \"b'x'\" \(bytes\)"),
        ({"messages": [{1: "x"}]}, r"messages\[0\] is .* \(dict\); turn it into strings"),
        ({"image": Path("x")}, r"image is 'x' \(PosixPath\)"),
        ({"temperature": float("nan")}, r"temperature is 'nan' \(float\)"),
        ({"number": 10**5000}, "what JSON can hold: .*integer string conversion"),
    ],
)
def test_what_is_not_json_is_refused_by_its_place(variables, reason):
    with pytest.raises(ValueError, match=reason):
        render_chat("{{ x }}", **({"messages": []} | variables))


def test_what_contains_itself_is_refused():
    loop: list = []
    loop.append(loop)
    with pytest.raises(ValueError, match=r"x\[0\]\[0\].* goes more than 64 levels deep, or contains itself"):
        render_chat("", [], x=loop)


@pytest.mark.timed
def test_rendering_is_quick():
    def once() -> float:
        start = time.perf_counter()
        render_chat(CHATML, [USER] * 20)
        return time.perf_counter() - start

    assert min(once() for _ in range(5)) < 0.3
