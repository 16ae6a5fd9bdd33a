import assert from "node:assert/strict";
import { test } from "node:test";
import { isolated, title, visible } from "../src/paint/token_text";

test("white space is shown", () => {
  assert.equal(visible(" cat"), "·cat");
  assert.equal(visible("\n\n\t"), "⏎⏎⇥");
  assert.equal(visible(""), "(empty)");
  assert.equal(visible("\u00a0"), "\\u{a0}");
});

test("characters that hide or turn text are written out", () => {
  assert.equal(visible("\u202eabc"), "\\u{202e}abc");
  assert.equal(visible("a\u200bb"), "a\\u{200b}b");
  assert.equal(visible("\u0000\u001b[31m"), "\\u{0}\\u{1b}[31m");
  assert.equal(visible("\r\n"), "\\u{d}⏎");
  assert.equal(visible("\ud83d"), "\\u{d83d}");
  assert.equal(visible("\u2066x\u2069"), "\\u{2066}x\\u{2069}");
  assert.equal(visible("\ufeff"), "\\u{feff}");
  assert.equal(visible("\u2028"), "\\u{2028}");
});

test("nothing that is shown can turn its surroundings", () => {
  for (let point = 0; point < 0x3000; point++) {
    assert.doesNotMatch(visible(`a${String.fromCodePoint(point)}b`), /[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f]/u, point.toString(16));
  }
});

test("long text is cut by what people see as characters", () => {
  assert.equal(visible("x".repeat(32)), "x".repeat(32));
  assert.equal(visible("x".repeat(33)), `${"x".repeat(31)}…`);
  const family = "👩‍👩‍👧‍👦";
  assert.equal(visible(family.repeat(40), 4), `${family.repeat(3)}…`);
  assert.equal(visible("e\u0301".repeat(3)), "e\u0301".repeat(3));
});

test("a tower of accents is cut, and an accent alone gets something to stand on", () => {
  assert.ok(visible(`a${"\u0301".repeat(100)}`).length <= 9);
  assert.equal(visible("\u0301"), "◌\u0301");
});

test("markup stays text", () => {
  assert.equal(visible("</script>"), "</script>");
});

test("titles keep their spaces and lose their controls", () => {
  assert.equal(title("  Chapter  One\n", 20), "Chapter One");
  assert.equal(title("a \u202eb", 20), "a \\u{202e}b");
  assert.equal(title("a b · c", 20), "a b · c");
});

test("titles are cut as a whole, however many words they have", () => {
  assert.equal(title("one two three", 8), "one two…");
  assert.equal(title("word ".repeat(1000)).length, 60);
});

test("isolation wraps the text", () => {
  assert.equal(isolated("א"), "\u2068א\u2069");
});
