import assert from "node:assert/strict";
import { test } from "node:test";
import type { WatchAlert, WatchInfo } from "../src/watch/protocol";
import { filterAlerts } from "../src/watch/side_panel";
import { chooseLabelledColumns, countColumns, findCell, findColumn, getCellBox, layoutTable, LEFT, stepCell, TOP } from "../src/watch/table_layout";
import { createScale, getTicks, toEntry, toShare } from "../src/watch/value_scale";
import { getChosenRow, getRows, getStatistic, readView, writeView } from "../src/watch/view_state";
import { describeTable } from "../src/watch/watch_page";

const LOGIT = { name: "max_logit", meaning: "the largest logit", lowest: false };
const ENTROPY = { name: "entropy", meaning: "mean entropy", lowest: true };
const info: WatchInfo = {
  name: "a run",
  steps: { count: 100, first: [1], last: [5000] },
  statistics: [LOGIT, ENTROPY],
  heads: [
    { layer: "layers.0", head: 0, name: "0.0" },
    { layer: "layers.0", head: 1, name: "0.1" },
    { layer: "layers.1", head: 0, name: "1.0" },
  ],
  order: [2, 0, 1],
  num_alerts: 0,
  alerts: [],
};

test("the worst head is chosen, unless the address names another that is there", () => {
  const view = readView("");
  assert.equal(getChosenRow(info, view), 2);
  assert.deepEqual(getRows(info, view), [2, 0, 1]);
  assert.deepEqual(getRows(info, { ...view, order: "layer" }), [0, 1, 2]);
  assert.equal(getChosenRow(info, readView("#head=0.1")), 1);
  assert.equal(getChosenRow(info, readView("#head=9.9")), 2);
  assert.equal(getChosenRow({ ...info, heads: [], order: [] }, view), null);
});

test("a view survives its address, and nonsense does not matter", () => {
  const view = { statistic: "entropy", order: "layer", head: "1.0" } as const;
  assert.deepEqual(readView(writeView(view)), view);
  assert.equal(writeView(readView("")), "#");
  assert.deepEqual(readView("#head=<b>&order=upside-down"), { statistic: "", order: "worst", head: "" });
  assert.equal(getStatistic(info, readView("#statistic=beauty")), LOGIT);
});

test("logits are on a logarithmic scale that begins at 0, shares end at 1, low entropy is bright", () => {
  const logits = createScale(LOGIT, { values: [[-3, 0, null, 99]] });
  assert.deepEqual([-3, 0, 9, 99, 200].map((value) => toShare(logits, value)), [0, 0, 0.5, 1, 1]);
  assert.deepEqual([0, 99].map((value) => toEntry(logits, value)), [0, 255]);
  const entropies = createScale(ENTROPY, { values: [[0, 4]] });
  assert.deepEqual([0, 2, 4].map((value) => toEntry(entropies, value)), [255, 128, 0]);
  assert.equal(createScale({ name: "collapsed", meaning: "", lowest: false }, { values: [[0.1]] }).highest, 1);
  assert.equal(createScale(LOGIT, { values: [[null]] }).highest, 1);
});

test("ticks begin at 0, end at the largest value, and keep their distance from it", () => {
  const ticks = getTicks(createScale(LOGIT, { values: [[630]] }));
  assert.deepEqual(ticks.map(([, text]) => text), ["0", "1", "3", "10", "30", "100", "630"]);
  assert.deepEqual(getTicks(createScale(ENTROPY, { values: [[4]] })).map(([, text]) => text), ["0", "1", "2", "3", "4"]);
});

test("cells are found where they are drawn, also when the rows have scrolled", () => {
  const layout = layoutTable(LEFT + 8 + 200, 60, 40, 50);
  assert.deepEqual([layout.rowHeight, layout.columnWidth], [13, 4]);
  for (const scroll of [0, 100])
    for (const cell of [{ row: 9, column: 0 }, { row: 39, column: 49 }]) {
      const box = getCellBox(layout, cell, scroll);
      if (box.top < TOP) continue;
      assert.deepEqual(findCell(layout, box.left + 1, box.top + 1, scroll), cell);
    }
  assert.equal(findCell(layout, LEFT - 1, TOP + 1, 0), null);
  assert.equal(findCell(layout, LEFT + 201, TOP + 1, 0), null);
  assert.equal(findCell(layout, LEFT + 1, TOP - 1, 0), null);
  assert.equal(findCell(layoutTable(10, 10, 3, 3), LEFT + 1, TOP + 1, 0), null);
});

test("a step is found in its column, and nowhere between columns", () => {
  const steps = [[1, 50], [100, 150], [200, 200]] as const;
  assert.deepEqual([0, 1, 50, 75, 120, 200, 201].map((step) => findColumn(steps, step)), [null, 0, 0, null, 1, 2, null]);
  assert.equal(findColumn([], 1), null);
});

test("keys stay inside the table", () => {
  const layout = layoutTable(500, 500, 3, 5);
  assert.deepEqual(stepCell(layout, { row: 0, column: 0 }, "ArrowUp"), { row: 0, column: 0 });
  assert.deepEqual(stepCell(layout, { row: 1, column: 4 }, "ArrowDown"), { row: 2, column: 4 });
  assert.deepEqual(stepCell(layout, { row: 1, column: 2 }, "End"), { row: 1, column: 4 });
  assert.equal(stepCell(layout, { row: 1, column: 2 }, "x"), null);
});

test("columns have a pixel each, and labels keep their distance", () => {
  assert.equal(countColumns(LEFT + 8 + 300), 300);
  assert.equal(countColumns(10), 1);
  assert.equal(countColumns(1e6), 4096);
  assert.deepEqual(chooseLabelledColumns(layoutTable(LEFT + 8 + 100, 100, 1, 50), 40), [0, 20, 40]);
  assert.deepEqual(chooseLabelledColumns(layoutTable(100, 100, 0, 0), 40), []);
});

test("the page says what a column of several steps shows", () => {
  const table = { steps: [[1, 50]] as [number, number][], values: [], not_finite: [] };
  assert.match(describeTable(info, readView(""), table), /100 measured steps at most: the colour is the largest/);
  assert.match(describeTable(info, readView("#statistic=entropy"), table), /Bright is low.*the lowest of them/);
  assert.doesNotMatch(describeTable({ ...info, steps: { ...info.steps, count: 1 } }, readView(""), table), /column/);
});

test("alerts are filtered by head or by whether they have a map", () => {
  const make = (number: number, row: number, has_trace: boolean): WatchAlert => ({
    ...{ number, row, has_trace, step: 1, rule: "", reason: "", sequence: 0, query: 0, key: 0 },
  });
  const alerts = [make(0, 1, false), make(1, 2, true), make(2, 1, true)];
  assert.deepEqual(filterAlerts(alerts, "head", 1).map(({ number }) => number), [0, 2]);
  assert.deepEqual(filterAlerts(alerts, "map", 1).map(({ number }) => number), [1, 2]);
  assert.equal(filterAlerts(alerts, "all", 1).length, 3);
});
