import assert from "node:assert/strict";
import { test } from "node:test";

import { load } from "./load.js";

const { timeAxis, gutterFor } = load(["common.js", "time_axis.js"], ["timeAxis", "gutterFor"]);

/** 100 microseconds on 190 pixels, of which a gutter takes 132 and the end 8: 2 microseconds per pixel. */
function axisOf(window) {
  const sent = { span_us: 100, window };
  const model = { get: (name) => sent[name], set: (name, value) => { sent[name] = value; }, save_changes: () => {} };
  return [timeAxis(model, () => ({ width: 190, redraw: () => {} }), () => ["gpu:0"]), sent];
}

test("a time has a place right of the gutter, and a place a time", () => {
  const [axis] = axisOf([]);
  assert.deepEqual(axis.range, [0, 100]);
  assert.equal(axis.xOf(40), 152); // 132 + 40 / 2
  assert.equal(axis.timeAt(152), 40);
});

test("a window that is no window shows the whole step", () => {
  assert.deepEqual(axisOf([30, 30])[0].range, [0, 100]);
  assert.deepEqual(axisOf([30, 40])[0].range, [30, 40]);
});

test("moving stops at both ends, and the other views are told", () => {
  const [axis, sent] = axisOf([20, 70]); // 1 microsecond per pixel
  axis.move(-10);
  assert.deepEqual(sent.window, [30, 80]);
  axis.move(-1000);
  assert.deepEqual(sent.window, [50, 100]);
  axis.shift(-1000);
  assert.deepEqual(sent.window, [0, 50]);
});

test("keys, rectangles and fit change the window", () => {
  const [axis, sent] = axisOf([20, 70]);
  axis.keys.ArrowRight(); // a tenth of 50
  assert.deepEqual(sent.window, [25, 75]);
  axis.rectangle(142, 0, 172); // 25 + 10 to 25 + 40
  assert.deepEqual(sent.window, [35, 65]);
  axis.keys["-"](); // 1.4 times 30 about 50
  assert.deepEqual(sent.window, [29, 71]);
  axis.fit();
  assert.deepEqual(sent.window, [0, 100]);
});

test("the gutter holds the longest name, up to a third of a screen", () => {
  assert.equal(gutterFor([]), 132);
  assert.equal(gutterFor(["gpu:0", "x".repeat(20)]), 202); // 74 + 6.4 * 20
  assert.equal(gutterFor(["x".repeat(200)]), 320);
});
