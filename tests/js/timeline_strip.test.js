import assert from "node:assert/strict";
import { test } from "node:test";

import { load } from "./load.js";

const { stripPart, draggedWindow, stripBands } = load(["common.js", "timeline_strip.js"], ["stripPart", "draggedWindow", "stripBands"]);

test("the ends of the window are gripped from both sides, between them it moves", () => {
  assert.deepEqual([95, 104, 106, 196, 205, 206, 10].map((x) => stripPart(x, 100, 200)), ["start", "start", "move", "end", "end", "bring", "bring"]);
  assert.equal(stripPart(101, 100, 103), "start"); // a window narrower than its grips: the nearer end
  assert.equal(stripPart(103, 100, 103), "end");
});

test("a dragged window keeps its width and stays inside", () => {
  assert.deepEqual(draggedWindow("move", [20, 30], 5, 100), [25, 35]);
  assert.deepEqual(draggedWindow("move", [20, 30], 500, 100), [90, 100]);
  assert.deepEqual(draggedWindow("move", [20, 30], -500, 100), [0, 10]);
});

test("a dragged end stays inside and leaves something of the window", () => {
  assert.deepEqual(draggedWindow("start", [20, 30], -50, 100), [0, 30]);
  assert.deepEqual(draggedWindow("end", [20, 30], 500, 100), [20, 100]);
  assert.ok(draggedWindow("start", [20, 30], 50, 100)[0] < 30 && draggedWindow("end", [20, 30], -50, 100)[1] > 20);
});

test("many devices share rows of two pixels, so that each is seen", () => {
  assert.deepEqual(stripBands(3), [[0, 1], [1, 2], [2, 3]]);
  const bands = stripBands(64); // 24 pixels: 12 rows
  assert.equal(bands.length, 12);
  assert.deepEqual([bands[0][0], bands[11][1]], [0, 64]);
  bands.slice(1).forEach(([first], k) => assert.equal(first, bands[k][1]));
  assert.deepEqual(stripBands(0), []);
});
