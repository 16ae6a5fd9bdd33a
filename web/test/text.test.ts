import assert from "node:assert/strict";
import { test } from "node:test";
import { getStep, HighlightSet, STEPS, type HighlightRegistryLike } from "../src/text/highlights";
import type { Links } from "../src/server/protocol";
import { chooseWindow, combineLinks, createPins, getPinnedPositions, MAX_TOKENS, shiftLinks } from "../src/text/positions";
import { findTurns, isCode } from "../src/text/text_kind";
import { findFirstBelow, findLastAtMost, findTokenAt, getCharacterTokens, layOutText, type LineBox, type TextLayout } from "../src/text/paragraphs";

/** What is shown of each token. */
function shown(texts: readonly string[]): string[] {
  const passage = layOutText(texts);
  return texts.map((_, token) => shownOf(passage, token));
}

function shownOf(passage: TextLayout, token: number): string {
  const end = passage.starts[getCharacterTokens(passage, token)[1]];
  return passage.paragraphs.join("").slice(passage.starts[token], end);
}

test("every token has its own part of the text, in order", () => {
  const texts = ["The", " king", "'s", " men", ".", " ", "They", " 行", "軍", " шли"];
  assert.deepEqual(layOutText(texts).paragraphs, [texts.join("")]);
  assert.deepEqual(shown(texts), texts);
  assert.deepEqual(layOutText([]).paragraphs, []);
});

test("a blank line starts a paragraph, and a line break is a token with a position", () => {
  const texts = ["One", "\n", "two", ".", "\n\n", "Three", "\n", "\n", " Four\n", "five"];
  const passage = layOutText(texts);
  assert.deepEqual(passage.paragraphs, ["One\u00a0\ntwo.\u00a0", "Three\u00a0\u00a0", " Four\u00a0\nfive"]);
  assert.deepEqual(passage.begins, [0, 5, 8, 10]);
  assert.deepEqual(shown(texts)[1], "\u00a0\n");
  assert.deepEqual(shown(texts)[4], "\u00a0");
  assert.deepEqual(shown(texts)[8], " Four\u00a0\n");
});

test("both kinds of line breaks end lines, and one token may have many", () => {
  assert.deepEqual(layOutText(["a\r\nb", "\r\n\r\n\r\n", "c"]).paragraphs, ["a\u00a0\nb\u00a0", "c"]);
  assert.deepEqual(layOutText(["\n", "a"]).paragraphs, ["\u00a0\na"]);
  assert.deepEqual(layOutText(["a", "\n\nb", " c"]).paragraphs, ["a\u00a0\n\nb c"]);
  assert.deepEqual(layOutText(["\n\n\n"]).paragraphs, ["\u00a0"]);
});

test("a long paragraph is cut at a line or word, and marked as continued", () => {
  const words = layOutText(Array.from({ length: 5000 }, (_, token) => (token % 3 === 1 ? " a" : "b")));
  assert.deepEqual(words.begins, [0, 2002, 4003, 5000]);
  assert.deepEqual([...words.continued], [1, 2]);
  assert.deepEqual(layOutText(Array.from({ length: 5000 }, () => "x")).begins, [0, 2200, 4400, 5000]);
});

test("however short the lines are, there are a few thousand paragraphs at most", () => {
  const texts = Array.from({ length: 131_072 }, (_, token) => (token % 2 ? "\n\n" : "a"));
  const passage = layOutText(texts);
  assert.ok(passage.paragraphs.length <= 4096);
  assert.equal(passage.paragraphs[0]?.slice(0, 8), "a\u00a0\n\na\u00a0\n\n");
});

test("invisible and direction characters are escaped, and offsets are of the shown text", () => {
  const texts = ["a\u202eb", "\u200b", "", "c", "\u0000", "\ud83d", "\t", "d"];
  assert.deepEqual(shown(texts), ["a\\u{202e}b", "\\u{200b}", "(empty)", "c", "\\u{0}", "\\u{d83d}", "\t", "d"]);
});

