"""Links of README become absolute, and nothing else in it changes."""

import pytest

from scripts.build_metadata import project_urls, with_absolute_links

HOST = "https://example.org/x"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[a](b.md#c)", f"[a]({HOST}/blob/v1/b.md#c)"),
        ("[a](./docs/b.md)", f"[a]({HOST}/blob/v1/docs/b.md)"),
        ("![a](b.svg)", f"![a]({HOST}/raw/v1/b.svg)"),
        ("[![a](b.png)](c.md)", f"[![a]({HOST}/raw/v1/b.png)]({HOST}/blob/v1/c.md)"),
        ('<img alt="a" src="b.png">', f'<img alt="a" src="{HOST}/raw/v1/b.png">'),
        ('<a href="docs/">', f'<a href="{HOST}/blob/v1/docs/">'),
    ],
)
def test_a_relative_link_becomes_absolute(text: str, expected: str) -> None:
    assert with_absolute_links(text, HOST, "v1") == expected


@pytest.mark.parametrize(
    "text", ["[a](https://b.c)", "[a](#b)", "[a](mailto:b@c.d)", "`[a](b)`", "```python\nx[0](b)\n```", "a (b.md)"]
)
def test_everything_else_stays(text: str) -> None:
    assert with_absolute_links(text, HOST, "v1") == text


def test_an_address_that_is_empty_has_no_url() -> None:
    assert "Documentation" not in project_urls(HOST, "")
    assert project_urls(HOST, "https://d")["Documentation"] == "https://d"
