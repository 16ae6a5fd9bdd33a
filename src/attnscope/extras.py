"""The optional dependencies: which extra brings which module, and how to import one.

The core needs torch, numpy, rich, click and fsspec. Everything else belongs to an extra, is imported through
`import_extra` at the moment it is needed, and only in the packages that `tests/project/test_layers.py` lists.
"""

from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from types import ModuleType

from attnscope.errors import MissingExtraError, VersionError

EXTRAS: dict[str, tuple[str, ...]] = {
    "models": ("tokenizers", "safetensors", "gguf", "jinja2", "huggingface_hub"),
    "record": ("transformers", "safetensors"),
    "figures": ("matplotlib", "PIL"),
    "tables": ("pandas", "pyarrow"),
    "train": ("tensorboard", "pyarrow"),
    "survey": ("ddsketch", "pyarrow"),
    "ray": ("ray",),
    "s3": ("s3fs",),
    "explore": ("starlette", "uvicorn", "safetensors", "anywidget", "traitlets"),
    "triton": ("triton",),
}
"""Each extra and the top-level modules it brings, the same as in pyproject.toml."""

TESTED = {"transformers": "5.22.2", "uvicorn": "0.54.0"}
"""Packages of which private names are read, with the version in constraints.txt."""


def extra_of(module: str) -> str:
    """The first extra that brings a module.

    >>> extra_of("starlette.routing")
    'explore'
    """
    top = module.partition(".")[0]
    for extra, modules in EXTRAS.items():
        if top in modules:
            return extra
    raise ValueError(
        f"{module!r} belongs to no extra; known modules: {sorted({m for ms in EXTRAS.values() for m in ms})}"
    )


def import_extra(module: str) -> ModuleType:
    """Import an optional module, or say which extra brings it and how to install that.

    >>> import_extra("matplotlib.colors").__name__
    'matplotlib.colors'
    """
    extra = extra_of(module)
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        top = module.partition(".")[0]
        if error.name is None or error.name.partition(".")[0] != top:
            raise  # the module is there and lacks something of its own
        if top in TESTED and find_spec(top) is not None:
            raise unknown_version(top, f"module {module}") from error
        raise MissingExtraError(_words(top, extra), name=top) from error


def require(extra: str, *modules: str) -> None:
    """Refuse to begin what needs an extra, or some of its modules, before any time is spent on it.

    A module may come with several extras: this names the one that is meant.

    >>> require("figures")
    """
    for module in modules or EXTRAS[extra]:
        if find_spec(module) is None:
            raise MissingExtraError(_words(module, extra), name=module)


def require_names(package: str, owner: object, *names: str) -> None:
    """Check that something of a package has the private names that are read of it.

    Raises:
        VersionError: a name is missing; the message names the installed version and one that has it.
    """
    for name in names:
        if not hasattr(owner, name):
            kind = getattr(owner, "__name__", type(owner).__name__)
            raise unknown_version(package, f"{kind}.{name}")


def unknown_version(package: str, missing: str) -> VersionError:
    """The error for a package that lacks something, in one sentence."""
    return VersionError(
        f"{package} {version(package)} has no {missing}, which attnscope reads; install a version that is tested: "
        f'pip install "{package}=={TESTED[package]}"'
    )


def _words(module: str, extra: str) -> str:
    return f'{module} is needed here and is not installed. Install it with: pip install "attnscope[{extra}]"'
