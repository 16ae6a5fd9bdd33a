"""The program that renders one chat template; `chat_template` starts it in a process of its own.

In: JSON on standard input (`template`, `variables`), and as arguments the limits and the folders that jinja2 lies in.
Out: JSON on standard output, `text` or else `fault` and `message`.
Does not know: AttnScope, or any package other than jinja2, so that it starts quickly.
Memory: at most what the first argument allows, where the system can limit it.
"""

from __future__ import annotations

import io
import json
import sys
import time
from datetime import datetime
from typing import Any


def main(arguments: list[str]) -> None:
    """Read the request, drop privileges, render, and write the result."""
    max_bytes, max_seconds, max_characters = map(int, arguments[:3])
    sys.path.extend(arguments[3:])
    environment = chat_environment()
    request = json.loads(sys.stdin.buffer.read())
    confine(max_bytes, max_seconds)
    try:
        answer = {"text": render(environment, request["template"], request["variables"], max_characters)}
    except Fault as fault:
        answer = {"fault": fault.kind, "message": str(fault)}
    except MemoryError:
        answer = {"fault": "memory", "message": ""}
    except Exception as error:
        answer = {"fault": "template", "message": f"{type(error).__name__}: {str(error)[:1000]}"}
    sys.stdout.write(json.dumps(answer))


class Fault(Exception):  # noqa: N818 - the process ends with it, the error is raised by the one that started it
    """Why a template was not rendered: it rejects the messages, or is too long."""

    def __init__(self, kind: str, message: str = ""):
        super().__init__(message[:1000])
        self.kind = kind


def render(environment: Any, template: str, variables: dict[str, Any], max_characters: int) -> str:
    """Render a template chunk by chunk, and stop when the text becomes too long."""
    text, length = io.StringIO(), 0
    for piece in environment.from_string(template).generate(**variables):
        length += len(piece)
        if length > max_characters:
            raise Fault("length")
        text.write(piece)
    return text.getvalue()


def chat_environment() -> Any:
    """Jinja as the templates of model hubs expect it."""
    import jinja2.constants
    import jinja2.debug
    import jinja2.ext
    import jinja2.nodes
    import jinja2.sandbox

    class Generation(jinja2.ext.Extension):
        """`{% generation %}`, which marks what the model wrote: rendered like any other text."""

        tags = {"generation"}  # noqa: RUF012 - Jinja reads it off the class

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            return jinja2.nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)

    def raise_exception(message: object) -> None:
        raise Fault("refused", str(message))

    def to_json(
        value: object,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
    # Jinja imports some things when they are first used, and later no file can be opened.
    environment.from_string("{{ 'once'|pprint|wordwrap }}").render()
    return environment


def confine(max_bytes: int, max_seconds: int) -> None:
    """Limit memory, CPU time and files, in case a template escapes Jinja's sandbox."""
    time.localtime()  # reads the time zone from a file
    try:
        import resource
    except ImportError:  # not Unix: only the timeout of the parent process remains
        return
    spent = int(sum(resource.getrusage(resource.RUSAGE_SELF)[:2])) + 1  # by starting up
    limits = {
        "RLIMIT_AS": max_bytes,
        "RLIMIT_CPU": spent + max_seconds,
        "RLIMIT_FSIZE": 0,
        "RLIMIT_NOFILE": 0,  # nothing more can be opened; without files, no other program starts either
        "RLIMIT_NPROC": 0,
        "RLIMIT_CORE": 0,
    }
    for name, limit in limits.items():
        try:
            # SIGXCPU at the soft limit and SIGKILL at the hard limit, one second later, so the cause is known.
            resource.setrlimit(getattr(resource, name), (limit, limit + 1 if name == "RLIMIT_CPU" else limit))
        except (AttributeError, ValueError, OSError):  # this system lacks it: macOS cannot limit memory
            continue


if __name__ == "__main__":
    main(sys.argv[1:])