test("bytes of a character are shown as the character, and belong together", () => {
  const texts = ["Hi", " \\xf0\\x9f", "\\xa6", "\\x8a", " x", " \\xe6", "\\x97", "\\xa5", "本"];
  const passage = layOutText(texts);
  assert.deepEqual(passage.paragraphs, ["Hi 🦊 x 日本"]);
  assert.deepEqual(shown(texts), ["Hi", " 🦊", " 🦊", " 🦊", " x", " 日", " 日", " 日", "本"]);
  assert.deepEqual(getCharacterTokens(passage, 2), [1, 4]);
  assert.deepEqual(getCharacterTokens(passage, 4), [4, 5]);
});

test("a family of emoji is one character", () => {
  const bytes = [...new TextEncoder().encode("👩‍👩‍👧")].map((byte) => `\\x${byte.toString(16)}`);
  const passage = layOutText([...bytes, "!"]);
  assert.deepEqual(passage.paragraphs, ["👩‍👩‍👧!"]);
  assert.deepEqual(getCharacterTokens(passage, 7), [0, bytes.length]);
});

test("two characters in three tokens belong together where one token holds of both", () => {
  assert.deepEqual(shown(["\\xe6\\x97", "\\xa5\\xe6", "\\x9c\\xac"]), ["日本", "日本", "日本"]);
  assert.deepEqual(shown(["\\xe6\\x97", "\\xa5", "\\xe6", "\\x9c\\xac"]), ["日", "日", "本", "本"]);
});

test("bytes that are not a character stay escaped", () => {
  assert.deepEqual(shown(["\\xf0", "\\x9f", "z"]), ["\\xf0", "\\x9f", "z"]);
  assert.deepEqual(shown(["\\x41", "\\xff"]), ["\\x41", "\\xff"]);
  assert.deepEqual(shown(["\\xc3\\xa9", "\\xc3\\xa8"]), ["\\xc3\\xa9", "\\xc3\\xa8"], "text about bytes is no bytes");
});

test("an accent joins the letter before it, up to a limit", () => {
  assert.deepEqual(layOutText(["e", "\u0301", "x"]).paragraphs, ["e\u0301x"]);
  assert.deepEqual(getCharacterTokens(layOutText(["e", "\u0301", "x"]), 1), [0, 2]);
  assert.deepEqual(shown(["स", "ा\u0930"]), ["स", "ा\u0930"]);
  const tower = layOutText(["Z", ...Array.from({ length: 100 }, () => "\u0301")]).paragraphs[0] ?? "";
  assert.doesNotMatch(tower, /\p{M}{10}/u);
  assert.deepEqual(layOutText(["1", "\u0301"]).paragraphs, ["1◌\u0301"]);
});

test("a sorted list is searched", () => {
  const values = [0, 3, 3, 7];
  assert.deepEqual([0, 2, 3, 6, 7, 99].map((wanted) => findLastAtMost(values, wanted)), [0, 0, 2, 2, 3, 3]);
});

/** Ten tokens a line, each 10 wide and 20 high in lines of 30; every second line runs from right to left. */
function boxes(token: number): LineBox[] {
  const line = Math.floor(token / 10);
  const column = line % 2 ? 9 - (token % 10) : token % 10;
  const top = 30 * line + 5;
  return [{ left: 10 * column, right: 10 * column + 10, top, bottom: top + 20 }];
}

test("a point is found in its token for any text direction, and in none outside", () => {
  const all = [0, 100] as const;
  for (let token = 0; token < 100; token++) {
    const [box] = boxes(token) as [LineBox];
    assert.equal(findTokenAt(all, [box.left + 1, box.top + 1], boxes, 5), token);
    assert.equal(findTokenAt(all, [box.right - 1, box.bottom + 4], boxes, 5), token);
  }
  assert.equal(findTokenAt(all, [500, 40], boxes, 5), null);
  assert.equal(findTokenAt(all, [5, 27], boxes, 0), null);
  assert.equal(findTokenAt(all, [5, 3000], boxes, 5), null);
  assert.equal(findFirstBelow(all, 30, boxes), 10);
});

