import assert from "node:assert/strict";
import { test } from "node:test";
import { alignByPosition, createAlignment, findCommonRuns, MAX_TOKENS, type Run } from "../src/compare/alignment";

const letters = (text: string): string[] => Array.from(text);
const length = (runs: readonly Run[]): number => runs.reduce((sum, run) => sum + run.count, 0);

/** The plainest definition there is. */
function longest(one: string, other: string): number {
  if (one === "" || other === "") return 0;
  if (one[0] === other[0]) return 1 + longest(one.slice(1), other.slice(1));
  return Math.max(longest(one.slice(1), other), longest(one, other.slice(1)));
}

test("texts that are equal are one run, texts without a common token are none", () => {
  assert.deepEqual(findCommonRuns(letters("abc"), letters("abc")), [{ one: 0, other: 0, count: 3 }]);
  assert.deepEqual(findCommonRuns(letters("abc"), letters("xyz")), []);
  assert.deepEqual(findCommonRuns([], letters("xyz")), []);
});

test("a token more in the middle moves the rest by one", () => {
  assert.deepEqual(findCommonRuns(letters("the cat sat"), letters("the fat cat sat")), [
    { one: 0, other: 0, count: 4 },
    { one: 4, other: 8, count: 7 },
  ]);
});

test("runs are common subsequences, in order, and of the greatest length there is", () => {
  let seed = 7;
  const random = (below: number): number => (seed = (seed * 48271) % 2147483647) % below;
  const text = (): string => Array.from({ length: random(9) }, () => "abc"[random(3)] ?? "").join("");
  for (let time = 0; time < 300; time++) {
    const [one, other] = [text(), text()];
    const runs = findCommonRuns(letters(one), letters(other));
    assert.equal(length(runs), longest(one, other), `${one} ${other}`);
    let [here, there] = [0, 0];
    for (const run of runs) {
      assert.ok(run.one >= here && run.other >= there && run.count > 0);
      assert.equal(one.slice(run.one, run.one + run.count), other.slice(run.other, run.other + run.count));
      [here, there] = [run.one + run.count, run.other + run.count];
    }
    assert.ok(here <= one.length && there <= other.length);
  }
});

test("of equally long ones the one with the fewest runs is taken", () => {
  assert.deepEqual(findCommonRuns(letters("the dog ran"), letters("the old dog ran")), [
    { one: 0, other: 0, count: 4 },
    { one: 4, other: 8, count: 7 },
  ]);
  assert.deepEqual(findCommonRuns(letters("xab"), letters("ayab")), [{ one: 1, other: 2, count: 2 }]);
});

test("partners have the same text, and unmatched tokens have none", () => {
  const [one, other] = [letters("abXcd"), letters("abcYd")];
  const to = createAlignment(findCommonRuns(one, other), 5, 5);
  assert.deepEqual([0, 1, 2, 3, 4].map((position) => to.findPartner(position)), [0, 1, null, 2, 4]);
  assert.deepEqual(to.unmatched, [[2, 3]]);
  assert.deepEqual([0, 1, 2, 3, 4].map((position) => to.invert().findPartner(position)), [0, 1, 3, null, 4]);
  assert.deepEqual(to.invert().unmatched, [[3, 4]]);
});

test("positions map monotonically, and fractions between partners are kept", () => {
  const to = createAlignment(findCommonRuns(letters("abXXXcdZ"), letters("abYcd")), 8, 5);
  assert.equal(to.mapPosition(1.25), 1.25);
  assert.equal(to.mapPosition(5.5), 3.5);
  assert.equal(to.mapPosition(3.5), 2.5);
  assert.equal(to.mapPosition(8), 5);
  for (let place = 0.125; place <= 8; place += 0.125) assert.ok(to.mapPosition(place) >= to.mapPosition(place - 0.125));
  assert.equal(to.invert().mapPosition(3.5), 5.5);
});

test("aligned by position, the rest of the longer text is unmatched", () => {
  const to = alignByPosition(3, 5);
  assert.deepEqual([to.findPartner(2), to.mapPosition(2.5), to.unmatched, to.invert().unmatched, to.invert().findPartner(3)], [2, 2.5, [], [[3, 5]], null]);
});

test("the longest texts are aligned in one run when one is a shift of the other", () => {
  const words = (shift: number): string[] => Array.from({ length: MAX_TOKENS }, (_, place) => `word ${((place + shift) * 31) % 977}`);
  assert.deepEqual(findCommonRuns(words(0), words(3)), [{ one: 3, other: 0, count: MAX_TOKENS - 3 }]);
});
