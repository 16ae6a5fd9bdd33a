import assert from "node:assert/strict";
import { test } from "node:test";
import { formatTitle, formatToken, isolateDirection } from "../src/paint/token_text";

test("white space is shown", () => {
  assert.equal(formatToken(" cat"), "·cat");
  assert.equal(formatToken("\n\n\t"), "⏎⏎⇥");
  assert.equal(formatToken(""), "(empty)");
  assert.equal(formatToken("\u00a0"), "\\u{a0}");
});

test("invisible and direction characters are escaped", () => {
  assert.equal(formatToken("\u202eabc"), "\\u{202e}abc");
  assert.equal(formatToken("a\u200bb"), "a\\u{200b}b");
  assert.equal(formatToken("\u0000\u001b[31m"), "\\u{0}\\u{1b}[31m");
  assert.equal(formatToken("\r\n"), "\\u{d}⏎");
  assert.equal(formatToken("\ud83d"), "\\u{d83d}");
  assert.equal(formatToken("\u2066x\u2069"), "\\u{2066}x\\u{2069}");
  assert.equal(formatToken("\ufeff"), "\\u{feff}");
  assert.equal(formatToken("\u2028"), "\\u{2028}");
});

test("shown text cannot change the direction of its surroundings", () => {
  for (let point = 0; point < 0x3000; point++) {
    assert.doesNotMatch(formatToken(`a${String.fromCodePoint(point)}b`), /[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f]/u, point.toString(16));
  }
});

test("long text is truncated by graphemes", () => {
  assert.equal(formatToken("x".repeat(32)), "x".repeat(32));
  assert.equal(formatToken("x".repeat(33)), `${"x".repeat(31)}…`);
  const family = "👩‍👩‍👧‍👦";
  assert.equal(formatToken(family.repeat(40), 4), `${family.repeat(3)}…`);
  assert.equal(formatToken("e\u0301".repeat(3)), "e\u0301".repeat(3));
});

test("many accents are truncated, and a lone accent gets a base", () => {
  assert.ok(formatToken(`a${"\u0301".repeat(100)}`).length <= 9);
  assert.equal(formatToken("\u0301"), "◌\u0301");
});

test("markup stays text", () => {
  assert.equal(formatToken("</script>"), "</script>");
});

test("titles keep spaces and escape control characters", () => {
  assert.equal(formatTitle("  Chapter  One\n", 20), "Chapter One");
  assert.equal(formatTitle("a \u202eb", 20), "a \\u{202e}b");
  assert.equal(formatTitle("a b · c", 20), "a b · c");
});

test("titles are truncated as a whole", () => {
  assert.equal(formatTitle("one two three", 8), "one two…");
  assert.equal(formatTitle("word ".repeat(1000)).length, 60);
});

test("isolation wraps the text", () => {
  assert.equal(isolateDirection("א"), "\u2068א\u2069");
});