test("a token of two lines is found in both", () => {
  const two = (token: number): LineBox[] =>
    token === 9 ? [...boxes(9), ...boxes(10)] : boxes(token < 9 ? token : token + 1);
  assert.equal(findTokenAt([0, 50], [95, 10], two, 5), 9);
  assert.equal(findTokenAt([0, 50], [95, 40], two, 5), 9);
});

test("weights have eight steps, and tiny ones none", () => {
  assert.deepEqual([0, 0.00009, 0.0001, 0.001, 0.29, 0.3, 1, NaN].map((weight) => getStep(weight)), [0, 0, 1, 3, 7, 8, 8, 0]);
  assert.equal(STEPS.length, 8);
});

/** What a browser keeps for all. */
function registry(): Map<string, Set<AbstractRange>> & HighlightRegistryLike {
  return new Map() as Map<string, Set<AbstractRange>> & HighlightRegistryLike;
}

const range = (): AbstractRange => ({}) as AbstractRange;
const make = (): Highlight => new Set<AbstractRange>() as unknown as Highlight;

test("two explorers share highlights, and each removes only its own", () => {
  const shared = registry();
  const [one, other] = [new HighlightSet(shared, make), new HighlightSet(shared, make)];
  const [a, b, c] = [range(), range(), range()];
  one.setByWeight("out", [
    [a, 0.5],
    [b, 0.002],
    [range(), 0.00001],
  ]);
  other.setByWeight("out", [[c, 0.9]]);
  assert.deepEqual([...shared.keys()].sort(), ["attnscope-out-3", "attnscope-out-8"]);
  assert.equal(shared.get("attnscope-out-8")?.size, 2);
  one.clear();
  assert.deepEqual([...shared.keys()], ["attnscope-out-8"]);
  assert.deepEqual([...((shared as Map<string, Set<AbstractRange>>).get("attnscope-out-8") ?? [])], [c]);
  other.setByWeight("out", []);
  assert.equal(shared.size, 0);
});

test("where the browser cannot highlight, marking does nothing", () => {
  const marks = new HighlightSet(null, make);
  marks.set("own", [range()]);
  marks.clear();
});

const one = { cross: false, offset: 0, queries: 10, keys: 10 };
const behind = { cross: false, offset: 4, queries: 6, keys: 10 };
const two = { cross: true, offset: 3, queries: 7, keys: 10 };

test("in one text a token is both a query and a key", () => {
  assert.deepEqual(getPinnedPositions(one, { pinQuery: 3, pinKey: null }), { query: 3, key: 3 });
  assert.deepEqual(getPinnedPositions(one, { pinQuery: null, pinKey: 3 }), { query: 3, key: 3 });
  assert.deepEqual(getPinnedPositions(one, { pinQuery: 5, pinKey: 3 }), { query: 5, key: 3 });
  assert.deepEqual(getPinnedPositions(one, { pinQuery: null, pinKey: null }), { query: null, key: null });
  assert.deepEqual(createPins(one, "key", 4), { pinQuery: 4, pinKey: 4 });
});

test("tokens from the KV cache are only keys", () => {
  assert.deepEqual(getPinnedPositions(behind, { pinQuery: 1, pinKey: null }), { query: 5, key: 5 });
  assert.deepEqual(getPinnedPositions(behind, { pinQuery: null, pinKey: 3 }), { query: null, key: 3 });
  assert.deepEqual(createPins(behind, "key", 3), { pinQuery: null, pinKey: 3 });
  assert.deepEqual(createPins(behind, "key", 4), { pinQuery: 0, pinKey: 4 });
  const links = { span: [1, 2] as [number, number], total: 1, count: 2, links: [[0, 1, 0.5]] as Links["links"] };
  assert.deepEqual(shiftLinks(behind, "query", links), { ...links, span: [5, 6] });
  assert.deepEqual(shiftLinks(behind, "key", links), { ...links, links: [[4, 5, 0.5]] });
});

