import assert from "node:assert/strict";
import { test } from "node:test";

import { load } from "./load.js";

const { spotsAt, ticks, upperEnd } = load(["common.js", "time_axis.js", "chart_view.js"], ["spotsAt", "ticks", "upperEnd"]);

/** Two marks in one place, and one 7 pixels below, whose area of 9 pixels covers theirs. */
const spots = [{ x: 50, y: 50, id: 0, text: "a" }, { x: 50.2, y: 50, id: 1, text: "b" }, { x: 50, y: 57, id: 2, text: "c" }];
const idsAt = (x, y) => spotsAt(spots, x, y).map((spot) => spot.id);

test("a click means the nearest mark, however areas cover each other", () => {
  assert.deepEqual(idsAt(50, 57), [2]);
  assert.deepEqual(idsAt(50, 55), [2]);
});

test("marks in one place are meant together", () => {
  assert.deepEqual(idsAt(50, 50), [0, 1]);
  assert.deepEqual(idsAt(48, 45), [0, 1]);
});

test("an axis of zeros, or of nothing, has ticks", () => {
  const chart = (y) => ({ series: [{ y }], rules: [{ y: 0 }] });
  for (const y of [[0, 0], [null, NaN], []]) assert.ok(ticks(0, upperEnd(chart(y)), 3).length > 1, String(y));
  assert.equal(upperEnd(chart([2, 4])), 4 * 1.06);
});
