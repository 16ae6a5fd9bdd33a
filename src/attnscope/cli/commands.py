"""Click commands with examples in the help, options in sections, and suggestions for mistyped names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from attnscope.errors import unknown

SETTINGS = {"help_option_names": ["-h", "--help"]}
OPTIONS = "Options"

Handler = TypeVar("Handler", bound=Callable[..., Any])


class Options(SimpleNamespace):
    """The parsed arguments and options, by name."""


class Name(click.ParamType):
    """A parameter type for one of several names, with shell completion and suggestions for typos."""

    def __init__(self, kind: str, names: Sequence[str] | Callable[[], Sequence[str]]) -> None:
        self.name = kind
        self._names = names

    @property
    def names(self) -> tuple[str, ...]:
        """The allowed names."""
        return tuple(self._names() if callable(self._names) else self._names)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name; raise a usage error if it is unknown."""
        if value not in self.names:
            raise click.UsageError(unknown(self.name, str(value), self.names), ctx)
        return value

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the names that start with the text."""
        return [CompletionItem(name) for name in self.names if name.startswith(incomplete)]


class Argument(click.Argument):
    """An argument with a line of help."""

    def __init__(self, *args: Any, about: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.about = about


class Option(click.Option):
    """An option in a section of the help."""

    def __init__(self, *args: Any, section: str = OPTIONS, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.section = section


class Help(click.Command):
    """The layout of help pages."""

    notes: str = ""
    examples: Sequence[str] = ()

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Return [OPTIONS], the required options, and the arguments."""
        first, *rest = super().collect_usage_pieces(ctx)
        needed = [param for param in self.get_params(ctx) if isinstance(param, click.Option) and param.required]
        return [first, *(f"{option.opts[0]} {option.metavar}" for option in needed), *rest]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the arguments, then each section of options."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], OPTIONS: []}
        for param in self.get_params(ctx):
            if isinstance(param, Argument):
                sections["Arguments"].append((display_name(param), param.about))
            elif (record := param.get_help_record(ctx)) is not None:
                sections.setdefault(getattr(param, "section", OPTIONS), []).append(record)
        for title, rows in sections.items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the notes, then the examples."""
        title = "Example:" if len(self.examples) == 1 else "Examples:"
        blocks = [self.notes, "\n".join([title, *(f"  {line}" for line in self.examples)])]
        for block in filter(None, blocks):
            formatter.write(f"\n{block}\n")


class Command(Help):
    """A command without subcommands."""


class Group(Help, click.Group):
    """A command with subcommands; alone, it prints its help."""

    command_class = Command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Print the help and exit with 0 if there are no arguments."""
        if not args and not ctx.resilient_parsing:
            click.echo(ctx.get_help())
            ctx.exit(0)
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command of this name; suggest another if it is unknown."""
        names = self.list_commands(ctx)
        if args[0] not in names and not ctx.resilient_parsing:
            raise click.UsageError(unknown("command", args[0], names), ctx)
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order in which they were added."""
        return list(self.commands)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands before the options."""
        self.format_commands(ctx, formatter)
        super().format_options(ctx, formatter)


def command(
    name: str,
    *,
    about: str,
    description: str | None = None,
    notes: str = "",
    examples: Sequence[str],
    group: click.Group | None = None,
) -> Callable[[Callable[[Options], int | None]], Command]:
    """Turn a handler into a command; the handler takes the options and may return an exit code.

    Args:
        name: the name of the command.
        about: its line in the list of commands.
        description: the first paragraph of its help (default: `about`).
        notes: lines before the examples.
        examples: complete command lines.
        group: the parent command.
    """

    def decorate(handler: Callable[[Options], int | None]) -> Command:
        def call(**given: Any) -> int | None:
            return handler(Options(**given))

        made = Command(
            name,
            callback=call,
            params=list(reversed(getattr(handler, "__click_params__", []))),
            help=description or f"{about[0].upper()}{about[1:]}.",
            short_help=about,
            context_settings=SETTINGS,
        )
        made.notes, made.examples = notes, examples
        if group is not None:
            group.add_command(made)
        return made

    return decorate


def make_group(name: str, *, about: str, description: str, examples: Sequence[str]) -> Group:
    """Create a command with subcommands."""
    made = Group(name, help=description, short_help=about, context_settings=SETTINGS)
    made.examples = examples
    return made


def argument(name: str, *, about: str, **settings: Any) -> Callable[[Handler], Handler]:
    """Add an argument to a handler; by default it is a path."""
    required, several = settings.get("required", True), settings.get("nargs") == -1
    shown = settings.pop("metavar", name.upper()) + ("..." if several else "")
    settings = {"type": click.Path(), "metavar": shown if required else f"[{shown}]"} | settings
    return click.argument(name, cls=Argument, about=about, **settings)


def option(*names: str, about: str, **settings: Any) -> Callable[[Handler], Handler]:
    """Add an option to a handler."""
    return click.option(*names, cls=Option, help=about, **settings)


def display_name(param: click.Parameter) -> str:
    """Return the name of a parameter in errors and help pages.

    >>> display_name(click.Option(["--top"])), display_name(Argument(["text"], metavar="[TEXT]"))
    ('--top', 'TEXT')
    """
    return param.opts[0] if isinstance(param, click.Option) else (param.metavar or "").strip("[].")


def format_error(error: click.ClickException) -> str:
    """Format a usage error as one line: the command, the problem, and where to find help."""
    context = getattr(error, "ctx", None)
    path = "attnscope" if context is None else context.command_path
    where = "".join(f"{word}: " for word in [" ".join(path.split()[1:])] if word)
    param = getattr(error, "param", None)
    if isinstance(error, click.NoSuchOption):
        wrong = f"unknown option {error.option_name}"
        if error.possibilities:
            wrong += f" (did you mean {error.possibilities[0]}?)"
    elif isinstance(error, click.MissingParameter) and param is not None:
        wrong = f"missing {display_name(param)}"
        wrong += f" {param.metavar}" if isinstance(param, click.Option) else ""
    elif isinstance(error, click.BadParameter) and param is not None:
        wrong = f"{display_name(param)}: {error.message.rstrip('.')}"
    else:
        message = error.format_message().rstrip(".")
        wrong = message[0].lower() + message[1:]
    return f"attnscope: {where}{wrong}; see {path} --help"
