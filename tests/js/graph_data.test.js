import assert from "node:assert/strict";
import { test } from "node:test";

import { bytes, lines, load, model } from "./load.js";

const { readScene, readPaint, groupByColour, bounds, strokeEdges, devicesOf, factsOf } = load(["common.js", "graph_data.js"],
  ["readScene", "readPaint", "groupByColour", "bounds", "strokeEdges", "devicesOf", "factsOf"]);

// A closed scope of three ops beside two ops; edges 0 -> 1 -> 2.
const scene = readScene(model({
  nodes: {
    id: bytes("i4", [10, 11, 12]), kind: bytes("u1", [0, 2, 2]), x: bytes("f4", [0, 100, 200]), y: bytes("f4", [0, 0, 50]),
    width: bytes("f4", [40, 20, 20]), height: bytes("f4", [10, 10, 10]), time: bytes("f8", [1500, 2, 3]),
    memory: bytes("f8", [2000, 10, 0]), size: bytes("i4", [3, 1, 1]), source: bytes("i4", [0, 1]), target: bytes("i4", [1, 2]),
    names: lines("net/layer/7", "net/a", "b"), types: lines("", "MatMul", "Add"), forward: lines("", "", "net/a"),
  },
}));
const devices = ["gpu:0", "gpu:1"];

function painted(traits) {
  return readPaint(model({ paint: traits }), 2, 3);
}

const paint = painted({
  device: bytes("u1", [0, 1, 1]), critical: bytes("u1", [0, 1, 1]), sent: bytes("f8", [0, 8, 0]), received: bytes("f8", [0, 0, 8]),
  mixed: bytes("i4", [0]), share: bytes("f4", [0.75, 0.25]),
});

test("nodes are found by id, and a bare number is shown with what it counts", () => {
  assert.equal(scene.at.get(12), 2);
  assert.deepEqual(scene.labels, ["layer/7 (3)", "a", "b"]);
});

test("a paint fits when it is of as many nodes", () => {
  assert.equal(paint.fits, true);
  assert.equal(painted({ device: bytes("u1", [0]) }).fits, false);
});

test("edges are critical, crossing or plain", () => {
  const groups = groupByColour(scene, paint, ["#111111", "#222222"]);
  assert.deepEqual(groups.nodes, [[0], [1, 2]]);
  assert.deepEqual([groups.crossing, groups.critical, groups.plain], [[0], [1], []]);
  const unpainted = groupByColour(scene, painted({}), []);
  assert.deepEqual([unpainted.nodes, unpainted.plain], [[[0, 1, 2]], [0, 1]]);
});

test("the box around nodes reaches to their edges", () => {
  assert.deepEqual(bounds(scene), [-20, -5, 210, 55]);
  assert.deepEqual(bounds(scene, [1]), [90, -5, 110, 5]);
  assert.deepEqual(bounds(scene, []), [0, 0, 1, 1]);
});

test("only edges on the canvas are stroked, and long ones are given back", () => {
  const drawn = [];
  const context = { beginPath() {}, stroke() {}, moveTo: (...at) => drawn.push(at), lineTo: (...at) => drawn.push(at),
    bezierCurveTo: (...at) => drawn.push(at.slice(4)) };
  // World = screen; the canvas ends at 80, before op 2's edge begins (110).
  assert.deepEqual(strokeEdges(context, scene, { x: 0, y: 0, k: 1 }, [0, 1], [80, 80], false), []);
  assert.deepEqual(drawn, [[20, 0], [90, 0]]);
  // Ten columns are 640 pixels: moved 1000 to the right, op 2's edge is long.
  const far = { ...scene, x: Float32Array.of(0, 100, 1200) };
  assert.deepEqual(strokeEdges(context, far, { x: 0, y: 0, k: 1 }, [0, 1], [2000, 80], true), [1]);
});

test("a node is on a device, or shared", () => {
  assert.equal(devicesOf(paint, devices, 0), "gpu:0 75%, gpu:1 25%");
  assert.equal(devicesOf(paint, devices, 1), "gpu:1");
  assert.equal(devicesOf(painted({}), devices, 1), "");
});

test("what is said of a node", () => {
  const facts = Object.fromEntries(factsOf(scene, paint, devices, 1));
  assert.deepEqual([facts.type, facts.device, facts.time, facts.sends, facts.receives], ["MatMul", "gpu:1", "2.00 us", "8 B", ""]);
  assert.equal(Object.fromEntries(factsOf(scene, paint, devices, 0))["scope of"], "3 ops");
  assert.equal(Object.fromEntries(factsOf(scene, paint, devices, 2))["backward of"], "net/a");
});
