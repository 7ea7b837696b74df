// Rows sort by a column: numbers by size, texts by letters, and what has no value stands last either way.

import assert from "node:assert/strict";
import { test } from "node:test";
import { load } from "./load.js";

const { headParts, sortedOrder } = load(["common.js", "table_view.js"], ["headParts", "sortedOrder"]);
const rows = [["b", 10], ["a", 9], ["c", null], ["d", 9]].map((keys) => ({ keys }));

test("numbers sort by size, ties stay as they came, and an empty cell stands last", () => {
  assert.deepEqual(sortedOrder(rows, 1, false), [1, 3, 0, 2]);
  assert.deepEqual(sortedOrder(rows, 1, true), [0, 1, 3, 2]);
});

test("texts sort by letters, and no column leaves the rows as they came", () => {
  assert.deepEqual(sortedOrder(rows, 0, false), [1, 0, 2, 3]);
  assert.deepEqual(sortedOrder(rows, 0, true), [3, 2, 0, 1]);
  assert.deepEqual(sortedOrder(rows, -1, true), [0, 1, 2, 3]);
});

test("a head has its unit on the next line, not each of two short words", () => {
  assert.deepEqual(headParts("step time (ms)"), ["step time", " (ms)"]);
  assert.deepEqual(headParts("gap"), ["gap", ""]);
  assert.deepEqual(headParts("peak of each device (GB)"), ["", "peak of each device (GB)"]);
});
