import assert from "node:assert/strict";
import { test } from "node:test";
import { DEFAULT_STATE, readAddress, writeAddress } from "../src/state";
import { formatValue, toHeight, toPosition } from "../src/survey/histogram";
import { formatFlowingText } from "../src/survey/passages";
import type { SurveyInfo } from "../src/survey/protocol";
import { fitToSurvey, getStatistic, getSurveyHeadName, withStatistic } from "../src/survey/survey_scene";

const info: SurveyInfo = {
  name: "a survey",
  model: "small",
  corpus: { documents: 1, passages: 1, tokens: 9 },
  problems: 0,
  statistics: [
    { name: "sink", meaning: "weight on the first token" },
    { name: "effective_keys", meaning: "" },
  ],
  meanings: {},
  layers: [
    { name: "a", numbers: [0, 1] },
    { name: "b", numbers: [3] },
  ],
  heads: [],
  reader: { name: "small", ready: false, problem: null },
};

test("a value is placed at its bar, for even and for doubling edges", () => {
  assert.equal(toPosition([0, 0.5, 1], 0.25), 0.25);
  assert.equal(toPosition([0, 0.5, 1], 1), 1);
  assert.equal(toPosition([0, 0.5, 1], 7), 1);
  assert.equal(toPosition([0, 1, 2, 4], 3), 2.5 / 3);
  assert.equal(toPosition([0, 1, 2, 4], -1), 0);
});

test("heights are square roots, at most 1", () => {
  assert.deepEqual([0, 0.01, 0.25, 1, 2].map(toHeight), [0, 0.1, 0.5, 1, 1]);
});

test("tiny shares and large numbers are both short", () => {
  assert.deepEqual([0, 0.00000012, 0.0231, 1234.5].map(formatValue), ["0", "1.2×10⁻⁷", "0.0231", "1,235"]);
});

test("an address has the statistic, and an unknown one becomes the first", () => {
  const state = { ...DEFAULT_STATE, ...withStatistic(DEFAULT_STATE, "effective_keys") };
  assert.equal(getStatistic(readAddress(writeAddress(state)), info), "effective_keys");
  assert.equal(getStatistic({ ...state, ...withStatistic(state, "beauty") }, info), "sink");
  assert.equal(withStatistic(state, "sink").others.length, 1);
});

test("what a survey does not have is reset", () => {
  const requested = { ...DEFAULT_STATE, layer: 9, head: 9, order: "-beauty", axes: ["beauty", "sink"] as const };
  const shown = fitToSurvey(requested, info);
  assert.deepEqual([shown.layer, shown.head, shown.order, shown.axes], [1, 0, "", ["sink", "effective_keys"]]);
  assert.equal(fitToSurvey({ ...requested, order: "-sink" }, info).order, "-sink");
});

test("a head has its index in the model", () => {
  assert.equal(getSurveyHeadName(info, [1, 0]), "L1H3");
});

test("a passage is formatted in one line or in several, with invisible characters shown", () => {
  assert.equal(formatFlowingText("one\r\ntwo\n\nthree", true), "one\ntwo\n\nthree");
  assert.equal(formatFlowingText("one\ntwo", false), "one ⏎ two");
  assert.equal(formatFlowingText("a\u202eb", false), "a\\u{202e}b");
  assert.equal(formatFlowingText("", false), "");
});
