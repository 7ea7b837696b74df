import assert from "node:assert/strict";
import { test } from "node:test";

import { bytes, lines, load, model } from "./load.js";

const { readScene, readPaint, readMarks, bounds, framesAround, frameAtPoint, arrowAt, arrowFacts, devicesOf, factsOf, titleOf, minimapOf, boxTowards } = load(
  ["common.js", "graph_data.js", "graph_draw.js"],
  ["readScene", "readPaint", "readMarks", "bounds", "framesAround", "frameAtPoint", "arrowAt", "arrowFacts", "devicesOf", "factsOf", "titleOf", "minimapOf", "boxTowards"]);

// A closed scope (10) beside an open one (20) with op 11 in it; an arrow from the scope to the frame, and one straight down.
const scene = readScene(model({
  nodes: {
    id: bytes("i4", [10, 11, 12]), kind: bytes("u1", [0, 1, 1]), x: bytes("f4", [0, 100, 0]), y: bytes("f4", [0, 0, 80]),
    width: bytes("f4", [40, 20, 20]), height: bytes("f4", [10, 10, 10]), time: bytes("f8", [1500, 2, 3]),
    persistent: bytes("f8", [2000, 10, 0]), made: bytes("f8", [500, 0, 20]), size: bytes("i4", [3, 1, 1]), parent: bytes("i4", [0, 20, 0]),
    frame: bytes("i4", [20]), frame_box: bytes("f4", [100, 0, 60, 40]), frame_parent: bytes("i4", [0]), frame_size: bytes("i4", [1]),
    source: bytes("i4", [10, 10]), target: bytes("i4", [20, 12]), bytes: bytes("f8", [4000, 8]), tensors: bytes("i4", [40, 1]),
    pointer: bytes("i4", [0, 2, 4]), points: bytes("f4", [20, 0, 70, 0, 0, 5, 0, 75]), upright: bytes("u1", [0, 1]),
    stroke: bytes("f4", [4, 0.8]), faint: bytes("f4", [1]),
    names: lines("net/layer/7", "net/a", "b"), labels: lines("7", "a", "b"), notes: lines("3 ops", "", ""),
    types: lines("", "MatMul", "Add"), forward: lines("", "", "net/a"), frame_names: lines("net/open"), frame_labels: lines("open"),
  },
}));
const devices = ["gpu:0", "gpu:1"];

function painted(traits) {
  return readPaint(model({ paint: traits }), 2, 3);
}

const paint = painted({
  device: bytes("u1", [0, 1, 1]), time: bytes("f8", [2500, 4, 6]), notes: lines("3 ops · 2.50 ms", "", ""), critical: bytes("u1", [0, 1, 1]), sent: bytes("f8", [0, 8, 0]), received: bytes("f8", [0, 0, 8]),
  mixed: bytes("i4", [0]), share: bytes("f4", [0.75, 0.25]), crossing: bytes("f8", [1000, -1]), critical_arrow: bytes("u1", [1, 0]),
});

test("boxes and frames are found by id", () => {
  assert.deepEqual([scene.at.get(12), scene.frameAt.get(20)], [2, 0]);
  assert.deepEqual([titleOf(scene, 11), titleOf(scene, 20), titleOf(scene, 0)], ["net/a", "net/open", "graph"]);
});

test("a paint fits when it is of as many boxes", () => {
  assert.equal(paint.fits, true);
  assert.equal(painted({ device: bytes("u1", [0]) }).fits, false);
});

test("marks of another scene count nothing", () => {
  assert.equal(readMarks(model({ marks: { chosen: bytes("i4", [0, 2, 0]), hits: bytes("i4", [1, 0, 0]) } }), 3).any, true);
  assert.deepEqual([...readMarks(model({ marks: { chosen: bytes("i4", [5]) } }), 3).chosen], [0, 0, 0]);
});

test("the box around everything holds frames and arrows", () => {
  assert.deepEqual(bounds(scene), [-20, -20, 130, 85]);
  assert.deepEqual(bounds(scene, [20]), [70, -20, 130, 20]);
  assert.deepEqual(bounds(scene, []), [0, 0, 1, 1]);
});

test("the frames around a box are its breadcrumbs", () => {
  assert.deepEqual(framesAround(scene, 11), [20]);
  assert.deepEqual(framesAround(scene, 10), []);
  assert.deepEqual([frameAtPoint(scene, 100, 15), frameAtPoint(scene, 0, 0)], [20, -1]);
});

test("an arrow is hit along its curve, and tells tensors and bytes", () => {
  assert.deepEqual([arrowAt(scene, 45, 2, 5), arrowAt(scene, 1, 40, 5), arrowAt(scene, 45, 30, 5)], [0, 1, -1]);
  const facts = Object.fromEntries(arrowFacts(scene, paint, 0));
  assert.deepEqual([facts.tensors, facts.bytes, facts["of that to another device"]], ["40", "4.00 kB", "1.00 kB"]);
  assert.equal(Object.fromEntries(arrowFacts(scene, paint, 1))["of that to another device"], "");
});

test("the minimap is there while something is out of sight", () => {
  assert.equal(minimapOf(scene, { x: 100, y: 100, k: 1 }, [400, 300]), null);
  const [left, top, width] = minimapOf(scene, { x: 100, y: 100, k: 4 }, [400, 300]);
  // 150 by 105 world pixels into at most 130 by 91: 130 wide, 10 from the right and lower border.
  assert.deepEqual([left, Math.round(top), width], [400 - 130 - 10, 300 - 91 - 10, 130]);
});

test("a box is on a device, or shared", () => {
  assert.equal(devicesOf(paint, devices, 0), "gpu:0 75%, gpu:1 25%");
  assert.equal(devicesOf(paint, devices, 1), "gpu:1");
  assert.equal(devicesOf(painted({}), devices, 1), "");
});

test("what is said of a box", () => {
  const facts = Object.fromEntries(factsOf(scene, paint, devices, 1));
  assert.deepEqual([facts.type, facts.device, facts.time, facts.sends, facts.receives], ["MatMul", "gpu:1", "4.00 us", "8 B", ""]);
  assert.equal(Object.fromEntries(factsOf(scene, painted({}), devices, 1)).time, "2.00 us"); // of the profile
  assert.deepEqual([paint.notes[0], scene.notes[0]], ["3 ops · 2.50 ms", "3 ops"]);
  const box = Object.fromEntries(factsOf(scene, paint, devices, 0));
  assert.deepEqual([box.holds, box.keeps, box["makes in turn"]], ["3 ops", "2.00 kB all the time", "0.50 kB, not all held at once"]);
  assert.equal(Object.fromEntries(factsOf(scene, paint, devices, 2))["backward of"], "net/a");
});

test("arrows go to the nearest box ahead, rather straight than aside", () => {
  // 0 at the origin, 1 to the right, 2 nearer but far aside, 3 below.
  const boxes = { id: [10, 11, 12, 13], x: [0, 100, 60, 0], y: [0, 0, 90, 50] };
  assert.equal(boxTowards(boxes, 0, 1, 0), 1);
  assert.equal(boxTowards(boxes, 0, 0, 1), 3);
  assert.equal(boxTowards(boxes, 1, -1, 0), 0);
  assert.equal(boxTowards(boxes, 0, -1, 0), -1); // nothing there
  assert.equal(boxTowards(boxes, -1, 1, 0), 0); // from nowhere: the first in that direction
});
