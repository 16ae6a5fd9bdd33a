import assert from "node:assert/strict";
import { test } from "node:test";

import { listLabels } from "../src/evidence/head_section";
import { findPassage } from "../src/evidence/passage";
import { describeAnswer, describeSurprise } from "../src/evidence/predictions";
import { listSteps } from "../src/evidence/why_weight";
import { formatMeasure } from "../src/format_numbers";
import { computeLayout } from "../src/map/map_layout";

const TEXTS = ["The", " password", " of", " the", " old", " gate", " is", " co", "balt", ".", "\n\n", "Nobody", " knew", " it", "."];
const getText = (position: number): string | undefined => TEXTS[position];

test("a passage has the marked tokens and words on both sides, on one line", () => {
  assert.deepEqual(findPassage(getText, 7, 8, 100), { before: "The password of the old gate is ", marked: "cobalt", after: ". Nobody knew it." });
  assert.deepEqual(findPassage(getText, 0, 0, 12), { before: "", marked: "The", after: " password of…" });
  assert.deepEqual(findPassage(getText, 10, 10, 12), { before: "…is cobalt.", marked: "⏎⏎", after: "Nobody knew…" });
  assert.equal(findPassage(getText, 40, 40, 12), null, "not loaded");
});

test("a passage shows what is invisible, and cuts no character in two", () => {
  const texts = ["a\u202eb", "🦊🦊🦊🦊🦊🦊", "\u200b", "x"];
  const found = findPassage((position) => texts[position], 2, 2, 4);
  assert.deepEqual(found, { before: "…🦊🦊🦊🦊", marked: "\\u{200b}", after: "x" });
  assert.ok(findPassage((position) => texts[position], 1, 1, 9)?.before.includes("\\u{202e}"));
});

test("the steps of a weight lead from the dot product to the weight", () => {
  const why = { query: 3, key: 1, weight: 0.37158, dot: 33.2, scale: 0.125, score: 4.15, bias: null, masked: false, log_sum_exp: 5.14, products: [], frequencies: null, value_norm: 1.5 };
  assert.deepEqual(listSteps(why), [
    ["q · k", "33.2"],
    ["× scale", "33.2 × 0.125 = 4.15"],
    ["mask", "allowed"],
    ["softmax", "exp(4.15 − 5.14) = 0.372"],
    ["× |v|", "0.372 × 1.5 = 0.557"],
  ]);
  const biased = listSteps({ ...why, bias: -0.5, score: 3.65, value_norm: null });
  assert.deepEqual(biased[2], ["+ position bias", "4.15 − 0.5 = 3.65"]);
  assert.deepEqual(biased.at(-1), ["× |v|", "values were not recorded"]);
  assert.deepEqual(listSteps({ ...why, weight: 0, masked: true }).slice(2, 4), [["mask", "masked: the score is −∞"], ["× |v|", "0 × 1.5 = 0"]]);
});

test("it is said whether the model predicts the pinned key", () => {
  const at = { surprise: 2.5, rank: 12, next: [[" the", 0.5], [" cobalt", 0.25], [" ", 0.1]] as [string, number][] };
  assert.equal(describeAnswer(at, ["cobalt"]), "The model predicts the pinned key 2nd, with 25%.");
  assert.equal(describeAnswer(at, ["old", " the"]), "The model predicts “the” of the pinned span, with 50%.");
  assert.equal(describeAnswer(at, ["gate"]), "The model does not predict the pinned key: it is not among the 3 most likely tokens.");
  assert.match(describeAnswer(at, ["\n"]), /does not predict/, "white space alone is no word");
  assert.equal(describeSurprise(at, undefined, " is"), "This token had a surprise of 2.5 nats, rank 12.");
});

test("small measures are written as small weights are", () => {
  assert.deepEqual([0, 3.24e-7, -0.0004, 0.25, 1234].map(formatMeasure), ["0", "3.2×10⁻⁷", "−4.0×10⁻⁴", "0.25", "1,234"]);
});

test("the names of keys take height that the matrix does not use", () => {
  const matrix = { queries: 13, keys: 13, has_texts: true };
  const narrow = computeLayout(420, 640, matrix, 9);
  assert.ok(narrow.topNames.height >= 14 + 6 * 9, "a name of nine letters fits");
  assert.ok(narrow.plot.height >= narrow.plot.width, "and the matrix is as large as before");
  assert.equal(computeLayout(1200, 440, matrix, 9).topNames.height, Math.round(440 * 0.12), "none where the height limits the matrix");
});

test("a head that was chosen for a link says so, also where no label fits", () => {
  const far = { layer: 21, head: 8, label: "far", meaning: "From afar.", score: 1, query: 9, key: 1, weight: 1 };
  const mixed = { name: "mixed", meaning: "Nothing." };
  const sink = { name: "sink", meaning: "The first token." };
  const list = (...labels: (typeof mixed)[]): string[] => listLabels(labels, far).map(({ name }) => name);
  assert.deepEqual(list(mixed), ["far"]);
  assert.deepEqual(list(sink), ["far", "sink"]);
  assert.deepEqual(listLabels([sink], { ...far, label: "sink" }), [sink]);
  assert.deepEqual(listLabels([mixed], null), [mixed]);
});
