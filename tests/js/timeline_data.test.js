import assert from "node:assert/strict";
import { test } from "node:test";

import { bytes, load, model } from "./load.js";

const { readBars, firstVisible, coverPixel } = load(["common.js", "timeline_data.js"], ["readBars", "firstVisible", "coverPixel"]);

// Lane 0 has bars 0-4, 5-6, 9-12, lane 1 none, lane 2 one bar 3-10.
const bars = readBars(model({
  bars: { start: bytes("f8", [0, 5, 9, 3]), end: bytes("f8", [4, 6, 12, 10]), pointer: bytes("i4", [0, 3, 3, 4]),
    longest: bytes("f8", [4, 0, 7]) },
}));

test("bars are columns, and those that were not sent are empty", () => {
  assert.deepEqual([...bars.start], [0, 5, 9, 3]);
  assert.deepEqual([...bars.pointer], [0, 3, 3, 4]);
  assert.equal(bars.label.length, 0);
});

test("the first visible bar is the first that may reach beyond the time", () => {
  assert.equal(firstVisible(bars, 0, 0), 0);
  assert.equal(firstVisible(bars, 0, 4), 0); // 4 - 4 = 0: bar 0 starts then
  assert.equal(firstVisible(bars, 0, 4.5), 1);
  assert.equal(firstVisible(bars, 0, 100), 3); // beyond the lane's last
  assert.equal(firstVisible(bars, 1, 0), 3); // an empty lane
  assert.equal(firstVisible(bars, 2, 10), 3);
});

test("no bar that is seen is left out", () => {
  for (let time = 0; time < 14; time += 0.5) {
    const first = firstVisible(bars, 0, time);
    for (let i = bars.pointer[0]; i < bars.pointer[1]; i += 1) if (bars.end[i] > time) assert.ok(i >= first);
  }
});

test("a chosen bar is seen among faint ones in one pixel, in whatever order they come", () => {
  for (const order of [[true, false, true], [false, true, true], [true, true, false]]) {
    const coverage = new Float32Array(1);
    const cover = new Int16Array([-1]);
    for (const faint of order) coverPixel(coverage, cover, 0, 0.25, faint ? 5 : 3, faint);
    assert.deepEqual([cover[0], coverage[0]], [3 * 2, 0.25]);
  }
});