test("in cross-attention each side has its own pins", () => {
  assert.deepEqual(getPinnedPositions(two, { pinQuery: 1, pinKey: null }), { query: 1, key: null });
  assert.deepEqual([createPins(two, "query", 1), createPins(two, "key", 2)], [{ pinQuery: 1 }, { pinKey: 2 }]);
});

test("of a very long text a window is shown, and stays while it contains the position", () => {
  assert.deepEqual(chooseWindow(1000, 900, [0, 0]), [0, 1000]);
  assert.deepEqual(chooseWindow(1_000_000, 10, [0, 0]), [0, MAX_TOKENS]);
  assert.deepEqual(chooseWindow(1_000_000, 999_999, [0, MAX_TOKENS]), [1_000_000 - MAX_TOKENS, 1_000_000]);
  const [from, to] = chooseWindow(1_000_000, 500_000.5, [0, MAX_TOKENS]);
  assert.deepEqual([from, to - from], [500_000 - MAX_TOKENS / 2, MAX_TOKENS]);
  assert.deepEqual(chooseWindow(1_000_000, from + 1, [from, to]), [from, to]);
});

test("turns of a chat are found with their roles, whichever way the markers are split into tokens", () => {
  const whole = ["<|im_start|>", "user", "\n", "Hi", "<|im_end|>", "\n", "<|im_start|>", "assistant", "\n", "Hello"];
  const { turns, control } = findTurns(whole);
  assert.deepEqual(turns, [
    { start: 0, role: "user" },
    { start: 6, role: "assistant" },
  ]);
  assert.deepEqual(
    control.map(([start, stop]) => whole.slice(start, stop).join("")),
    ["<|im_start|>user", "<|im_start|>", "<|im_end|>", "<|im_start|>assistant", "<|im_start|>"],
  );
  const split = ["A", "\n<", "|im", "_start", "|>", "sys", "tem", "\n"];
  assert.deepEqual(findTurns(split).turns, [{ start: 1, role: "system" }]);
  assert.deepEqual(findTurns(["a < b", " | c > d"]).turns, []);
  const layout = layOutText(whole, new Set(turns.map(({ start }) => start)));
  assert.deepEqual(layout.begins, [0, 6, 10]);
  assert.equal(layout.starts[6], layout.paragraphs[0]?.length, "tokens are where their paragraph begins");
});

test("code is told from prose by its lines", () => {
  assert.ok(isCode(["def f(x):\n    if x:\n        return 1\n    return 2\n"]));
  assert.ok(isCode(["int main() {\n", "puts(1);\nreturn 0;\n", "}\n"]));
  assert.ok(!isCode(["One.\n\nTwo: this is so.\n\n  Three.\n\nFour.\n\nFive."]));
  assert.ok(!isCode(["x = 1;"]), "one line is not enough to tell");
});

test("links of a span are what its keys receive together, and what its queries give on average", () => {
  const all = [
    { span: [4, 5] as [number, number], total: 1, count: 9, links: [[7, 8, 0.5], [9, 10, 0.1]] as [number, number, number][] },
    { span: [5, 6] as [number, number], total: 2, count: 8, links: [[9, 10, 0.7]] as [number, number, number][] },
  ];
  assert.deepEqual(combineLinks("key", all), { span: [4, 6], total: 3, count: 9, links: [[9, 10, 0.7999999999999999], [7, 8, 0.5]] });
  assert.deepEqual(combineLinks("query", all).links.map(([start, , weight]) => [start, Math.round(weight * 1000)]), [[9, 400], [7, 250]]);
  assert.deepEqual(combineLinks("key", all.slice(0, 1)), all[0]);
});
